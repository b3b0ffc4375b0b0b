"""The start of a process: its first requests wait, for a moment, for the first answer of the lock feed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import inf

from gatekeeper.clock import Clock


class StartupWait:
    """The wait of a gate's guards for its first answer, once in each process.

    A process that has just started knows no locks, so that callers with a lock would pass until the first
    poll has ended. The first request waits for it, and so do others that arrive meanwhile. After `timeout_s`
    no request waits any more, whether or not the source has answered.

    Args:
        timeout_s: Seconds from the first request, or from the start of an ASGI application; 0: none waits.
        clock: The gate's clock.
        start: Starts polling, unless the gate is closed; returns whether an answer is to be waited for.

    Attributes:
        is_due: Whether a request must call `wait` or `wait_async`. A plain attribute, read by each request.
    """

    __slots__ = ("_answered", "_clock", "_start", "_timeout_s", "_until_s", "is_due")

    def __init__(self, timeout_s: float, clock: Clock, start: Callable[[], bool]) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._start = start
        self.reset(threading.Event())

    def reset(self, answered: threading.Event) -> None:
        """Begins again, in a forked child. `answered` is set when the source has answered."""
        self._answered = answered
        self._until_s = inf  # uptime; set by the first request
        self.is_due = self._timeout_s > 0

    def wait(self) -> None:
        """Waits for the first answer, in this thread. Never raises."""
        if not self._start():
            self.is_due = False
            return
        now_s = self._clock.uptime_s()
        self._until_s = min(self._until_s, now_s + self._timeout_s)
        if now_s < self._until_s:
            self._clock.wait(self._answered, self._until_s - now_s)
        self.is_due = False

    async def wait_async(self) -> None:
        """Waits for the first answer, in a thread, so that the event loop continues."""
        if self._answered.is_set():
            self.is_due = False
            return
        import asyncio  # late: synchronous applications do not need it

        try:
            await asyncio.to_thread(self.wait)
        except RuntimeError:  # not an event loop of asyncio, or one that has no thread left
            self.wait()
