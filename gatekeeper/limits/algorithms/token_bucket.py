"""Token bucket: bursts up to a size, and a steady rate beyond them."""

from __future__ import annotations

import time
from typing import Self

from gatekeeper.limits.algorithms.gcra import GcraLimiter, GcraRule
from gatekeeper.limits.engine.key_states import KEYS_MAX
from gatekeeper.limits.engine.protocol import Key, LimiterStore, NanosecondClock, Overflow, Period
from gatekeeper.limits.engine.units import SECOND_NS, to_ns


class TokenBucket(GcraLimiter):
    """Token bucket: at most `burst` requests at once, and `limit` per `period` in the long run, per key.

    Never admits more than burst + limit * t / period in any t seconds, and refuses only what would break
    that. With the default burst up to twice the limit may pass within one period: a full bucket, and what
    refills meanwhile. `TokenBucket.strict` never lets more than the limit pass in one period.

    Decided by the generic cell rate algorithm (ITU-T I.371), which equals a token bucket and needs one
    number per key, in whole numbers, so that nothing rounds. Costs some 75 bytes per key without the key
    itself; `allow` is the fastest of all limiters.

    Args:
        limit: Requests per period in the long run; a whole number from 1.
        period: Seconds in which `limit` permits refill, or a timedelta; above 0.
        burst: Requests that may pass at once after a pause; a whole number from 1. None, the default, is
            `limit`.
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
        >>> bucket = TokenBucket(limit=1, period=10, burst=2, clock=ManualClock())
        >>> [bucket.allow("acme") for _ in range(3)], bucket.check("acme").retry_after
        ([True, True, False], 10.0)
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
        """Returns a bucket that never lets more than `limit` pass in any half-open `period`.

        The price is the rate: with `burst` requests at once, limit + 1 - burst refill per period. Two
        admissions in one half-open period lie less than a period apart, so they are fewer than
        burst + (limit + 1 - burst), a whole number: at most `limit`.

        Args:
            limit: Requests in any period at most; a whole number from 1.
            period: Seconds, or a timedelta; above 0.
            burst: Requests that may pass at once, at most `limit`. None, the default, is half the limit,
                rounded up.
            max_keys: Keys that are held at most, as for the class.
            overflow: "shared", "deny" or "allow", as for the class.
            clock: Returns the time in whole nanoseconds, as for the class.
            name: The policy that refusals name.
            store: A `RedisStore`, or None for this process.

        Raises:
            ValueError: A burst above the limit, and as for the class.
        """
        bucket = cls.__new__(cls, store=store)
        rule = GcraRule(limit, to_ns(period), burst, strict=True)
        bucket._init(rule, max_keys, overflow, clock, name, store)
        return bucket

    def as_cl_throttle(self, key: Key = "", cost: int = 1) -> tuple[int, int, int, int, int]:
        """Decides as `check` does; returns the five numbers of redis-cell's command CL.THROTTLE.

        They are: limited (0 or 1); the burst; requests that remain; whole seconds until a retry may pass,
        -1 when this one passed or none ever will; whole seconds until the bucket is full. Seconds are
        rounded up, so that a client that waits them is not refused again. A `max_burst` of 15 there is a
        burst of 16 here.
        """
        decision = self.check(key, cost)
        retry_s = -1 if decision.allowed else _ceil_s(decision.retry_after)
        remaining = decision.remaining or 0
        return int(not decision.allowed), self._rule.burst, remaining, retry_s, _ceil_s(decision.reset_after)


def _ceil_s(duration: float | None) -> int:
    return -1 if duration is None else -(-round(duration * SECOND_NS) // SECOND_NS)
