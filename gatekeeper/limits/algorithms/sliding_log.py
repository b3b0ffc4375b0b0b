"""SlidingLog: the exact limiter, which remembers when each of the last admissions was."""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gatekeeper.limits.engine import conveniences, decisions, persistence, reservations, store_backed, waiting
from gatekeeper.limits.engine.key_states import KEYS_MAX, KeyStates
from gatekeeper.limits.engine.protocol import Key, KeyStatus, NanosecondClock, Overflow, Period
from gatekeeper.limits.engine.store_backed import LimiterStore
from gatekeeper.limits.engine.units import format_seconds, reject_burst, to_ns, whole_number

STAMP_BITS: Final = 32
STAMP_MASK: Final = (1 << STAMP_BITS) - 1
STAMP_HALF: Final = 1 << (STAMP_BITS - 1)
PERIODS_IN_STAMPS: Final = 64  # periods until a compact stamp wraps; it is dropped after 16 at most


class AdmissionRing:
    """The last admissions of one key, in a ring whose index points at the oldest.

    It is as long as it ever had to be, or twice that: an admission takes the place of the oldest when
    that has left the period, and a new place otherwise. So there is no tail to move and nothing to scan.
    """

    __slots__ = ("oldest", "shut_ns", "stamps")

    def __init__(self, stamps: array[int], oldest: int = 0) -> None:
        self.stamps = stamps
        self.oldest = oldest
        self.shut_ns = 0  # nobody passes before, whatever comes; 0 when that is not known

    def __copy__(self) -> AdmissionRing:
        return AdmissionRing(self.stamps[:], self.oldest)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AdmissionRing):
            return NotImplemented
        return self.oldest == other.oldest and self.stamps == other.stamps

    __hash__ = None  # type: ignore[assignment]  # it changes

    def nth(self, n: int) -> int:
        """The stamp of the admission before which `n` others of the ring were."""
        stamps = self.stamps
        return stamps[(self.oldest + n) % len(stamps)]

    def ordered(self) -> array[int]:
        """All stamps, the oldest first."""
        return self.stamps[self.oldest :] + self.stamps[: self.oldest]


