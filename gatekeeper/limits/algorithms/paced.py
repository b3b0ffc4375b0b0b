"""Pacing: never more than the limit in any period, with one counter instead of a log."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from gatekeeper.limits.engine.key_states import KEYS_MAX
from gatekeeper.limits.engine.protocol import KeyStatus, NanosecondClock, Overflow, Period
from gatekeeper.limits.engine.rate_limiter import AdmittingLimiter
from gatekeeper.limits.engine.units import format_seconds, reject_burst, to_ns, whole_number

# Index of a slice of the period, and requests that passed in it. A tuple for speed, as in
# `fixed_window.WindowState`.
PeriodSlice = tuple[int, int]


@dataclass(frozen=True, slots=True)
class PacedRule:
    """The period is cut into `k` slices, and any k + 1 slices in a row admit `limit` together.

    A stretch of one period touches at most k + 1 slices, so it never holds more. Permits are dealt to the
    slices as evenly as whole numbers can be: the quotas of k + 1 slices in a row add up to exactly `limit` (a
    telescoping sum).

    A key is forgotten once its slice is over, because the quotas of the next slices allow for what it used.
    So slices never move against real time: by a clock that started again, `offset_ns` keeps them in place.
    """

    limit: int
    period_ns: int
    k: int
    offset_ns: int = 0  # from the limiter's clock to the one that slices are counted by
    slices: int = field(init=False)  # that admit `limit` together
    smallest_quota: int = field(init=False)  # every slice admits these
    larger_quotas: int = field(init=False)  # of `slices` in a row, as many admit one more

    def __post_init__(self) -> None:
        whole_number(self.limit, "limit")
        whole_number(self.k, "k")
        if self.k > self.period_ns:
            raise ValueError(f"k: expected at most one slice per nanosecond, got {self.k}")
        smallest_quota, larger_quotas = divmod(self.limit, self.k + 1)
        derived = {"slices": self.k + 1, "smallest_quota": smallest_quota, "larger_quotas": larger_quotas}
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @property
    def decision_limit(self) -> int:
        return self.limit

    @property
    def description(self) -> str:
        return f"{self.limit} in any {format_seconds(self.period_ns)}, spread over {self.slices} slices"

    @property
    def forget_after_ns(self) -> int:
        return -(-self.period_ns // self.k)

    @property
    def max_ahead_ns(self) -> None:
        return None

    def quota(self, index: int) -> int:
        """Returns how many requests slice `index` admits.

        That is ceil((index + 1) * limit / slices) - ceil(index * limit / slices), with one division.
        """
        return self.smallest_quota + (-index * self.limit % self.slices < self.larger_quotas)

    def _start_ns(self, index: int) -> int:
        return -(-index * self.period_ns // self.k) - self.offset_ns

    def _slice_at(self, state: PeriodSlice | None, now_ns: int) -> PeriodSlice:
        index = (now_ns + self.offset_ns) * self.k // self.period_ns
        return (index, 0) if state is None or state[0] < index else state

    def wait_ns(self, state: PeriodSlice | None, now_ns: int, cost: int) -> int | None:
        index, used = self._slice_at(state, now_ns)
        if self.quota(index) - used >= cost:
            return max(0, self._start_ns(index) - now_ns)
        for later in range(index + 1, index + self.k + 2):
            if self.quota(later) >= cost:
                return self._start_ns(later) - now_ns
        return None

    def spend(self, state: PeriodSlice | None, at_ns: int, cost: int) -> PeriodSlice:
        index, used = self._slice_at(state, at_ns)
        return index, used + cost

    def admit(self, state: PeriodSlice | None, now_ns: int, cost: int) -> PeriodSlice | None:
        if self.offset_ns:  # asked first, which is cheaper than adding 0
            now_ns += self.offset_ns
        index = now_ns * self.k // self.period_ns
        if state is not None:
            stored_index, used = state
            if stored_index == index:
                cost += used
            elif stored_index > index:  # booked ahead
                return None
        return None if cost > self.smallest_quota and cost > self.quota(index) else (index, cost)

    def refund(self, state: PeriodSlice, now_ns: int, cost: int) -> PeriodSlice | None:
        """Gives back permits of the present slice; nothing while a booking lies ahead: see `WindowRule`."""
        index, used = self._slice_at(state, now_ns)
        if self._start_ns(index) > now_ns:
            return state
        return (index, used - cost) if used > cost else None

    def status(self, state: PeriodSlice | None, now_ns: int) -> KeyStatus:
        index, used = self._slice_at(state, now_ns)
        if self._start_ns(index) > now_ns:
            return (0, self._start_ns(index + 1) - now_ns)
        remaining = max(0, self.quota(index) - used)
        return (remaining, self._start_ns(index + 1) - now_ns if used else 0)

    def with_limits(self, limit: int | None, period_ns: int | None, burst: int | None) -> PacedRule:
        reject_burst(burst)
        return PacedRule(limit or self.limit, period_ns or self.period_ns, self.k, self.offset_ns)

    def pack(self, state: PeriodSlice) -> list[int]:
        return list(state)

    def unpack(self, numbers: list[int], shift_ns: int) -> PeriodSlice:
        """Returns the state unchanged: by any clock, `Paced._adopt_saved_rule` keeps the slices."""
        index, used = numbers
        return index, used

    def convert(self, old: PacedRule, state: PeriodSlice, now_ns: int) -> PeriodSlice | None:
        """Counts what passed in the present slice of `old` in the present slice of this rule."""
        index, used = old._slice_at(state, now_ns)
        start_ns = old._start_ns(index)
        if start_ns > now_ns:  # booked ahead
            return self._slice_at(None, start_ns)[0], used
        return (self._slice_at(None, now_ns)[0], used) if used else None


class Paced(AdmittingLimiter):
    """Paced counter: never more than `limit` requests of a key in any `period`, from one counter.

    As exact as `SlidingLog`, without its memory: the period is cut into `k` slices, and any k + 1 slices in a
    row admit `limit` together. The price: a slice admits limit / (k + 1), so bursts wait for the next slices,
    and k / (k + 1) of the limit passes in the long run. A cost above what a slice admits never passes.

    Costs some 95 bytes per key without the key itself. Not available with a store. `PacedRule` says why the
    bound holds.

    Args:
        limit: Requests in any period at most; a whole number from 1. Below k + 1, some slices admit none.
        period: Seconds, or a timedelta; above 0.
        k: Slices that the period is cut into; a whole number from 1, 9 by default. More slices let more of
            the limit pass, in smaller bursts.
        max_keys: Keys that are held at most; one million by default.
        overflow: Decides about a key that finds `max_keys` live keys: "shared", the default, counts all such
            keys as one; "deny" refuses them, "allow" admits them. `overflowed` counts their requests.
        clock: Returns the time in whole nanoseconds since any moment; `time.monotonic_ns` by default.
        name: The policy that refusals name.

    Raises:
        ValueError: A limit, k or `max_keys` below 1, a period below one nanosecond per slice, or an unknown
            `overflow`.

    Example:
        >>> from gatekeeper.testing import ManualClock
        >>> paced = Paced(limit=100, period=10, clock=ManualClock())
        >>> sum(paced.allow("acme") for _ in range(100)), paced.check("acme").retry_after
        (10, 1.111111112)
    """

    __slots__ = ()
    _rule: PacedRule

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
        self._init(PacedRule(limit, to_ns(period), k), max_keys, overflow, clock, name)

    def _adopt_saved_rule(self, saved_under: PacedRule, shift_ns: int) -> PacedRule:
        by_this_clock = replace(saved_under, offset_ns=saved_under.offset_ns - shift_ns)
        self._rule = replace(self._rule, offset_ns=by_this_clock.offset_ns)
        return by_this_clock
