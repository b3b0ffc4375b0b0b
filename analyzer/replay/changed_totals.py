"""Adds signed differences to the totals of open windows, which are judged when they grow next."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from analyzer.judging.caller_limits import Limits
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.sql.totals import add_difference
from analyzer.judging.totals import Growth
from analyzer.kernel.database.row_parameters import upsert_columns
from analyzer.kernel.tables.schema import totals
from analyzer.plan.catalog import Catalog
from analyzer.plan.plan import Plan
from analyzer.plan.sums import Sum
from analyzer.plan.windows import Calendar

SERIES = ("of_window", "of_key", "of_resource")
DELETE_BELOW_0 = sa.delete(totals).where(
    totals.c.sum == sa.bindparam("of_sum"),
    totals.c.window_s == sa.bindparam("of_window"),
    totals.c.key == sa.bindparam("of_key"),
    totals.c.resource == sa.bindparam("of_resource"),
    totals.c.used < 0,
)


def change_totals(
    db: sa.Connection, plan: Plan, limits: Limits, growth: Mapping[Sum, Growth], catalog: Catalog, now_s: int
) -> None:
    """Changes the totals of calendar windows that are open at `now_s`, in the order of `growth`.

    The slots of rolling windows are not accounts, and pass by themselves.
    """
    for sum_, grown in growth.items():
        if not isinstance(sum_.window, Calendar) or not sum_.joined.in_buckets:
            continue
        rows = [
            row
            for row in zip(grown.windows_s, grown.keys, grown.resources, grown.amounts, strict=True)
            if limits.series_window(sum_, row[1], row[0]).until_s > now_s
        ]
        if not rows:
            continue
        number, least = catalog.sum_number(sum_), plan_sums(plan).thresholds_by_sum[sum_][0]
        upsert_columns(
            db,
            totals,
            {
                "sum": number,
                "window_s": [row[0] for row in rows],
                "key": [row[1] for row in rows],
                "resource": [row[2] for row in rows],
                "used": [row[3] for row in rows],
                "next": least,
                "plan": 0,  # of none: any growth is judged
            },
            add_difference,
        )
        lowered = [dict(zip(SERIES, row, strict=False)) for row in rows if row[3] < 0]
        if lowered:  # of a series that was never judged there is no total to take anything from
            db.execute(DELETE_BELOW_0, [row | {"of_sum": number} for row in lowered])
