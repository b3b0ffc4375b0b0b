"""The clock of a gate: wall time, uptime, randomness, and threads that call a function periodically."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from math import inf
from typing import Protocol

__all__ = ["SYSTEM_CLOCK", "Clock", "PeriodicTask", "SystemClock"]


class PeriodicTask(Protocol):
    """A function that is called periodically."""

    alive: bool  # False when it will not be called again, for any reason

    def stop(self, timeout: float) -> None:
        """Prevents further calls; waits at most `timeout` seconds for one that is running."""


class Clock(Protocol):
    """The system's clock, or one that a test moves (`gatekeeper.testing.ManualClock`)."""

    def wall_ns(self) -> int:
        """Nanoseconds since 1970 UTC. May jump; for times that are stored or shared, such as a lock's end."""

    def uptime_s(self) -> float:
        """Seconds since an arbitrary moment. Never goes back; for durations."""

    def random(self) -> float:
        """A random number in [0, 1)."""

    def run(self, step: Callable[[], float], name: str) -> PeriodicTask:
        """Calls `step` now, and again whenever the seconds that it returned have passed; ends when it returns
        inf.

        Raises RuntimeError when no thread can be started.
        """

    def wait(self, event: threading.Event, timeout: float) -> bool:
        """Whether `event` was set within `timeout` seconds."""


class SystemClock:
    """The machine's time, and one thread for each periodic task.

    Example:
        >>> SystemClock().wall_ns() > 1_700_000_000_000_000_000
        True
    """

    def wall_ns(self) -> int:
        return time.time_ns()

    def uptime_s(self) -> float:
        return time.monotonic()

    def random(self) -> float:
        # Not the `random` module: all forked children would draw the same numbers and poll in step.
        return int.from_bytes(os.urandom(6), "big") / (1 << 48)

    def run(self, step: Callable[[], float], name: str) -> PeriodicTask:
        return PeriodicThread(step, name)

    def wait(self, event: threading.Event, timeout: float) -> bool:
        return event.wait(timeout)


class PeriodicThread:
    """A daemon thread that calls a function periodically until it is stopped or the function raises."""

    def __init__(self, step: Callable[[], float], name: str) -> None:
        self.alive = True
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(step,), name=name, daemon=True)
        self._thread.start()

    def _work(self, step: Callable[[], float]) -> None:
        try:
            while not self._stopped.is_set() and (wait_s := step()) < inf:
                self._stopped.wait(wait_s)
        finally:
            self.alive = False

    def stop(self, timeout: float) -> None:
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)


SYSTEM_CLOCK = SystemClock()
