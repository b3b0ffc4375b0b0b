"""Paced: never more than the limit in any period, with a counter instead of a log."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from gatekeeper.limits.engine import conveniences, decisions, persistence, reservations, waiting
from gatekeeper.limits.engine.key_states import KEYS_MAX, KeyStates
from gatekeeper.limits.engine.protocol import KeyStatus, NanosecondClock, Overflow, Period
from gatekeeper.limits.engine.units import format_seconds, reject_burst, to_ns, whole_number

# The number of a piece, and how many passed in it; as FixedWindow's state.
PeriodSlice = tuple[int, int]


@dataclass(frozen=True, slots=True)
class PacedRule:
    """The period is cut into `k` pieces, and any k + 1 pieces in a row admit `limit` together.

    A stretch of one period touches at most k + 1 pieces, so it never holds more. The permits are
    dealt to the pieces as evenly as whole numbers can: (k + 1) pieces in a row telescope to `limit`.
    """

    limit: int
    period_ns: int
    k: int
    least: int = field(init=False)  # what every piece admits; some admit one more

    def __post_init__(self) -> None:
        whole_number(self.limit, "limit")
        whole_number(self.k, "k")
        if self.k > self.period_ns:
            raise ValueError(f"k: expected at most one piece per nanosecond, got {self.k}")
        object.__setattr__(self, "least", self.limit // (self.k + 1))

    @property
    def description(self) -> str:
        return f"{self.limit} in any {format_seconds(self.period_ns)}, spread over {self.k + 1} pieces"

    @property
    def forget_after_ns(self) -> int:
        return -(-self.period_ns // self.k)

    @property
    def max_ahead_ns(self) -> None:
        return None

    def dealt(self, index: int) -> int:
        """How many piece `index` admits."""
        pieces = self.k + 1
        return -(-(index + 1) * self.limit // pieces) + -index * self.limit // pieces

    def _start_ns(self, index: int) -> int:
        return -(-index * self.period_ns // self.k)

    def _at(self, state: PeriodSlice | None, now_ns: int) -> PeriodSlice:
        index = now_ns * self.k // self.period_ns
        return (index, 0) if state is None or state[0] < index else state

    def wait_ns(self, state: PeriodSlice | None, now_ns: int, cost: int) -> int | None:
        index, used = self._at(state, now_ns)
        if self.dealt(index) - used >= cost:
            return max(0, self._start_ns(index) - now_ns)
        for later in range(index + 1, index + self.k + 2):
            if self.dealt(later) >= cost:
                return self._start_ns(later) - now_ns
        return None

    def spend(self, state: PeriodSlice | None, at_ns: int, cost: int) -> PeriodSlice:
        index, used = self._at(state, at_ns)
        return index, used + cost

    def admit(self, state: PeriodSlice | None, now_ns: int, cost: int) -> PeriodSlice | None:
        index = now_ns * self.k // self.period_ns
        used = cost
        if state is not None:
            number, before = state
            if number >= index:
                if number > index:  # booked ahead
                    return None
                used += before
        return None if used > self.least and used > self.dealt(index) else (index, used)

    def give_back(self, state: PeriodSlice, now_ns: int, cost: int) -> PeriodSlice | None:
        index, used = self._at(state, now_ns)
        return (index, used - cost) if used > cost else None

    def status(self, state: PeriodSlice | None, now_ns: int) -> KeyStatus:
        index, used = self._at(state, now_ns)
        if self._start_ns(index) > now_ns:
            return KeyStatus(0, self._start_ns(index + 1) - now_ns)
        remaining = max(0, self.dealt(index) - used)
        return KeyStatus(remaining, self._start_ns(index + 1) - now_ns if used else 0)

    def with_limits(self, limit: int | None, period_ns: int | None, burst: int | None) -> PacedRule:
        reject_burst(burst)
        return PacedRule(limit or self.limit, period_ns or self.period_ns, self.k)

    def pack(self, state: PeriodSlice) -> list[int]:
        return list(state)

    def unpack(self, numbers: list[int], shift_ns: int) -> PeriodSlice:
        number, used = numbers
        if not shift_ns:
            return number, used
        # By another clock the pieces have other numbers and are dealt otherwise: only a whole period
        # after the last piece is it sure that old and new admissions share none.
        free_ns = self._start_ns(number + 1) + shift_ns + self.period_ns
        return -(-free_ns * self.k // self.period_ns), 0

    def convert(self, old: PacedRule, state: PeriodSlice, now_ns: int) -> PeriodSlice | None:
        """What passed in the present piece counts in the present one of the new rule."""
        number, used = old._at(state, now_ns)
        start_ns = old._start_ns(number)
        if start_ns > now_ns:  # booked ahead
            return start_ns * self.k // self.period_ns, used
        return (now_ns * self.k // self.period_ns, used) if used else None


class Paced:
    """Never more than `limit` in any stretch of `period`, from one counter a key.

    Promise: exact as SlidingLog is, without its memory. The price: the period is cut into `k`
    pieces, a piece admits limit / (k + 1), so bursts wait for the next pieces and k / (k + 1) of
    the limit passes in the long run. A cost above what a piece admits never passes.
    """

    __slots__ = ("_keys", "_name", "_rule")

    def __init__(
        self,
        limit: int,
        period: Period,
        k: int = 9,
        *,
        max_keys: int = KEYS_MAX,
        overflow: Overflow = "shared",
        clock: NanosecondClock = time.monotonic_ns,
        name: str = "",
    ) -> None:
        """A limiter for each key. Raises ValueError for a limit, a period or a k below one unit."""
        self._rule = rule = PacedRule(limit, to_ns(period), k)
        self._keys: KeyStates[PeriodSlice] = KeyStates(
            rule.forget_after_ns, whole_number(max_keys, "max_keys"), overflow, clock
        )
        self._name = name

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
