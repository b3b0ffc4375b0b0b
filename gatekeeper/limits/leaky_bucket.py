"""LeakyBucket: the token bucket seen from the other side, as a meter of what has not drained yet."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gatekeeper.limits import booking, bucketing, deciding, keeping, sharing, using, waiting
from gatekeeper.limits.gcra import GcraRule
from gatekeeper.limits.keyed import KEYS_MAX, Keys
from gatekeeper.limits.protocol import Clock, Key, Overflow, Period
from gatekeeper.limits.sharing import Store
from gatekeeper.limits.units import nanoseconds, whole


class LeakyBucket:
    """A bucket of `burst` that drains `limit` per `period`; what would overflow is refused.

    Promise: that of TokenBucket, request by request: never more than burst + limit * t / period in
    any stretch of t seconds, no refusal unless admitting would break that. Choose between the two
    by the word you think in: what is left, or how full it is.
    """

    __slots__ = ("_keys", "_name", "_rule")

    if not TYPE_CHECKING:  # for which __init__ says it all
        __new__ = sharing.new

    def __init__(
        self,
        limit: int,
        period: Period,
        burst: int | None = None,
        *,
        max_keys: int = KEYS_MAX,
        overflow: Overflow = "shared",
        clock: Clock = time.monotonic_ns,
        name: str = "",
        store: Store | None = None,
    ) -> None:
        """A limiter for each key. Raises ValueError for a limit, a burst or a period below one unit."""
        self._rule = rule = GcraRule(limit, nanoseconds(period), burst)
        self._keys: Keys[int] = Keys(rule.settle_ns, whole(max_keys, "max_keys"), overflow, clock)
        self._name = name
        if store is not None:
            store.attach(self)

    allow = bucketing.allow
    check = deciding.check
    check_many = using.check_many
    peek = deciding.peek
    refund = deciding.refund
    reset = deciding.reset
    reserve = booking.reserve
    wait = waiting.wait
    wait_async = waiting.wait_async
    configure = keeping.configure
    dump = keeping.dump
    load = keeping.load
    enforce = using.enforce
    guard = using.guard
    ticks = using.ticks
    leave = using.nothing_to_leave
    allow_async = using.allow_async
    check_async = using.check_async
    check_many_async = using.check_many_async
    peek_async = using.peek_async
    reserve_async = using.reserve_async
    enforce_async = using.enforce_async
    __enter__ = using.enter
    __exit__ = using.leave_block
    __aenter__ = using.enter_async
    __aexit__ = using.leave_block_async

    def level(self, key: Key = "") -> int:
        """How many requests of `key` have not drained yet, the one that is draining included."""
        standing = self.peek(key)
        return self._rule.burst - (standing.remaining or 0)
