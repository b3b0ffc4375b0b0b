"""Compares running totals with the buckets that they add up, for windows that are open.

A total of a past window is never judged again, and the minutes that it added up may be joined into wider
buckets, which do not end where a window does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.counting.sql_joins import bounded_join
from analyzer.judging.activation_steps import decode_steps, filled_to
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.sql.totals import judged_series
from analyzer.judging.totals import is_by_caller
from analyzer.kernel.database.engine import without_scans
from analyzer.kernel.tables.schema import buckets, totals
from analyzer.plan.catalog import Catalog, MeterColumn
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.meters import MINUTE_S, WIDTHS_S
from analyzer.plan.plan import Plan
from analyzer.plan.sums import Sum, total_key
from analyzer.plan.windows import Calendar, Window, window_at


class OpenSum(NamedTuple):
    """The totals of one sum in the window that is open."""

    sum: Sum
    number: int
    window: Window


class TotalDifference(NamedTuple):
    """A total that is not what its buckets add up to."""

    key: str
    resource: str
    counted: int  # in the buckets
    used: int  # in the total; 0 where there is none


def open_sums(plan: Plan, pending: str, catalog: Catalog, now_s: int) -> list[OpenSum]:
    """Returns the sums of a plan whose totals must equal the buckets: of calendar windows, when filled.

    Distinct values are in no bucket. The windows of callers have no common start, so totals are not compared.

    `pending` are the plan's unfinished steps as they are stored.
    """
    numbers = plan_sums(plan).numbers(catalog.sum_number)
    filling = filled_to(decode_steps(pending), numbers)
    return [
        OpenSum(sum_, numbers[sum_], window_at(sum_.window, now_s))
        for sum_ in sorted(numbers, key=total_key)
        if sum_ not in filling and isinstance(sum_.window, Calendar) and sum_.joined.in_buckets
        if not is_by_caller(sum_)
    ]


def differing_totals(
    db: sa.Connection, catalog: Catalog, open_sum: OpenSum, most: int
) -> list[TotalDifference] | None:
    """Returns up to `most` totals that differ from the buckets, by key; None where they cannot be compared.

    They cannot where minutes of the window were joined into wider buckets. Must run in a snapshot.
    """
    without_scans(db)
    meter, grouping = catalog.meters[open_sum.sum.meter], catalog.groupings[open_sum.sum.grouping]
    if _has_wider(db, grouping, meter, open_sum.window):
        return None
    counted = sa.select(
        buckets.c.key,
        buckets.c.resource,
        sa.func.coalesce(buckets.c[f"value_{meter.place}"], 0).label("counted"),
        sa.literal(0, sa.BigInteger).label("used"),
    ).where(
        *_of_meter(grouping, meter, MINUTE_S),
        buckets.c.bucket_s >= open_sum.window.start_s,
        buckets.c.bucket_s < open_sum.window.until_s,
    )
    used = sa.select(
        totals.c.key, totals.c.resource, sa.literal(0, sa.BigInteger).label("counted"), totals.c.used
    ).where(totals.c.sum == open_sum.number, totals.c.window_s == open_sum.window.start_s)
    rows = sa.union_all(counted, used).subquery().c
    in_buckets, stored = bounded_join(open_sum.sum.join, rows.counted), sa.func.max(rows.used)
    statement = (
        sa.select(rows.key, rows.resource, in_buckets, stored)
        .where(*judged_series(parse_grouping(open_sum.sum.grouping), rows.key, rows.resource))
        .group_by(rows.key, rows.resource)
        .having(in_buckets != stored)
        .order_by(rows.key, rows.resource)
        .limit(most)
    )
    return [TotalDifference(key, resource, int(n), int(m)) for key, resource, n, m in db.execute(statement)]


def _has_wider(db: sa.Connection, grouping: int, meter: MeterColumn, window: Window) -> bool:
    """Whether a bucket of more than a minute overlaps the window."""
    return any(
        db.execute(
            sa.select(buckets.c.bucket_s)
            .where(
                *_of_meter(grouping, meter, width_s),
                buckets.c.bucket_s > window.start_s - width_s,
                buckets.c.bucket_s < window.until_s,
            )
            .limit(1)
        ).first()
        for width_s in WIDTHS_S
        if width_s > MINUTE_S
    )


def _of_meter(grouping: int, meter: MeterColumn, width_s: int) -> Iterator[sa.ColumnElement[bool]]:
    yield buckets.c.grouping == grouping
    yield buckets.c.page == meter.page
    yield buckets.c.width_s == width_s
