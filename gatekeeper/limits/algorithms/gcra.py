"""The generic cell rate algorithm (ITU-T I.371), as a virtual schedule in whole numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd

from gatekeeper.limits.engine.protocol import KeyStatus
from gatekeeper.limits.engine.units import format_seconds, whole_number


@dataclass(frozen=True, slots=True)
class GcraRule:
    """A bucket of `burst` permits that gains `rate` of them per `period_ns`.

    The state is one number: since when, or when first, there is a permit, in ticks of 1/`scale` ns,
    chosen so that a permit weighs a whole number of ticks. So nothing is divided, no error gathers,
    and a fresh key admits exactly `burst` for every rate and period.
    """

    limit: int
    period_ns: int
    burst_asked: int | None = None  # None: as large as may be
    strict: bool = False  # never more than `limit` in any period
    burst: int = field(init=False)
    rate: int = field(init=False)  # permits per period
    scale: int = field(init=False)  # ticks per nanosecond
    weight: int = field(init=False)  # ticks per permit
    depth: int = field(init=False)  # ticks of a whole bucket
    slack: int = field(init=False)  # ticks from one permit to a whole bucket

    def __post_init__(self) -> None:
        whole_number(self.limit, "limit")
        largest = (self.limit + 1) // 2 if self.strict else self.limit
        burst = largest if self.burst_asked is None else whole_number(self.burst_asked, "burst")
        if self.strict and burst > self.limit:
            raise ValueError(f"burst: expected at most the limit of {self.limit}, got {burst}")
        rate = self.limit + 1 - burst if self.strict else self.limit
        common = gcd(rate, self.period_ns)
        weight = self.period_ns // common
        derived = {"burst": burst, "rate": rate, "scale": rate // common, "weight": weight}
        derived |= {"depth": burst * weight, "slack": (burst - 1) * weight}
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @property
    def description(self) -> str:
        return f"{self.rate} per {format_seconds(self.period_ns)}, {self.burst} at once"

    @property
    def forget_after_ns(self) -> int:
        return -(-self.depth // self.scale)

    @property
    def max_ahead_ns(self) -> None:
        return None

    def _due(self, state: int | None, now: int) -> int:
        """When the bucket is full again, `now` when it is."""
        return now if state is None or state + self.slack < now else state + self.slack

    def wait_ns(self, state: int | None, now_ns: int, cost: int) -> int | None:
        if cost > self.burst:
            return None
        now = now_ns * self.scale
        early = self._due(state, now) + cost * self.weight - self.depth - now
        return -(-early // self.scale) if early > 0 else 0

    def spend(self, state: int | None, at_ns: int, cost: int) -> int:
        return self._due(state, at_ns * self.scale) + cost * self.weight - self.slack

    def give_back(self, state: int, now_ns: int, cost: int) -> int | None:
        """Counted from now on: the level falls by `cost`, to empty at most."""
        less = state - cost * self.weight
        return less if less + self.slack > now_ns * self.scale else None

    def status(self, state: int | None, now_ns: int) -> KeyStatus:
        now = now_ns * self.scale
        debt = self._due(state, now) - now
        remaining = max(0, (self.depth - debt) // self.weight)
        return KeyStatus(remaining, -(-debt // self.scale))

    def with_limits(self, limit: int | None, period_ns: int | None, burst: int | None) -> GcraRule:
        asked = self.burst_asked if burst is None else burst
        return GcraRule(limit or self.limit, period_ns or self.period_ns, asked, self.strict)

    def pack(self, state: int) -> list[int]:
        return [state]

    def unpack(self, numbers: list[int], shift_ns: int) -> int:
        return numbers[0] + shift_ns * self.scale

    def convert(self, old: GcraRule, state: int, now_ns: int) -> int | None:
        """The state under this rule: as many permits as were used under `old` stay used.

        Keeping the time instead would be wrong both ways: a spent bucket whose rate rises would
        stay shut for as long as at the old rate, and one whose rate falls would be full at once.
        """
        debt = state + old.slack - now_ns * old.scale
        if debt <= 0:
            return None
        booked = max(0, debt - old.depth)
        used = min(debt, old.depth)
        spent = min(-(-used * self.weight // old.weight), self.depth)
        return now_ns * self.scale + spent + -(-booked * self.weight // old.weight) - self.slack
