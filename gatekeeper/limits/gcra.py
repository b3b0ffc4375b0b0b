"""The generic cell rate algorithm (ITU-T I.371), as a virtual schedule in whole numbers."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Self

from gatekeeper.limits.protocol import Standing
from gatekeeper.limits.units import seconds_text, whole


@dataclass(frozen=True, slots=True)
class GcraRule:
    """A bucket of `burst` permits that gains `rate` of them per `period_ns`.

    The state is one number: when the bucket will be full again, in ticks of 1/`scale` ns, chosen so
    that a permit weighs a whole number of ticks. So nothing is divided, no error gathers, and a
    fresh key admits exactly `burst` for every rate and period.
    """

    limit: int  # what the user calls the limit
    rate: int
    period_ns: int
    burst: int
    scale: int  # ticks per nanosecond
    weight: int  # ticks per permit
    depth: int  # ticks of a whole bucket
    sentence: str

    @classmethod
    def of(cls, limit: int, period_ns: int, burst: int | None = None, rate: int | None = None) -> Self:
        """A rule for `burst` at once and `rate` per period; both are `limit` unless told.

        Raises ValueError for numbers that no bucket has.
        """
        whole(limit, "limit")
        burst = limit if burst is None else whole(burst, "burst")
        rate = limit if rate is None else rate
        common = gcd(rate, period_ns)
        weight = period_ns // common
        sentence = f"{rate} per {seconds_text(period_ns)}, {burst} at once"
        return cls(limit, rate, period_ns, burst, rate // common, weight, burst * weight, sentence)

    @property
    def settle_ns(self) -> int:
        return -(-self.depth // self.scale)

    def wait_ns(self, state: int | None, now_ns: int, cost: int) -> int | None:
        if cost > self.burst:
            return None
        now = now_ns * self.scale
        due = now if state is None or state < now else state
        early = due + cost * self.weight - self.depth - now
        return -(-early // self.scale) if early > 0 else 0

    def spend(self, state: int | None, at_ns: int, cost: int) -> int:
        at = at_ns * self.scale
        return (at if state is None or state < at else state) + cost * self.weight

    def give_back(self, state: int, now_ns: int, cost: int) -> int | None:
        """Counted from now on: the level falls by `cost`, to empty at most."""
        due = state - cost * self.weight
        return due if due > now_ns * self.scale else None

    def standing(self, state: int | None, now_ns: int) -> Standing:
        debt = 0 if state is None else max(0, state - now_ns * self.scale)
        remaining = max(0, (self.depth - debt) // self.weight)
        return Standing(remaining, -(-debt // self.scale))

    def adopt(self, old: GcraRule, state: int, now_ns: int) -> int | None:
        """The state under this rule: as many permits as were used under `old` stay used.

        Keeping the time instead would be wrong both ways: a spent bucket whose rate rises would
        stay shut for as long as at the old rate, and one whose rate falls would be full at once.
        """
        debt = state - now_ns * old.scale
        if debt <= 0:
            return None
        booked = max(0, debt - old.depth)
        used = min(debt, old.depth)
        spent = min(-(-used * self.weight // old.weight), self.depth)
        return now_ns * self.scale + spent + -(-booked * self.weight // old.weight)
