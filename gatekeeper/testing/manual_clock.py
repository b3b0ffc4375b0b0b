"""A clock that is moved by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import ceil, inf

from gatekeeper.clock import PeriodicTask

SECOND_NS = 1_000_000_000
CALLS_MAX = 1_000  # at one moment; more is a loop that would never end


class ManualClock:
    """Time that stands still until `advance`. A gate on it has no thread: its polls happen inside
    `advance`, and in `Gate.ready`, in order.

    Called, it gives nanoseconds, as the limiters' `clock` wants it; a thread that waits for a limiter
    on it moves it instead, and returns at once. For tasks there is `gatekeeper.testing.run`.
    """

    def __init__(self, now: datetime = datetime(2026, 1, 1, tzinfo=UTC), luck: float = 0.5) -> None:
        self.luck = luck  # what `random` says; 0.5 is a poll without jitter
        self._up_ns = 0
        self._wall_ns = (now - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1_000
        self._series: list[ManualTask] = []

    def __call__(self) -> int:
        return self._up_ns

    def uptime_s(self) -> float:
        return self._up_ns / SECOND_NS

    def wall_ns(self) -> int:
        return self._wall_ns

    def now(self) -> datetime:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=self._wall_ns // 1_000)

    def random(self) -> float:
        return self.luck

    def run(self, turn: Callable[[], float], name: str) -> PeriodicTask:
        self._series.append(ManualTask(turn, self))
        return self._series[-1]

    def wait(self, event: threading.Event, timeout: float | None) -> bool:
        if timeout is None:  # until somebody else sets it
            return event.wait()
        self._pass(ceil(timeout * SECOND_NS), until=event.is_set)
        return event.is_set()

    def advance(self, seconds: float) -> None:
        """Let time pass, and take the turns that fall due, each at its own moment. In a turn, as a source
        that takes its time, it lets the others take theirs."""
        self._pass(round(seconds * SECOND_NS), until=lambda: False)

    def jump(self, seconds: float) -> None:
        """Set the wall clock, and nothing else, forward or back."""
        self._wall_ns += round(seconds * SECOND_NS)

    def _pass(self, ns: int, until: Callable[[], bool]) -> None:
        end_ns, turns = self._up_ns + ns, 0
        while not until() and (due := self._next()) and due.due_ns <= end_ns:
            turns = turns + 1 if due.due_ns <= self._up_ns else 0
            if turns > CALLS_MAX:
                raise RuntimeError("a turn wants its next at the same moment, again and again")
            self._move(max(due.due_ns, self._up_ns))
            due.take()
        if not until():
            self._move(max(end_ns, self._up_ns))  # later, if a turn took its time

    def _next(self) -> ManualTask | None:
        self._series = [series for series in self._series if series.alive]
        waiting = (series for series in self._series if not series.busy)
        return min(waiting, key=lambda series: series.due_ns, default=None)

    def _move(self, up_ns: int) -> None:
        self._wall_ns += up_ns - self._up_ns
        self._up_ns = up_ns


class ManualTask:
    """One series of turns on a manual clock."""

    def __init__(self, turn: Callable[[], float], clock: Callable[[], int]) -> None:
        self.alive = True
        self.busy = False  # a turn is being taken
        self.due_ns = clock()
        self._turn = turn
        self._clock = clock

    def take(self) -> None:
        self.busy = True
        try:
            wait_s = self._turn()
            if wait_s == inf:
                self.alive = False
                return
            # Rounded up: a wait shorter than a nanosecond would never pass.
            self.due_ns = self._clock() + ceil(wait_s * SECOND_NS)
        except SystemExit:  # ends a thread quietly, and so this
            self.alive = False
        finally:
            self.busy = False

    def stop(self, timeout: float) -> None:
        self.alive = False
