"""The marks with which policies about noisy neighbours compare a load, each as the bounds of one slot.

A share compares the load of a series with its whole, a capacity the load of the whole with what the resource
can bear, and a usual share the load of a series with what it had at this hour of the weeks before. The
product adds up slots that are up to one longer than the window, and stretches capacities and usual loads as
much.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from statistics import median_low
from typing import NamedTuple

from analyzer.plan.policies import CapacityShare, LoadShare, UsualShare
from tests.simulation.policies.sliding_sums import Entry, exact, slot_s_of, widest

WHOLE = 1_000_000
HOUR_S, WEEK_S = 3_600, 7 * 86_400
WEEKS = range(1, 9)
Compared = LoadShare | CapacityShare | UsualShare


class Marks(NamedTuple):
    """A load and the marks that it is compared with: each between two bounds."""

    least: float
    most: float
    limit_least: float
    limit_most: float
    release_least: float
    release_most: float

    @property
    def may_be_over(self) -> bool:
        return self.most > self.limit_least

    @property
    def is_over(self) -> bool:
        return self.least > self.limit_most

    @property
    def must_stay(self) -> bool:
        """Whether it is above the release however its slots lie."""
        return self.least >= self.release_most

    @property
    def must_end(self) -> bool:
        """Whether it is below the release however its slots lie."""
        return self.most < self.release_least


def marks_of(
    policy: Compared, entries: Sequence[Entry], whole: Sequence[Entry], per_hour: int | None, now_s: int
) -> Marks:
    """Returns the marks of a series with these records; `per_hour` is its usual load, None: it has none."""
    if isinstance(policy, LoadShare):
        of = exact(policy, whole, now_s) / WHOLE, widest(policy, whole, now_s) / WHOLE
        limits = [policy.limit * part for part in of]
        releases = [policy.release * part for part in of]
    else:
        period_s = policy.window.period_s
        stretch = 1.0, (period_s + slot_s_of(policy)) / period_s
        if isinstance(policy, CapacityShare):
            entries, mark = whole, float(policy.limit)
        else:
            mark = inf if per_hour is None else per_hour * policy.limit / 1_000 * period_s / HOUR_S
        floor = policy.floor if isinstance(policy, UsualShare) else 0
        limits = [mark * factor for factor in stretch]
        releases = [max(limit, floor) * policy.release / WHOLE for limit in limits]
    return Marks(exact(policy, entries, now_s), widest(policy, entries, now_s), *limits, *releases)


def usual_per_hour(minutes: Sequence[tuple[int, int]], now_s: int) -> int | None:
    """Returns the median of this hour in the weeks that had something, two at least; None: fewer had.

    `minutes` has the starts and the amounts of the minutes of a series.
    """
    hour_s = now_s - now_s % HOUR_S
    weeks = [
        sum(
            amount
            for at_s, amount in minutes
            if hour_s - week * WEEK_S <= at_s < hour_s - week * WEEK_S + HOUR_S
        )
        for week in WEEKS
    ]
    found = [amount for amount in weeks if amount]
    return median_low(found) if len(found) > 1 else None
