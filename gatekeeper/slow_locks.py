"""Locks that slow: each lets its rate through, by a token bucket of its own, in this process."""

from __future__ import annotations

from collections.abc import Callable

from gatekeeper.limits.algorithms.token_bucket import TokenBucket
from gatekeeper.model import Decision
from gatekeeper.view.lock_tuples import SLOW, LockKeyTuple, LockTuple, key_of

KEYS_MAX = 100_000  # keys of one rate; those beyond share one bucket
RATES_MAX = 1_000  # rates come from policies, of which there are a few

RateTuple = tuple[int, float]  # a rate: requests, seconds


class SlowLocks:
    """The buckets of every lock that slows, kept while the lock is: a later end, another detail, or a
    snapshot that names it again give nobody a new burst, and with a new rate what was used stays used.

    Bounded: an idle bucket is forgotten when it is full again.
    """

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._buckets: dict[RateTuple, TokenBucket] = {}
        self._last: dict[LockKeyTuple, RateTuple] = {}  # the rate by which each was asked last

    def check(self, held: LockTuple) -> Decision:
        at, rate = key_of(held), held[SLOW]
        bucket = self._bucket(rate)
        last = self._last.get(at)
        if last != rate:
            if last is not None:
                self._carry(at, self._bucket(last), bucket)
            self._last[at] = rate
        return bucket.check(at)

    def refund(self, held: LockTuple) -> None:
        self._bucket(held[SLOW]).refund(key_of(held))

    def tidy(self) -> None:
        """Hold what is remembered within its bounds."""
        if len(self._last) > KEYS_MAX:
            self._last = {}
        if len(self._buckets) > RATES_MAX:
            self._buckets = {}

    def _bucket(self, rate: RateTuple) -> TokenBucket:
        bucket = self._buckets.get(rate)
        if bucket is None:
            limit, period_s = rate
            made = TokenBucket(limit, period_s, max_keys=KEYS_MAX, clock=self._clock_ns)
            bucket = self._buckets.setdefault(rate, made)  # of two threads that make one, both get the same
        return bucket

    @staticmethod
    def _carry(at: LockKeyTuple, old: TokenBucket, new: TokenBucket) -> None:
        """Let the share of the burst that was used be used in the new bucket too."""
        before, fresh = old.peek(at), new.peek(at)
        if before.limit and fresh.limit and before.remaining is not None:
            used = before.limit - before.remaining
            new.check(at, min(fresh.remaining or 0, -(-used * fresh.limit // before.limit)))
