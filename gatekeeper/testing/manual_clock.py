"""A clock that a test moves by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import ceil, inf

from gatekeeper.clock import PeriodicTask

__all__ = ["ManualClock"]

SECOND_NS = 1_000_000_000
CALLS_MAX = 1_000  # of one function at one moment; more are an infinite loop


class ManualClock:
    """A clock that does not move until `advance`. For gates, limiters, and `gatekeeper.testing.run`.

    A gate with this clock starts no thread: its polls run inside `advance` and `Gate.ready`, in order.
    Calling the clock returns its uptime in nanoseconds, as the `clock` of a limiter must. A thread that waits
    for a limiter moves the clock instead, and returns at once.

    Args:
        now: The wall time at the start, with its time zone; by default 2026-01-01 UTC.
        luck: What `random` returns, from 0 to below 1. With 0.5, the default, polls have no jitter.

    Example:
        >>> from gatekeeper import SlidingLog
        >>> clock = ManualClock()
        >>> limiter = SlidingLog(limit=1, period=60, clock=clock)
        >>> limiter.allow("user:ann"), limiter.allow("user:ann")
        (True, False)
        >>> clock.advance(60)
        >>> limiter.allow("user:ann")
        True
    """

    def __init__(self, now: datetime = datetime(2026, 1, 1, tzinfo=UTC), luck: float = 0.5) -> None:
        self.luck = luck
        self._up_ns = 0
        self._wall_ns = (now - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1_000
        self._tasks: list[ManualTask] = []

    def __call__(self) -> int:
        return self._up_ns

    def uptime_s(self) -> float:
        """Seconds since the clock was made."""
        return self._up_ns / SECOND_NS

    def wall_ns(self) -> int:
        """The wall time in nanoseconds since 1970 UTC."""
        return self._wall_ns

    def now(self) -> datetime:
        """The wall time."""
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=self._wall_ns // 1_000)

    def random(self) -> float:
        """Returns `luck`."""
        return self.luck

    def run(self, step: Callable[[], float], name: str) -> PeriodicTask:
        """Registers a function that `advance` calls when it is due.

        First at the current moment, then whenever the seconds that `step` returned have passed.

        Args:
            step: The function; returns seconds until its next call, or infinity to end.
            name: Ignored; a real clock names its thread by it.
        """
        self._tasks.append(ManualTask(step, self))
        return self._tasks[-1]

    def wait(self, event: threading.Event, timeout: float | None) -> bool:
        """Advances by up to `timeout` seconds until `event` is set; returns whether it is."""
        if timeout is None:  # real time: another thread sets it
            return event.wait()
        self._advance(ceil(timeout * SECOND_NS), until=event.is_set)
        return event.is_set()

    def advance(self, seconds: float) -> None:
        """Moves the time forward and calls functions that fall due, each at its moment.

        Called from inside such a function, as by a source that is slow to answer, it calls the others.
        """
        self._advance(round(seconds * SECOND_NS), until=lambda: False)

    def jump(self, seconds: float) -> None:
        """Moves the wall time alone, forward or back, as when a machine's clock is set."""
        self._wall_ns += round(seconds * SECOND_NS)

    def _advance(self, ns: int, until: Callable[[], bool]) -> None:
        end_ns, calls = self._up_ns + ns, 0
        while not until() and (task := self._next()) and task.due_ns <= end_ns:
            calls = calls + 1 if task.due_ns <= self._up_ns else 0
            if calls > CALLS_MAX:
                raise RuntimeError("a function asks to be called again at the same moment, without end")
            self._move(max(task.due_ns, self._up_ns))
            task.call()
        if not until():
            self._move(max(end_ns, self._up_ns))  # later, if a function advanced the clock

    def _next(self) -> ManualTask | None:
        self._tasks = [task for task in self._tasks if task.alive]
        idle = (task for task in self._tasks if not task.is_running)
        return min(idle, key=lambda task: task.due_ns, default=None)

    def _move(self, up_ns: int) -> None:
        self._wall_ns += up_ns - self._up_ns
        self._up_ns = up_ns


class ManualTask:
    """A function that a ManualClock calls periodically."""

    def __init__(self, step: Callable[[], float], clock: Callable[[], int]) -> None:
        self.alive = True
        self.is_running = False
        self.due_ns = clock()
        self._step = step
        self._clock = clock

    def call(self) -> None:
        self.is_running = True
        try:
            wait_s = self._step()
            if wait_s == inf:
                self.alive = False
                return
            # Rounded up: less than a nanosecond would never pass.
            self.due_ns = self._clock() + ceil(wait_s * SECOND_NS)
        except SystemExit:  # ends a thread without a traceback, and so this task
            self.alive = False
        finally:
            self.is_running = False

    def stop(self, timeout: float) -> None:
        self.alive = False
