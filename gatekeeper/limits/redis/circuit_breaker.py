"""Open for a moment after a failure, so that not every request waits for the time-out."""

from __future__ import annotations

import logging
from typing import Final

from gatekeeper.limits.engine.protocol import NanosecondClock
from gatekeeper.limits.engine.units import SECOND_NS, to_seconds

log: Final = logging.getLogger("gatekeeper.limits")


class CircuitBreaker:
    """Whether to ask: yes, but for `pause` after a failure; then one caller tries for all."""

    __slots__ = ("_clock", "_pause_ns", "_shut_ns", "failing")

    def __init__(self, pause: float, clock: NanosecondClock) -> None:
        self._clock = clock
        self._pause_ns = round(pause * SECOND_NS)
        self._shut_ns = 0  # nobody asks before
        self.failing = False

    def lets_ask(self) -> bool:
        """Whether this caller may ask; of those that come after the pause, one."""
        if not self.failing:
            return True
        now_ns = self._clock()
        if now_ns < self._shut_ns:
            return False
        self._shut_ns = now_ns + self._pause_ns
        return True

    def succeeded(self) -> None:
        """An answer came."""
        if self.failing:
            self.failing = False
            log.warning("the store of limits answers again")

    def failed(self, error: BaseException, otherwise: str) -> None:
        """None came."""
        self._shut_ns = self._clock() + self._pause_ns
        if not self.failing:
            self.failing = True
            why = f"{type(error).__name__}: {error}"
            log.warning("the store of limits does not answer (%s); until it does: %s", why, otherwise)

    def left(self) -> float:
        """Seconds until somebody asks again."""
        return to_seconds(max(0, self._shut_ns - self._clock()))
