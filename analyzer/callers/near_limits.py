"""Which series are near to the limit of a policy in its present window, and how far the others are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.judging.caller_limits import Limits
from analyzer.judging.kinds import policy_kind
from analyzer.judging.sql.directory import newest, read_limits
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import slow_reading, without_scans
from analyzer.kernel.tables.schema import totals
from analyzer.plan import catalog
from analyzer.plan.plan import Plan
from analyzer.plan.policies import Policy, for_resource
from analyzer.plan.sums import sum_text
from analyzer.plan.windows import Calendar

SERIES_MAX = 200_000  # that are read, in the order of their names
LISTED_MAX = 500  # those that have used most
NEAR = 0.5  # of the limit: from which on a series is listed
TENTHS = 11  # of a limit; the last one stands for all of it and more


class NearSeries(NamedTuple):
    """A series, and what it has used of its limit."""

    key: str
    resource: str
    used: int
    limit: int

    @property
    def part(self) -> float:
        return self.used / self.limit if self.limit else 1.0


class LimitUse(NamedTuple):
    """The series of a policy by what they have used of its limit.

    Attributes:
        near: Those that have used at least `NEAR` of their limit, the nearest first.
        tenths: How many series have used so many tenths of the policy's limit, all of it in the last place.
        series: How many were read.
        is_cut: Whether there are more.
    """

    near: Sequence[NearSeries]
    tenths: Sequence[int]
    series: int
    is_cut: bool


def limit_use(engine: sa.Engine, plan: Plan, policy: Policy) -> LimitUse | None:
    """Returns how the series of a policy stand at this time.

    None for a policy whose window rolls, or begins at another time for each caller. Raises StoreAway.
    """
    kind = policy_kind(policy)
    sum_ = kind.judged_sum(policy)
    if not isinstance(sum_.window, Calendar) or sum_.window.facts or kind.whole_sum is not None:
        return None
    with slow_reading(engine) as db:
        number = catalog.load(db).sums.get(sum_text(sum_))
        if number is None:  # nothing was counted by it yet
            return LimitUse((), [0] * TENTHS, 0, is_cut=False)
        without_scans(db)
        start_s = read_limits(db, plan, newest(db), ()).series_window(sum_, "", clock_ms(db) // 1000).start_s
        columns = totals.c
        of_window = (
            sa.select(columns.key, columns.resource, columns.used)
            .where(columns.sum == number, columns.window_s == start_s)
            .limit(SERIES_MAX + 1)
            .subquery()
        )
        tenths = Counter[int]()
        place = of_window.c.used * 10 // max(1, policy.limit)
        bounded = sa.case((of_window.c.used >= policy.limit, TENTHS - 1), else_=place)
        for tenth, count in db.execute(sa.select(bounded, sa.func.count()).group_by(bounded)):
            tenths[min(TENTHS - 1, int(tenth))] += count
        most = sa.select(of_window).order_by(of_window.c.used.desc(), of_window.c.key).limit(LISTED_MAX)
        rows = db.execute(most).all()
        limits = read_limits(db, plan, newest(db), {row.key for row in rows})
    near = [found for row in rows if (found := _near(policy, limits, *row)) is not None]
    near.sort(key=lambda series: -series.part)
    count = sum(tenths.values())
    return LimitUse(
        near, [tenths[place] for place in range(TENTHS)], min(count, SERIES_MAX), count > SERIES_MAX
    )


def _near(policy: Policy, limits: Limits, key: str, resource: str, used: int) -> NearSeries | None:
    own = limits.of_key(policy, key)
    if own is None:
        return None
    limit = for_resource(own, resource).limit
    series = NearSeries(key, resource, used, limit)
    return series if series.part >= NEAR else None
