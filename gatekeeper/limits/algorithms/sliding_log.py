"""Sliding window log: the exact limiter, which remembers the time of each admission in the last period.

The times lie in a ring (`AdmissionRing`). Two ideas make `SlidingLog.allow` quick:

- An admission overwrites the oldest one when that has left the period, and is inserted otherwise. So nothing
  is moved or scanned, and one comparison decides.
- A refusal notes until when the ring refuses (`refuses_until_ns`). Before that time further requests are
  refused without the mutex, because only time can change the answer: a refund, a reset or another limit
  put a new ring in place of the old one. A booking is noted in the same way, because no request passes before
  it; so `allow` does not look for one in the ring.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import Final

from gatekeeper.limits.engine.key_states import KEYS_MAX, KeyStates
from gatekeeper.limits.engine.protocol import (
    Key,
    KeyStatus,
    LimiterStore,
    NanosecondClock,
    Overflow,
    Period,
)
from gatekeeper.limits.engine.rate_limiter import RateLimiter
from gatekeeper.limits.engine.units import format_seconds, reject_burst, require_bool, to_ns, whole_number

STAMP_BITS: Final = 32
STAMP_MASK: Final = (1 << STAMP_BITS) - 1
STAMP_HALF: Final = 1 << (STAMP_BITS - 1)
PERIODS_IN_STAMPS: Final = 64  # periods until a compact stamp wraps; it is dropped after 16 at most


class AdmissionRing:
    """The last admissions of one key, in a ring with the index of the oldest.

    As long as it ever had to be, or up to twice that.
    """

    __slots__ = ("oldest", "refuses_until_ns", "stamps")

    def __init__(self, stamps: array[int], oldest: int = 0) -> None:
        self.stamps = stamps
        self.oldest = oldest
        # No request passes before; 0 when that is not known. Never before the newest stamp, which may be a
        # booking's, until `allow` has seen that it is over. A compact ring does without.
        self.refuses_until_ns = stamps[oldest - 1] if stamps else 0

    def __copy__(self) -> AdmissionRing:
        return AdmissionRing(self.stamps[:], self.oldest)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AdmissionRing):
            return NotImplemented
        return self.oldest == other.oldest and self.stamps == other.stamps

    __hash__ = None  # type: ignore[assignment]  # it is mutable

    def nth(self, n: int) -> int:
        """Returns the stamp of the nth admission, counted from the oldest; -1 is the newest."""
        stamps = self.stamps
        return stamps[(self.oldest + n) % len(stamps)]

    def ordered(self) -> array[int]:
        """Returns all stamps, the oldest first."""
        return self.stamps[self.oldest :] + self.stamps[: self.oldest]


@dataclass(frozen=True, slots=True)
class LogRule:
    """At most `limit` in any stretch of `period`, counted in ticks of `tick_ns`.

    A tick is one nanosecond. In the compact form it is 1 / 2**32 of 64 periods, so that a stamp fits into
    four bytes and wraps. The period is then one tick longer: rounding times down to ticks may refuse for up
    to two ticks too long, and never admits one too many.
    """

    limit: int
    period_ns: int
    compact: bool = False
    tick_ns: int = field(init=False)
    period: int = field(init=False)  # ticks

    def __post_init__(self) -> None:
        whole_number(self.limit, "limit")
        tick_ns = -(-self.period_ns * PERIODS_IN_STAMPS >> STAMP_BITS) if self.compact else 1
        period = -(-self.period_ns // tick_ns) + 1 if self.compact else self.period_ns
        object.__setattr__(self, "tick_ns", tick_ns)
        object.__setattr__(self, "period", period)

    @property
    def decision_limit(self) -> int:
        return self.limit

    @property
    def description(self) -> str:
        return f"{self.limit} in any {format_seconds(self.period_ns)}"

    @property
    def forget_after_ns(self) -> int:
        return self.period * self.tick_ns

    @property
    def max_ahead_ns(self) -> int | None:
        return 4 * self.period_ns if self.compact else None  # far enough from where a stamp wraps

    def stamps(self, ticks: list[int]) -> array[int]:
        """Returns `ticks` as a ring stores them."""
        if self.compact:
            return array("I", [tick & STAMP_MASK for tick in ticks])
        return array("q", ticks)

    def age(self, stamp: int, now: int) -> int:
        """Returns the ticks from `stamp` to `now`; below 0 when it was booked ahead."""
        if self.compact:
            return ((now - stamp + STAMP_HALF) & STAMP_MASK) - STAMP_HALF
        return now - stamp

    def expired(self, ring: AdmissionRing, now: int) -> int:
        """Returns how many of the ring's stamps have left the period."""
        if self.age(ring.stamps[ring.oldest], now) < self.period:
            return 0  # the case in a busy period, and in every refusal
        if self.compact:
            return bisect_left(
                range(len(ring.stamps)), 1, key=lambda n: int(self.age(ring.nth(n), now) < self.period)
            )
        stamps, oldest, start = ring.stamps, ring.oldest, now - self.period
        if stamps[-1] > start:  # the ring is two sorted runs, and the first ends in the period
            return bisect_right(stamps, start, oldest) - oldest
        return len(stamps) - oldest + bisect_right(stamps, start, 0, oldest)

    def wait_ns(self, state: AdmissionRing | None, now_ns: int, cost: int) -> int | None:
        if cost > self.limit:
            return None
        if state is None or not state.stamps or not cost:
            return 0
        now = now_ns // self.tick_ns
        # No request passes before a booking that still lies ahead, which is the newest in the ring.
        ticks = -self.age(state.nth(-1), now)
        needed = cost - (self.limit - len(state.stamps))
        if needed > 0:
            ticks = max(ticks, self.period - self.age(state.nth(needed - 1), now))
        return (now + ticks) * self.tick_ns - now_ns if ticks > 0 else 0

    def admit(self, state: AdmissionRing | None, now_ns: int, cost: int) -> AdmissionRing | None:
        if state is None or not state.stamps:
            return self.spend(None, now_ns, cost) if cost <= self.limit else None
        if cost != 1 or self.compact:
            return state if self.wait_ns(state, now_ns, cost) == 0 else None
        stamps, oldest = state.stamps, state.oldest
        if len(stamps) >= self.limit and now_ns - stamps[oldest] < self.period:
            return None
        return state if stamps[oldest - 1] <= now_ns else None

    def spend(self, state: AdmissionRing | None, at_ns: int, cost: int) -> AdmissionRing:
        tick = at_ns // self.tick_ns
        if state is None or not state.stamps:
            return AdmissionRing(self.stamps([tick] * cost))
        state.refuses_until_ns = at_ns
        if cost > 1 or self.compact:  # expired stamps are removed: a compact one could wrap
            state.stamps = state.ordered()[self.expired(state, tick) :] + self.stamps([tick] * cost)
            state.oldest = 0
            return state
        stamps, oldest = state.stamps, state.oldest
        if tick - stamps[oldest] >= self.period:
            stamps[oldest] = tick
            state.oldest = oldest + 1 if oldest + 1 < len(stamps) else 0
        else:
            stamps.insert(oldest, tick)
            state.oldest = oldest + 1
        return state

    def grow(self, ring: AdmissionRing, now_ns: int) -> None:
        """Doubles a ring in which every stamp counts, at most up to the limit, by stamps that have expired.

        Doubling makes this rare for a busy key.
        """
        room = min(len(ring.stamps), self.limit - len(ring.stamps))
        ring.stamps[ring.oldest : ring.oldest] = array("q", [now_ns - self.period]) * room

    def refund(self, state: AdmissionRing, now_ns: int, cost: int) -> AdmissionRing | None:
        """Removes the oldest stamps that count: of all choices the one after which the rest counts longest.

        The newest stays if it was booked ahead: its booking may have overwritten admissions of the present
        period.
        """
        stamps, now = state.ordered(), now_ns // self.tick_ns
        removed = self.expired(state, now) + cost
        if stamps and self.age(stamps[-1], now) < 0:
            removed = min(removed, len(stamps) - 1)
        kept = stamps[removed:]
        return AdmissionRing(kept) if kept else None

    def status(self, state: AdmissionRing | None, now_ns: int) -> KeyStatus:
        if state is None or not state.stamps:
            return (self.limit, 0)
        if not self.compact:
            stamps, oldest, period = state.stamps, state.oldest, self.period
            newest_ns, remaining = stamps[oldest - 1], self.limit - len(stamps)
            if newest_ns > now_ns:
                remaining = 0
            elif now_ns - stamps[oldest] >= period:
                remaining += self.expired(state, now_ns)
            reset_ns = newest_ns + period - now_ns
            return (max(0, remaining), max(0, reset_ns))
        now = now_ns // self.tick_ns
        newest = self.age(state.nth(-1), now)
        live = len(state.stamps) - self.expired(state, now)
        remaining = self.limit - live if newest >= 0 else 0
        reset = max(0, self.period - newest)
        return (max(0, remaining), (now + reset) * self.tick_ns - now_ns if reset else 0)

    def with_limits(self, limit: int | None, period_ns: int | None, burst: int | None) -> LogRule:
        reject_burst(burst)
        return LogRule(limit or self.limit, period_ns or self.period_ns, self.compact)

    def pack(self, state: AdmissionRing) -> list[int]:
        return list(state.ordered())

    def unpack(self, numbers: list[int], shift_ns: int) -> AdmissionRing:
        ticks = -(-shift_ns // self.tick_ns)  # rounded up, so that a stamp does not expire too early
        return AdmissionRing(self.stamps([number + ticks for number in numbers]))

    def convert(self, old: LogRule, state: AdmissionRing, now_ns: int) -> AdmissionRing | None:
        """Keeps the newest admissions, as many as the limit."""
        now = now_ns // old.tick_ns
        # The last nanosecond of the old tick: never earlier than the admission was.
        stamps = [
            ((now - old.age(stamp, now) + 1) * old.tick_ns - 1) // self.tick_ns
            for stamp in state.ordered()[-self.limit :]
        ]
        return AdmissionRing(self.stamps(stamps)) if stamps else None


class SlidingLog(RateLimiter):
    """Sliding window log: at most `limit` requests of a key in any `period`, exactly.

    Never admits more than `limit` in (t - period, t] for any t, and refuses only what would break that, or
    would overtake a reservation. Remembers the time of each admission in the last period, so a key is as
    large as its busiest period needed: some 180 bytes, and 8 to 16 per admission. A refusal by a full log
    is the fastest decision of all limiters: it takes no mutex.

    The algorithm is the textbook's sliding window log, in a ring instead of a list. Take it up to a limit of
    a thousand or so; beyond, `TokenBucket.strict` and `Paced` keep the same promise with one number per key.

    Args:
        limit: Requests in any period at most; a whole number from 1.
        period: Seconds, or a timedelta; above 0.
        compact: True stores an admission in 4 bytes, rounded to 64 * period / 2**32 (149 ns for 10 s): never
            admits more, may refuse for two such ticks longer, and makes `allow` ten times or more as slow.
            In a store it has no effect. False by default.
        max_keys: Keys that are held at most; one million by default.
        overflow: Decides about a key that finds `max_keys` live keys: "shared", the default, counts all such
            keys as one; "deny" refuses them, "allow" admits them. `overflowed` counts their requests.
        clock: Returns the time in whole nanoseconds since any moment; `time.monotonic_ns` by default.
        name: The policy that refusals name; with a store also the name that processes share it by.
        store: A `RedisStore` for keys that several processes share; None, the default, keeps them here.

    Raises:
        ValueError: A limit or `max_keys` below 1, a period below one nanosecond, or an unknown `overflow`.

    Example:
        >>> from gatekeeper.testing import ManualClock
        >>> clock = ManualClock()
        >>> log = SlidingLog(limit=2, period=10, clock=clock)
        >>> [log.allow("acme") for _ in range(3)], log.check("acme").retry_after
        ([True, True, False], 10.0)
        >>> clock.advance(10)
        >>> log.allow("acme")
        True
    """

    __slots__ = ("_compact",)
    _keys: KeyStates[AdmissionRing]
    _rule: LogRule

    def __init__(
        self,
        limit: int,
        period: Period,
        *,
        compact: bool = False,
        max_keys: int = KEYS_MAX,
        overflow: Overflow = "shared",
        clock: NanosecondClock = time.monotonic_ns,
        name: str = "",
        store: LimiterStore | None = None,
    ) -> None:
        self._compact: Final = require_bool(compact, "compact")
        self._init(LogRule(limit, to_ns(period), compact), max_keys, overflow, clock, name, store)

    def allow(self, key: Key = "", cost: int = 1) -> bool:
        """Whether `cost` requests of `key` may pass now; if so they are counted.

        Equals `check(key, cost).allowed`, and is several times as fast for a cost of 1, unless compact.
        Raises ValueError for a negative cost.
        """
        if cost != 1 or self._compact:
            return self.check(key, cost).allowed
        keys = self._keys
        ring = keys.young.get(key)
        if ring is not None and ring.refuses_until_ns and keys.clock() < ring.refuses_until_ns:
            return False  # without the mutex: see the module's docstring
        mutex = keys.mutex
        try:
            if not mutex.acquire(False):
                keys.acquire_mutex()
            clock = keys.clock
            now_ns = clock()
            if now_ns >= keys.rotate_ns:
                keys.rotate(now_ns)
            ring = keys.young.get(key)
            if ring is None:
                return self._allow_new_key(key, now_ns)
            if ring.refuses_until_ns:
                if ring.refuses_until_ns > now_ns:
                    return False
                ring.refuses_until_ns = 0
            rule = self._rule
            stamps = ring.stamps
            oldest = ring.oldest
            if now_ns - stamps[oldest] < rule.period:
                if len(stamps) >= rule.limit:
                    ring.refuses_until_ns = stamps[oldest] + rule.period
                    return False
                rule.grow(ring, now_ns)
            stamps[oldest] = now_ns
            oldest += 1
            ring.oldest = oldest if oldest < len(stamps) else 0
            return True
        finally:
            mutex.release()

    def _allow_new_key(self, key: Key, now_ns: int) -> bool:
        """Decides about a key that is not in the young generation; the caller holds the mutex."""
        keys = self._keys
        rule = self._rule
        slot = keys.take_slot(key)
        if slot is None:
            return self._without_slot(1).allowed
        ring = keys.young.get(slot)
        if ring is None:
            keys.young[slot] = rule.spend(None, now_ns, 1)
            return True
        if rule.wait_ns(ring, now_ns, 1) != 0:
            return False
        # When a key moves to the young generation (`KeyStates`), expired stamps are dropped, so that a busy
        # hour is not kept forever. In a new ring, so that an exception raised by a signal handler cannot
        # leave an empty one behind.
        kept = AdmissionRing(ring.ordered()[rule.expired(ring, now_ns) :])
        keys.young[slot] = rule.spend(kept, now_ns, 1)
        return True
