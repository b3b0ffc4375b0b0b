"""SlidingCounter: two windows, of which the older counts by how much of it is still in sight."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gatekeeper.limits.engine import conveniences, decisions, persistence, reservations, store_backed, waiting
from gatekeeper.limits.engine.key_states import KEYS_MAX, KeyStates
from gatekeeper.limits.engine.protocol import KeyStatus, NanosecondClock, Overflow, Period
from gatekeeper.limits.engine.store_backed import LimiterStore
from gatekeeper.limits.engine.units import format_seconds, reject_burst, to_ns, whole_number

# The number of a window, and how many passed in the one before and in itself; as FixedWindow's state.
CounterPair = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class CounterRule:
    """At most `limit` by the weighted sum before * (1 - x) + used, cut to a whole number, where x
    is the part of the present window that has passed. Windows are multiples of the period."""

    limit: int
    period_ns: int

    def __post_init__(self) -> None:
        whole_number(self.limit, "limit")

    @property
    def description(self) -> str:
        return f"about {self.limit} in any {format_seconds(self.period_ns)}"

    @property
    def forget_after_ns(self) -> int:
        return 2 * self.period_ns

    @property
    def max_ahead_ns(self) -> None:
        return None

    def _at(self, state: CounterPair | None, now_ns: int) -> CounterPair:
        """The windows in sight now, or those of a booking ahead."""
        index = now_ns // self.period_ns
        if state is None or state[0] < index - 1:
            return index, 0, 0
        number, _, used = state
        return (index, used, 0) if number == index - 1 else state

    def _falls_ns(self, count: int, room: int) -> int:
        """How far into a window `count` of the one before weighs at most `room`."""
        if count <= room:
            return 0
        return self.period_ns - ((room + 1) * self.period_ns - 1) // count

    def wait_ns(self, state: CounterPair | None, now_ns: int, cost: int) -> int | None:
        if cost > self.limit:
            return None
        index, before, used = self._at(state, now_ns)
        room = self.limit - used - cost
        if room >= 0:
            at_ns = index * self.period_ns + self._falls_ns(before, room)
        else:
            at_ns = (index + 1) * self.period_ns + self._falls_ns(used, self.limit - cost)
        return max(0, at_ns - now_ns)

    def spend(self, state: CounterPair | None, at_ns: int, cost: int) -> CounterPair:
        index, before, used = self._at(state, at_ns)
        return index, before, used + cost

    def admit(self, state: CounterPair | None, now_ns: int, cost: int) -> CounterPair | None:
        period_ns = self.period_ns
        if state is not None and state[0] == now_ns // period_ns:  # mostly, and spares a call
            index, before, used = state
        else:
            index, before, used = self._at(state, now_ns)
        left_ns = (index + 1) * period_ns - now_ns
        used += cost
        if used + before * left_ns // period_ns > self.limit or left_ns > period_ns:
            return None
        return index, before, used

    def give_back(self, state: CounterPair, now_ns: int, cost: int) -> CounterPair | None:
        """The present window's go first, then those of the one before."""
        index, before, used = self._at(state, now_ns)
        rest = max(0, cost - used)
        before, used = max(0, before - rest), max(0, used - cost)
        return (index, before, used) if before or used else None

    def status(self, state: CounterPair | None, now_ns: int) -> KeyStatus:
        index, before, used = self._at(state, now_ns)
        start_ns = index * self.period_ns
        if used:
            reset_ns = start_ns + self.period_ns + self._falls_ns(used, 0) - now_ns
        else:
            reset_ns = max(0, start_ns + self._falls_ns(before, 0) - now_ns) if before else 0
        if start_ns > now_ns:
            return KeyStatus(0, reset_ns)
        weighed = before * (start_ns + self.period_ns - now_ns) // self.period_ns
        return KeyStatus(max(0, self.limit - used - weighed), reset_ns)

    def with_limits(self, limit: int | None, period_ns: int | None, burst: int | None) -> CounterRule:
        reject_burst(burst)
        return CounterRule(limit or self.limit, period_ns or self.period_ns)

    def pack(self, state: CounterPair) -> list[int]:
        return list(state)

    def unpack(self, numbers: list[int], shift_ns: int) -> CounterPair:
        number, before, used = numbers
        return number - -shift_ns // self.period_ns, before, used  # later, if not the same

    def convert(self, old: CounterRule, state: CounterPair, now_ns: int) -> CounterPair | None:
        """The counts as they are; another period puts the present windows where it has its own."""
        index, before, used = old._at(state, now_ns)
        if old.period_ns == self.period_ns:
            return index, before, used
        return now_ns // self.period_ns, before, used


class SlidingCounter:
    """About `limit` in any stretch of `period`, from two counters a key.

    Promise: never more than `limit` in a window, by the clock's whole multiples of the period, and
    no refusal unless the weighted sum of two windows would pass the limit. It is an estimate: a
    burst at the end of one window and another late in the next may put twice the limit into one
    period. Where that matters, take SlidingLog.
    """

    __slots__ = ("_keys", "_name", "_rule")

    if not TYPE_CHECKING:  # for which __init__ says it all
        __new__ = store_backed.new

    def __init__(
        self,
        limit: int,
        period: Period,
        *,
        max_keys: int = KEYS_MAX,
        overflow: Overflow = "shared",
        clock: NanosecondClock = time.monotonic_ns,
        name: str = "",
        store: LimiterStore | None = None,
    ) -> None:
        """A limiter for each key. Raises ValueError for a limit or a period below one unit."""
        self._rule = rule = CounterRule(limit, to_ns(period))
        self._keys: KeyStates[CounterPair] = KeyStates(
            rule.forget_after_ns, whole_number(max_keys, "max_keys"), overflow, clock
        )
        self._name = name
        if store is not None:
            store.attach(self)

    allow = decisions.allow
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
