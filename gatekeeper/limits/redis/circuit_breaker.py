"""Circuit breaker: no calls for a moment after a failure, so that not every request waits for a time-out."""

from __future__ import annotations

import logging
from typing import Final

from gatekeeper.limits.engine.protocol import NanosecondClock
from gatekeeper.limits.engine.units import SECOND_NS, to_seconds

log: Final = logging.getLogger("gatekeeper.limits")


class CircuitBreaker:
    """Permits calls; after a failure none for `pause` seconds, and then one at a time until one succeeds."""

    __slots__ = ("_clock", "_open_until_ns", "_pause_ns", "failing")

    def __init__(self, pause: float, clock: NanosecondClock) -> None:
        self._clock = clock
        self._pause_ns = round(pause * SECOND_NS)
        self._open_until_ns = 0
        self.failing = False

    def permits_call(self) -> bool:
        """Whether this caller may call; after a pause one caller may, and the others another pause later."""
        if not self.failing:
            return True
        now_ns = self._clock()
        if now_ns < self._open_until_ns:
            return False
        self._open_until_ns = now_ns + self._pause_ns
        return True

    def succeeded(self) -> None:
        """Closes the circuit."""
        if self.failing:
            self.failing = False
            log.warning("the store of limits answers again")

    def failed(self, error: BaseException, on_error: str) -> None:
        """Opens the circuit for a pause, and logs the first failure; `on_error` is what decides meanwhile."""
        self._open_until_ns = self._clock() + self._pause_ns
        if not self.failing:
            self.failing = True
            reason = f"{type(error).__name__}: {error}"
            log.warning("the store of limits does not answer (%s); until it does: %s", reason, on_error)

    def seconds_left(self) -> float:
        """Returns the seconds until the next call is permitted."""
        return to_seconds(max(0, self._open_until_ns - self._clock()))
