"""LeakyBucket: the token bucket seen from the other side, as a meter of what has not drained yet."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gatekeeper.limits.algorithms import gcra_allow
from gatekeeper.limits.algorithms.gcra import GcraRule
from gatekeeper.limits.engine import conveniences, decisions, persistence, reservations, store_backed, waiting
from gatekeeper.limits.engine.key_states import KEYS_MAX, KeyStates
from gatekeeper.limits.engine.protocol import Key, NanosecondClock, Overflow, Period
from gatekeeper.limits.engine.store_backed import LimiterStore
from gatekeeper.limits.engine.units import to_ns, whole_number


class LeakyBucket:
    """A bucket of `burst` that drains `limit` per `period`; what would overflow is refused.

    Promise: that of TokenBucket, request by request: never more than burst + limit * t / period in
    any stretch of t seconds, no refusal unless admitting would break that. Choose between the two
    by the word you think in: what is left, or how full it is.
    """

    __slots__ = ("_keys", "_name", "_rule")

    if not TYPE_CHECKING:  # for which __init__ says it all
        __new__ = store_backed.new

    def __init__(
        self,
        limit: int,
        period: Period,
        burst: int | None = None,
        *,
        max_keys: int = KEYS_MAX,
        overflow: Overflow = "shared",
        clock: NanosecondClock = time.monotonic_ns,
        name: str = "",
        store: LimiterStore | None = None,
    ) -> None:
        """A limiter for each key. Raises ValueError for a limit, a burst or a period below one unit."""
        self._rule = rule = GcraRule(limit, to_ns(period), burst)
        self._keys: KeyStates[int] = KeyStates(
            rule.forget_after_ns, whole_number(max_keys, "max_keys"), overflow, clock
        )
        self._name = name
        if store is not None:
            store.attach(self)

    allow = gcra_allow.allow
    check = decisions.check
    check_many = conveniences.check_many
    peek = decisions.peek
    refund = decisions.refund
    reset = decisions.reset
    reserve = reservations.reserve
    wait = waiting.wait
    wait_async = waiting.wait_async
    configure = persistence.configure
    dump = persistence.dump
    load = persistence.load
    enforce = conveniences.enforce
    guard = conveniences.guard
    ticks = conveniences.ticks
    leave = conveniences.nothing_to_leave
    allow_async = conveniences.allow_async
    check_async = conveniences.check_async
    check_many_async = conveniences.check_many_async
    peek_async = conveniences.peek_async
    reserve_async = conveniences.reserve_async
    enforce_async = conveniences.enforce_async
    __enter__ = conveniences.enter
    __exit__ = conveniences.leave_block
    __aenter__ = conveniences.enter_async
    __aexit__ = conveniences.leave_block_async

    def level(self, key: Key = "") -> int:
        """How many requests of `key` have not drained yet, the one that is draining included."""
        status = self.peek(key)
        return self._rule.burst - (status.remaining or 0)
