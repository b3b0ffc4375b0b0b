"""The usual levels of series in SQL: what the buckets have at this hour of the weeks before.

Read for series above their floor, and kept in memory for the hour: no table, no job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median_low

import sqlalchemy as sa

from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.sql.slots import select_buckets
from analyzer.judging.totals import Standing, TotalKey, UsualLevel
from analyzer.plan.catalog import Catalog
from analyzer.plan.plan import Plan
from analyzer.plan.sums import Sum
from analyzer.plan.windows import DAY_S, HOUR_S

WEEKS_MIN = 2
WEEKS_MAX = 8
KNOWN_MAX = 100_000  # series in memory
WEEK_S = 7 * DAY_S


class UsualLevels:
    """Usual levels at the present hour of the week, in UTC; of one warden."""

    def __init__(self) -> None:
        self._hour_s = 0
        self._known: dict[TotalKey, UsualLevel | None] = {}

    def read(
        self, db: sa.Connection, plan: Plan, keys: Iterable[TotalKey], catalog: Catalog, now_s: int
    ) -> None:
        """Reads the levels of those of these totals that are compared with one and whose is not known.

        For a judgement, before the totals are held: at the top of an hour all levels are new, and flushes
        would wait for them.
        """
        hour_s = now_s - now_s % HOUR_S
        if hour_s != self._hour_s or len(self._known) > KNOWN_MAX:
            self._hour_s, self._known = hour_s, {}
        for total in keys:
            if total.sum in plan_sums(plan).with_usual and total not in self._known:
                starts_s = (self._hour_s - week * WEEK_S for week in range(1, WEEKS_MAX + 1))
                hours = (_hour(db, total.sum, total.key, total.resource, at_s, catalog) for at_s in starts_s)
                self._known[total] = usual_level([amount for amount in hours if amount])

    def added_to(self, plan: Plan, standings: Sequence[Standing]) -> list[Standing]:
        """Returns the standings, those that are compared with their usual level with that, as it was read."""
        return [
            standing._replace(usual=self._known.get(standing.total))
            if standing.total.sum in plan_sums(plan).with_usual
            else standing
            for standing in standings
        ]


def usual_level(amounts: Sequence[int]) -> UsualLevel | None:
    """Returns the usual level by the amounts of some weeks; None with too few of them.

    >>> usual_level([100, 900, 120]), usual_level([100])
    (UsualLevel(per_hour=120, weeks=3), None)
    """
    return None if len(amounts) < WEEKS_MIN else UsualLevel(median_low(amounts), len(amounts))


def _hour(db: sa.Connection, sum_: Sum, key: str, resource: str, from_s: int, catalog: Catalog) -> int:
    """Returns what the minutes and quarter-hours of an hour have."""
    meter = catalog.meters[sum_.meter]
    rows = db.execute(
        select_buckets(db.dialect.name, meter.place),
        {
            "grouping": catalog.groupings[sum_.grouping],
            "page": meter.page,
            "key": key,
            "resource": resource,
            "minute_s": from_s,
            "quarter_s": from_s,
            "until_s": from_s + HOUR_S - 1,
        },
    )
    return sum(value for _, value in rows)
