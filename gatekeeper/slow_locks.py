"""Locks with the action "slow": a token bucket per lock, in this process, allows the lock's rate."""

from __future__ import annotations

from collections.abc import Callable

from gatekeeper.limits.algorithms.token_bucket import TokenBucket
from gatekeeper.model import Decision
from gatekeeper.view.lock_tuples import SLOW, LockKeyTuple, LockTuple, tuple_key

KEYS_MAX = 100_000  # locks of one rate; those beyond share one bucket
RATES_MAX = 1_000  # rates come from policies, of which there are few

RateTuple = tuple[int, float]  # requests, seconds


class SlowLocks:
    """The token buckets of all locks that slow.

    A bucket belongs to the lock's key: a later end, another detail, or a new snapshot gives no new burst, and
    with a new rate the used share of the burst stays used. An idle bucket is forgotten when it is full again.
    """

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._limiters: dict[RateTuple, TokenBucket] = {}
        self._last_rates: dict[LockKeyTuple, RateTuple] = {}

    def check(self, lock: LockTuple) -> Decision:
        """Decides whether one more request may pass now at the lock's rate, and counts it if so."""
        key, rate = tuple_key(lock), lock[SLOW]
        limiter = self._limiter(rate)
        last = self._last_rates.get(key)
        if last != rate:
            if last is not None:
                self._carry_over(key, self._limiter(last), limiter)
            self._last_rates[key] = rate
        return limiter.check(key)

    def refund(self, lock: LockTuple) -> None:
        """Takes back the request that `check` allowed last."""
        self._limiter(lock[SLOW]).refund(tuple_key(lock))

    def prune(self) -> None:
        """Forgets all rates once they exceed their bounds."""
        if len(self._last_rates) > KEYS_MAX:
            self._last_rates = {}
        if len(self._limiters) > RATES_MAX:
            self._limiters = {}

    def _limiter(self, rate: RateTuple) -> TokenBucket:
        limiter = self._limiters.get(rate)
        if limiter is None:
            limit, period_s = rate
            new_limiter = TokenBucket(limit, period_s, max_keys=KEYS_MAX, clock=self._clock_ns)
            limiter = self._limiters.setdefault(rate, new_limiter)  # atomic, when two threads make one
        return limiter

    @staticmethod
    def _carry_over(key: LockKeyTuple, old: TokenBucket, new: TokenBucket) -> None:
        """Takes the same share of the burst from the new bucket as was used in the old one."""
        earlier, fresh = old.peek(key), new.peek(key)
        if earlier.limit and fresh.limit and earlier.remaining is not None:
            used = earlier.limit - earlier.remaining
            new.check(key, min(fresh.remaining or 0, -(-used * fresh.limit // earlier.limit)))
