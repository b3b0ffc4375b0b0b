"""A hook for the first refusal of a key: flag a caller, then throttle it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from gatekeeper.limits.algorithms.fixed_window import FixedWindow
from gatekeeper.limits.composites.by_plan import require_limiter, start_over_all
from gatekeeper.limits.composites.delegating import Delegating, L
from gatekeeper.limits.engine.key_states import KEYS_MAX
from gatekeeper.limits.engine.protocol import Key, NanosecondClock, Period, SavedState
from gatekeeper.limits.engine.reservations import Reservation
from gatekeeper.limits.engine.units import require_callable
from gatekeeper.log_pace import LogPace
from gatekeeper.model import Decision

log: Final = logging.getLogger("gatekeeper.limits")


class FirstRefusal(Delegating[L]):
    """A limiter that calls a function when it refuses a key for the first time: flag first, then throttle.

    Decides as `limiter` does. A refusal of a key calls `flag`, and further refusals of it do not, until
    `again_after` seconds have passed. `peek` flags nothing. What `flag` raises is logged; it runs in the
    caller's thread or task, so it should only put the key into a queue, a set or a log.

    A request that passes costs one call more than the limiter; a refusal one more decision in memory, and the
    refusal that flags a `peek`.

    Args:
        limiter: A limiter of a rate, an AllOf or a Sharded.
        flag: Called with the key and the refusal.
        again_after: Seconds after which a refusal of the key is flagged again, or a timedelta; an hour by
            default.
        max_keys: Flagged keys that are remembered at most, one million by default. Beyond that, further keys
            are not flagged.
        clock: Returns the time in whole nanoseconds since any moment; `time.monotonic_ns` by default.

    Raises:
        TypeError: What is not a limiter, or a `flag` that cannot be called.
        ValueError: A period below one nanosecond, or `max_keys` below 1.

    Example:
        >>> from gatekeeper.limits import SlidingLog
        >>> suspects = []
        >>> limiter = FirstRefusal(SlidingLog(2, 60), lambda key, refusal: suspects.append(key))
        >>> [limiter.allow("acme") for _ in range(4)], suspects
        ([True, True, False, False], ['acme'])
    """

    __slots__ = ("_failure_pace", "_flag", "_flagged", "_limiter")

    def __init__(
        self,
        limiter: L,
        flag: Callable[[Key, Decision], object],
        again_after: Period = 3600,
        *,
        max_keys: int = KEYS_MAX,
        clock: NanosecondClock = time.monotonic_ns,
    ) -> None:
        self._limiter = require_limiter(limiter, "limiter")
        self._flag = require_callable(flag, "flag")
        self._failure_pace = LogPace()
        self._flagged = FixedWindow(1, again_after, max_keys=max_keys, overflow="deny", clock=clock)

    def __repr__(self) -> str:
        return f"<FirstRefusal {self._limiter!r}>"

    def of(self, key: Key) -> L:
        """Returns the limiter, which decides about all keys."""
        return self._limiter

    def allow(self, key: Key = "", cost: int = 1) -> bool:
        """Whether `cost` requests of `key` may pass now; if so they are counted.

        Raises ValueError for a negative cost.
        """
        if self._limiter.allow(key, cost):
            return True
        if self._flagged.allow(key):
            self._call(key, self._limiter.peek(key, cost))
        return False

    def check(self, key: Key = "", cost: int = 1) -> Decision:
        """Decides as `allow` does; returns the decision with its numbers."""
        return self._noted(key, self._limiter.check(key, cost))

    def wait(self, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision:
        """Returns an allowed decision once `cost` requests of `key` may pass; this thread waits.

        Returns a refusal, and flags it, when `timeout` seconds do not suffice.
        """
        return self._noted(key, self._limiter.wait(key, cost, timeout))

    async def wait_async(self, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision:
        """Waits as `wait` does, as an asyncio task; cancelling it spends nothing."""
        return self._noted(key, await self._limiter.wait_async(key, cost, timeout))

    def reserve(self, key: Key = "", cost: int = 1, max_wait: float | None = None) -> Reservation:
        """Books `cost` permits of `key` for the first moment at which they are free; flags a refusal."""
        reservation = self._limiter.reserve(key, cost, max_wait)
        self._noted(key, reservation.decision)
        return reservation

    async def allow_async(self, key: Key = "", cost: int = 1) -> bool:
        """Decides as `allow` does."""
        if await self._limiter.allow_async(key, cost):
            return True
        if self._flagged.allow(key):
            self._call(key, await self._limiter.peek_async(key, cost))
        return False

    async def check_async(self, key: Key = "", cost: int = 1) -> Decision:
        """Decides as `check` does."""
        return self._noted(key, await self._limiter.check_async(key, cost))

    async def reserve_async(self, key: Key = "", cost: int = 1, max_wait: float | None = None) -> Reservation:
        """Books as `reserve` does."""
        reservation = await self._limiter.reserve_async(key, cost, max_wait)
        self._noted(key, reservation.decision)
        return reservation

    def reset(self, key: Key = "") -> None:
        """Forgets `key`, and that it was flagged."""
        self._limiter.reset(key)
        self._flagged.reset(key)

    def configure(self, **changes: Any) -> None:
        """Applies another limit; `changes` are those of the limiter's `configure`. Raises ValueError."""
        self._limiter.configure(**changes)

    def dump(self) -> SavedState:
        """Returns all that the limiter has counted, as json.dumps accepts it; not which keys were flagged."""
        return self._limiter.dump()

    def load(self, saved: SavedState) -> None:
        """Continues from what `dump` saved. Raises ValueError."""
        self._limiter.load(saved)

    def start_over(self, clock: NanosecondClock) -> Callable[[], None]:
        """Counts from zero, by another clock, until the function that it returns is called: for tests."""
        return start_over_all([self._limiter, self._flagged], clock)

    def _noted(self, key: Key, decision: Decision) -> Decision:
        if not decision.allowed and self._flagged.allow(key):
            self._call(key, decision)
        return decision

    def _call(self, key: Key, refusal: Decision) -> None:
        try:
            self._flag(key, refusal)
        except Exception:
            if (more := self._failure_pace.next_line()) is not None:
                log.exception("the flag of %r failed for %r%s", self, key, more)
