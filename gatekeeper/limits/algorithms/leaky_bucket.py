"""Leaky bucket as a meter: a token bucket that counts what has not drained yet."""

from __future__ import annotations

import time

from gatekeeper.limits.algorithms.gcra import GcraLimiter, GcraRule
from gatekeeper.limits.engine.key_states import KEYS_MAX
from gatekeeper.limits.engine.protocol import Key, LimiterStore, NanosecondClock, Overflow, Period
from gatekeeper.limits.engine.units import to_ns


class LeakyBucket(GcraLimiter):
    """Leaky bucket as a meter: holds `burst` requests per key and drains `limit` per `period`.

    A request that would overflow the bucket is refused. Decides exactly as `TokenBucket` does, request by
    request: never more than burst + limit * t / period in any t seconds, and no refusal unless admitting
    would break that. Choose by what you want to read: `level` says how full the bucket is, a token bucket
    says what remains. For callers that wait and leave evenly take `LeakyQueue`.

    Source: Turner, "New directions in communications" (1986), and ITU-T I.371, which defines the meter.
    Costs some 75 bytes per key without the key itself.

    Args:
        limit: Requests that drain per period; a whole number from 1.
        period: Seconds in which `limit` requests drain, or a timedelta; above 0.
        burst: Requests that the bucket holds; a whole number from 1. None, the default, is `limit`.
        max_keys: Keys that are held at most; one million by default.
        overflow: Decides about a key that finds `max_keys` live keys: "shared", the default, counts all such
            keys as one; "deny" refuses them, "allow" admits them. `overflowed` counts their requests.
        clock: Returns the time in whole nanoseconds since any moment; `time.monotonic_ns` by default.
        name: The policy that refusals name; with a store also the name that processes share it by.
        store: A `RedisStore` for keys that several processes share; None, the default, keeps them here.

    Raises:
        ValueError: A limit, burst or `max_keys` below 1, a period below one nanosecond, or an unknown
            `overflow`.

    Example:
        >>> from gatekeeper.testing import ManualClock
        >>> meter = LeakyBucket(limit=1, period=10, burst=3, clock=ManualClock())
        >>> meter.allow("acme"), meter.level("acme")
        (True, 1)
    """

    __slots__ = ()

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
        self._init(GcraRule(limit, to_ns(period), burst), max_keys, overflow, clock, name, store)

    def level(self, key: Key = "") -> int:
        """Returns how many requests of `key` have not drained yet, including the one that is draining."""
        return self._rule.burst - (self.peek(key).remaining or 0)
