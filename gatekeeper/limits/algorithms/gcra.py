"""The generic cell rate algorithm (GCRA, ITU-T I.371) as a virtual schedule, in whole numbers.

A bucket of `burst` permits that refills evenly is equal to one number: the theoretical arrival time (TAT),
when the bucket will be full again. A request may pass if the TAT after it lies no further ahead than a
whole bucket. Stored is TAT - tolerance: the earliest time at which a permit is available, which may be in the
past, so that `allow` only compares it with the clock.

Times are ticks of 1 / `scale` ns, chosen so that the emission interval (one permit's time) is a whole number
of ticks. Nothing is divided, no error accumulates, and a new key admits exactly `burst` for every rate and
period.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd

from gatekeeper.limits.engine.key_states import KeyStates
from gatekeeper.limits.engine.protocol import Key, KeyStatus
from gatekeeper.limits.engine.rate_limiter import RateLimiter
from gatekeeper.limits.engine.units import format_seconds, whole_number


@dataclass(frozen=True, slots=True)
class GcraRule:
    """A bucket of `burst` permits that gains `rate` of them per `period_ns`.

    The state is one number: TAT - tolerance, in ticks.
    """

    limit: int
    period_ns: int
    burst_asked: int | None = None  # None: the largest permitted burst
    strict: bool = False  # never more than `limit` in any period
    burst: int = field(init=False)
    rate: int = field(init=False)  # permits per period
    scale: int = field(init=False)  # ticks per nanosecond
    interval: int = field(init=False)  # ticks per permit: the emission interval
    capacity: int = field(init=False)  # ticks of a full bucket
    tolerance: int = field(init=False)  # ticks from one permit to a full bucket

    def __post_init__(self) -> None:
        whole_number(self.limit, "limit")
        largest = (self.limit + 1) // 2 if self.strict else self.limit
        burst = largest if self.burst_asked is None else whole_number(self.burst_asked, "burst")
        if self.strict and burst > self.limit:
            raise ValueError(f"burst: expected at most the limit of {self.limit}, got {burst}")
        rate = self.limit + 1 - burst if self.strict else self.limit
        common = gcd(rate, self.period_ns)
        interval = self.period_ns // common
        derived = {"burst": burst, "rate": rate, "scale": rate // common, "interval": interval}
        derived |= {"capacity": burst * interval, "tolerance": (burst - 1) * interval}
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @property
    def decision_limit(self) -> int:
        return self.burst

    @property
    def description(self) -> str:
        return f"{self.rate} per {format_seconds(self.period_ns)}, {self.burst} at once"

    @property
    def forget_after_ns(self) -> int:
        return -(-self.capacity // self.scale)

    @property
    def max_ahead_ns(self) -> None:
        return None

    def _arrival_time(self, state: int | None, now: int) -> int:
        """Returns the TAT in ticks: when the bucket is full again, `now` if it is full."""
        return now if state is None or state + self.tolerance < now else state + self.tolerance

    def wait_ns(self, state: int | None, now_ns: int, cost: int) -> int | None:
        if cost > self.burst:
            return None
        now = now_ns * self.scale
        early = self._arrival_time(state, now) + cost * self.interval - self.capacity - now
        return -(-early // self.scale) if early > 0 else 0

    def admit(self, state: int | None, now_ns: int, cost: int) -> int | None:
        now = now_ns * self.scale
        full = now - self.tolerance
        new_state = (full if state is None or state < full else state) + cost * self.interval
        return new_state if new_state <= now + self.interval else None

    def spend(self, state: int | None, at_ns: int, cost: int) -> int:
        return self._arrival_time(state, at_ns * self.scale) + cost * self.interval - self.tolerance

    def refund(self, state: int, now_ns: int, cost: int) -> int | None:
        """Refills `cost` permits now, at most up to a full bucket."""
        earlier = state - cost * self.interval
        return earlier if earlier + self.tolerance > now_ns * self.scale else None

    def status(self, state: int | None, now_ns: int) -> KeyStatus:
        missing = 0 if state is None else state + self.tolerance - now_ns * self.scale
        if missing <= 0:
            return (self.burst, 0)
        free = self.capacity - missing
        return (free // self.interval if free > 0 else 0, -(-missing // self.scale))

    def with_limits(self, limit: int | None, period_ns: int | None, burst: int | None) -> GcraRule:
        burst_asked = self.burst_asked if burst is None else burst
        return GcraRule(limit or self.limit, period_ns or self.period_ns, burst_asked, self.strict)

    def pack(self, state: int) -> list[int]:
        return [state]

    def unpack(self, numbers: list[int], shift_ns: int) -> int:
        return numbers[0] + shift_ns * self.scale

    def convert(self, old: GcraRule, state: int, now_ns: int) -> int | None:
        """Keeps permits, not time: as many as were used under `old` stay used.

        Keeping the time would be wrong both ways: a spent bucket whose rate rises would stay empty for as
        long as at the old rate, and one whose rate falls would be full at once.
        """
        missing = state + old.tolerance - now_ns * old.scale
        if missing <= 0:
            return None
        booked = max(0, missing - old.capacity)
        used = min(missing, old.capacity)
        spent = min(-(-used * self.interval // old.interval), self.capacity)
        ahead = -(-booked * self.interval // old.interval)
        return now_ns * self.scale + spent + ahead - self.tolerance


class GcraLimiter(RateLimiter):
    """A limiter whose rule is a `GcraRule`, with an `allow` written out for speed."""

    __slots__ = ()
    _rotates_on_write = False
    _keys: KeyStates[int]
    _rule: GcraRule

    def allow(self, key: Key = "", cost: int = 1) -> bool:
        """Whether `cost` requests of `key` may pass now; if so they are counted.

        Equals `check(key, cost).allowed`, and is several times as fast for a cost of 1. Raises ValueError
        for a negative cost.
        """
        if cost != 1:
            return self.check(key, cost).allowed
        keys = self._keys
        mutex = keys.mutex
        try:
            if not mutex.acquire(False):
                keys.acquire_mutex()
            clock = keys.clock
            now = now_ns = clock()
            rule = self._rule
            if rule.scale != 1:
                now *= rule.scale
            young = keys.young
            ready = young.get(key)
            if ready is None:
                return self._allow_new_key(key, now_ns)
            if ready > now:
                return False
            full = now - rule.tolerance
            if ready < full:
                ready = full
                # Only here, which saves most calls a comparison: a bucket that is not full was used lately.
                # So a rotation may come late, and states younger than it shows: `_rotates_on_write`.
                if now_ns >= keys.rotate_ns:
                    keys.rotate(now_ns)
                    keys.drop(key)
                    young = keys.young
            young[key] = ready + rule.interval
            return True
        finally:
            mutex.release()

    def _allow_new_key(self, key: Key, now_ns: int) -> bool:
        """Decides about a key that is not in the young generation; the caller holds the mutex."""
        keys, rule = self._keys, self._rule
        if now_ns >= keys.rotate_ns:
            keys.rotate(now_ns)
        slot = keys.take_slot(key)
        if slot is None:
            return self._without_slot(1).allowed
        state = keys.young.get(slot)
        if rule.wait_ns(state, now_ns, 1) != 0:
            return False
        keys.young[slot] = rule.spend(state, now_ns, 1)
        return True
