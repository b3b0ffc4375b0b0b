"""TokenBucket: bursts up to a size, and a steady rate beyond them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from gatekeeper.limits.algorithms import gcra_allow
from gatekeeper.limits.algorithms.gcra import GcraRule
from gatekeeper.limits.engine import conveniences, decisions, persistence, reservations, store_backed, waiting
from gatekeeper.limits.engine.key_states import KEYS_MAX, KeyStates
from gatekeeper.limits.engine.protocol import Key, NanosecondClock, Overflow, Period
from gatekeeper.limits.engine.store_backed import LimiterStore
from gatekeeper.limits.engine.units import SECOND_NS, to_ns, whole_number


class TokenBucket:
    """At most `burst` at once and `limit` per `period` in the long run.

    Promise: never more than burst + limit * t / period in any stretch of t seconds, and no
    refusal unless admitting would break that. With the default burst, which is the limit, two
    limits may so pass within one period; `TokenBucket.strict` never lets more than one pass.
    Decided by GCRA in whole numbers: one number a key, some 80 bytes with its place in the dict.
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
        """A limiter for each key. Raises ValueError for a limit, burst or period below one unit."""
        self._open(GcraRule(limit, to_ns(period), burst), max_keys, overflow, clock, name)
        if store is not None:
            store.attach(self)

    @classmethod
    def strict(
        cls,
        limit: int,
        period: Period,
        burst: int | None = None,
        *,
        max_keys: int = KEYS_MAX,
        overflow: Overflow = "shared",
        clock: NanosecondClock = time.monotonic_ns,
        name: str = "",
        store: LimiterStore | None = None,
    ) -> Self:
        """A bucket that never lets more than `limit` pass in any `period`, half-open.

        The price is the rate: `burst` at once (half the limit unless told) leaves
        limit + 1 - burst per period. Two admissions in one half-open period lie less than a period
        apart, so they are fewer than burst + (limit + 1 - burst), a whole number: at most `limit`.
        """
        bucket = store_backed.new(cls, store=store)
        rule = GcraRule(limit, to_ns(period), burst, strict=True)
        bucket._open(rule, max_keys, overflow, clock, name)
        if store is not None:
            store.attach(bucket)
        return bucket

    def _open(
        self, rule: GcraRule, max_keys: int, overflow: Overflow, clock: NanosecondClock, name: str
    ) -> None:
        self._rule = rule
        self._keys: KeyStates[int] = KeyStates(
            rule.forget_after_ns, whole_number(max_keys, "max_keys"), overflow, clock
        )
        self._name = name

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

    def as_cl_throttle(self, key: Key = "", cost: int = 1) -> tuple[int, int, int, int, int]:
        """What redis-cell's CL.THROTTLE answers: limited (0 or 1), the burst, what remains, seconds
        until a retry may pass (-1 when it passed, or never will), seconds until the bucket is full.

        Its `max_burst` of 15 is a burst of 16 here. Seconds are rounded up, so that whoever waits
        them is not refused again.
        """
        decision = self.check(key, cost)
        retry_s = -1 if decision.allowed else _ceil_s(decision.retry_after)
        remaining = decision.remaining or 0
        return int(not decision.allowed), self._rule.burst, remaining, retry_s, _ceil_s(decision.reset_after)


def _ceil_s(duration: float | None) -> int:
    return -1 if duration is None else -(-round(duration * SECOND_NS) // SECOND_NS)
