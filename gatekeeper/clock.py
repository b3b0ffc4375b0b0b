"""What a gate takes from outside: the time, chance, and somebody who lets turns happen."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from math import inf
from typing import Protocol


class PeriodicTask(Protocol):
    """Turns that are being taken."""

    alive: bool  # false once no turn will follow, whatever ended them

    def stop(self, timeout: float) -> None:
        """Let no further turn begin; wait at most `timeout` seconds for the one that is going on."""


class Clock(Protocol):
    """The system's, or one that a test moves by hand (`gatekeeper.testing.ManualClock`)."""

    def wall_ns(self) -> int:
        """Nanoseconds since 1970 UTC; may jump. For what is stored or shared: when a lock ends."""

    def uptime_s(self) -> float:
        """Seconds since some moment; never goes back. For "how long ago"."""

    def random(self) -> float:
        """At least 0, below 1."""

    def run(self, turn: Callable[[], float], name: str) -> PeriodicTask:
        """Call `turn` at once, and again each time the seconds that it returned have passed; no more once
        they are infinite."""

    def wait(self, event: threading.Event, timeout: float) -> bool:
        """Whether `event` was set within `timeout` seconds."""


class SystemClock:
    """The machine's time, and a thread of its own for each series of turns."""

    def wall_ns(self) -> int:
        return time.time_ns()

    def uptime_s(self) -> float:
        return time.monotonic()

    def random(self) -> float:
        # Not the `random` module: after a fork each child would draw the same numbers and poll in step.
        return int.from_bytes(os.urandom(6), "big") / (1 << 48)

    def run(self, turn: Callable[[], float], name: str) -> PeriodicTask:
        return PeriodicThread(turn, name)

    def wait(self, event: threading.Event, timeout: float) -> bool:
        return event.wait(timeout)


class PeriodicThread:
    """A daemon thread that takes turns until it is stopped, or a turn raises."""

    def __init__(self, turn: Callable[[], float], name: str) -> None:
        self.alive = True
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(turn,), name=name, daemon=True)
        self._thread.start()

    def _work(self, turn: Callable[[], float]) -> None:
        try:
            while not self._stopped.is_set() and (wait_s := turn()) < inf:
                self._stopped.wait(wait_s)
        finally:
            self.alive = False

    def stop(self, timeout: float) -> None:
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)


SYSTEM_CLOCK = SystemClock()