@dataclass(frozen=True, slots=True)
class LogRule:
    """At most `limit` in any stretch of `period`, counted in ticks of `tick_ns`.

    A tick is one nanosecond. In the compact form it is a 64th of a period by 2**32, so that a
    stamp fits into four bytes and wraps; the period is then one tick longer, so that cutting
    times to ticks may refuse for up to two ticks too long and never admits one too many.
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
    def description(self) -> str:
        return f"{self.limit} in any {format_seconds(self.period_ns)}"

    @property
    def forget_after_ns(self) -> int:
        return self.period * self.tick_ns

    @property
    def max_ahead_ns(self) -> int | None:
        return 4 * self.period_ns if self.compact else None  # far enough from where a stamp wraps

    def stamps(self, ticks: list[int]) -> array[int]:
        """`ticks` as a ring keeps them."""
        if self.compact:
            return array("I", [tick & STAMP_MASK for tick in ticks])
        return array("q", ticks)

    def age(self, stamp: int, now: int) -> int:
        """Ticks from `stamp` to `now`; below 0 when it was booked ahead."""
        if self.compact:
            return ((now - stamp + STAMP_HALF) & STAMP_MASK) - STAMP_HALF
        return now - stamp

    def gone(self, ring: AdmissionRing, now: int) -> int:
        """How many of the ring's stamps have left the period."""
        if self.age(ring.stamps[ring.oldest], now) < self.period:
            return 0  # as in a busy period, and in every refusal
        return bisect_left(
            range(len(ring.stamps)), 1, key=lambda n: int(self.age(ring.nth(n), now) < self.period)
        )

    def wait_ns(self, state: AdmissionRing | None, now_ns: int, cost: int) -> int | None:
        if cost > self.limit:
            return None
        if state is None or not state.stamps or not cost:
            return 0
        now = now_ns // self.tick_ns
        # Nobody passes before a booking that still lies ahead: its place in the ring is the last.
        ticks = -self.age(state.nth(-1), now)
        needed = cost - (self.limit - len(state.stamps))
        if needed > 0:
            ticks = max(ticks, self.period - self.age(state.nth(needed - 1), now))
        return (now + ticks) * self.tick_ns - now_ns if ticks > 0 else 0

    def spend(self, state: AdmissionRing | None, at_ns: int, cost: int) -> AdmissionRing:
        at = at_ns // self.tick_ns
        if state is None or not state.stamps:
            return AdmissionRing(self.stamps([at] * cost))
        if cost > 1 or self.compact:  # none that has left the period stays: it could wrap
            state.stamps = state.ordered()[self.gone(state, at) :] + self.stamps([at] * cost)
            state.oldest = 0
            return state
        stamps, oldest = state.stamps, state.oldest
        if at - stamps[oldest] >= self.period:
            stamps[oldest] = at
            state.oldest = oldest + 1 if oldest + 1 < len(stamps) else 0
        else:
            stamps.insert(oldest, at)
            state.oldest = oldest + 1
        return state

    def grow(self, ring: AdmissionRing, now_ns: int) -> None:
        """Make room in a ring all of whose stamps count: places that have left the period already,
        as many as there are stamps, so that a busy key seldom comes here."""
        room = min(len(ring.stamps), self.limit - len(ring.stamps))
        ring.stamps[ring.oldest : ring.oldest] = array("q", [now_ns - self.period]) * room

    def give_back(self, state: AdmissionRing, now_ns: int, cost: int) -> AdmissionRing | None:
        """The oldest that still count go, so that whichever was meant, what stays counts longer."""
        kept = state.ordered()[self.gone(state, now_ns // self.tick_ns) + cost :]
        return AdmissionRing(kept) if kept else None

    def status(self, state: AdmissionRing | None, now_ns: int) -> KeyStatus:
        if state is None or not state.stamps:
            return KeyStatus(self.limit, 0)
        now = now_ns // self.tick_ns
        newest = self.age(state.nth(-1), now)
        live = len(state.stamps) - self.gone(state, now)
        remaining = self.limit - live if newest >= 0 else 0
        reset = max(0, self.period - newest)
        return KeyStatus(max(0, remaining), (now + reset) * self.tick_ns - now_ns if reset else 0)

    def with_limits(self, limit: int | None, period_ns: int | None, burst: int | None) -> LogRule:
        reject_burst(burst)
        return LogRule(limit or self.limit, period_ns or self.period_ns, self.compact)

    def pack(self, state: AdmissionRing) -> list[int]:
        return list(state.ordered())

    def unpack(self, numbers: list[int], shift_ns: int) -> AdmissionRing:
        ticks = -(-shift_ns // self.tick_ns)  # later rather than earlier
        return AdmissionRing(self.stamps([number + ticks for number in numbers]))

    def convert(self, old: LogRule, state: AdmissionRing, now_ns: int) -> AdmissionRing | None:
        """The state under this rule: the newest admissions, as many as can still matter."""
        now = now_ns // old.tick_ns
        # The last nanosecond that was cut to this tick: never earlier than the admission was.
        stamps = [
            ((now - old.age(stamp, now) + 1) * old.tick_ns - 1) // self.tick_ns
            for stamp in state.ordered()[-self.limit :]
        ]
        return AdmissionRing(self.stamps(stamps)) if stamps else None


class SlidingLog:
    """At most `limit` in any stretch of `period`: exact, at 8 bytes an admission remembered.

    Promise: never more than `limit` in (t - period, t] for any t, and no refusal unless admitting
    would break that, or would overtake a reservation. A key is as large as its busiest period
    needed. `compact=True` remembers in 4 bytes, to a 64th of a period by 2**32 (149 ns for 10 s):
    still never more, refusing for up to two such ticks longer, at some ten times the time of `allow`.
    """

    __slots__ = ("_compact", "_keys", "_name", "_rule")

    if not TYPE_CHECKING:  # for which __init__ says it all
        __new__ = store_backed.new

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
        """A limiter for each key. Raises ValueError for a limit or a period below one unit."""
        self._rule = rule = LogRule(limit, to_ns(period), compact)
        self._compact: Final = compact
        self._keys: KeyStates[AdmissionRing] = KeyStates(
            rule.forget_after_ns, whole_number(max_keys, "max_keys"), overflow, clock
        )
        self._name: Final = name
        if store is not None:
            store.attach(self)

    def allow(self, key: Key = "", cost: int = 1) -> bool:
        """Whether `cost` requests of `key` may pass now; they are counted when they may.

        `check(key, cost).allowed`, written out for speed. Raises ValueError for a negative cost.
        """
        if cost != 1 or self._compact:
            return self.check(key, cost).allowed
        keys = self._keys
        ring = keys.young.get(key)
        if ring is not None and ring.shut_ns and keys.clock() < ring.shut_ns:
            # No mutex: only time opens a ring that is shut. Whatever else makes room, as a refund
            # or another limit does, puts a new ring in its place.
            return False
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
                return self._allow_newcomer(key, now_ns)
            rule = self._rule
            stamps = ring.stamps
            oldest = ring.oldest
            if now_ns - stamps[oldest] < rule.period:
                if len(stamps) >= rule.limit:
                    ring.shut_ns = stamps[oldest] + rule.period
                    return False
                if stamps[oldest - 1] > now_ns:  # booked ahead
                    return False
                rule.grow(ring, now_ns)
            stamps[oldest] = now_ns
            oldest += 1
            ring.oldest = oldest if oldest < len(stamps) else 0
            ring.shut_ns = 0
            return True
        finally:
            mutex.release()

    def _allow_newcomer(self, key: Key, now_ns: int) -> bool:
        """The same for a key that is not among the young; the caller holds the mutex."""
        keys = self._keys
        rule = self._rule
        slot = keys.take_slot(key)
        if slot is None:
            return keys.overflow == "allow"
        ring = keys.young.get(slot)
        if ring is None:
            keys.young[slot] = rule.spend(None, now_ns, 1)
            return True
        if rule.wait_ns(ring, now_ns, 1) != 0:
            return False
        gone = rule.gone(ring, now_ns)  # once a generation, so that a busy hour is not kept for good
        ring.stamps, ring.oldest = ring.ordered()[gone:], 0
        keys.young[slot] = rule.spend(ring, now_ns, 1)
        return True

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
