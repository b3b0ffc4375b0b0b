"""Closed days of which a grouping has not all requests: it came into the configuration later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.billing.days.day_rows import Day
from analyzer.counting.buckets import AUDITED
from analyzer.counting.sql_joins import bounded_sum
from analyzer.kernel.database.engine import slow_reading, without_scans
from analyzer.kernel.tables.billing_tables import frozen_counts
from analyzer.plan import catalog
from analyzer.plan.meters import REQUESTS


class IncompleteDay(NamedTuple):
    """A closed day, and how many of its requests one grouping has, denied ones included."""

    day: Day
    grouping: str
    requests: int

    def __str__(self) -> str:
        return (
            f"{self.day}: {self.requests:,} of {self.day.requests:,} requests were counted by "
            f"{self.grouping}, which was added later: the others are missing"
        )


def incomplete_days(engine: sa.Engine, days: Sequence[Day], grouping: str) -> list[IncompleteDay]:
    """Returns the days of which a grouping has not all requests. Raises StoreAway.

    Of those that were frozen by it and by callers.
    """
    compared = [day for day in days if {grouping, AUDITED} <= set(day.groupings)]
    if grouping == AUDITED or not compared:
        return []
    with slow_reading(engine) as db:
        without_scans(db)
        numbers = catalog.load(db)
        counted = [IncompleteDay(day, grouping, _requests(db, numbers, day, grouping)) for day in compared]
    return [entry for entry in counted if entry.requests != entry.day.requests]


def _requests(db: sa.Connection, numbers: catalog.Catalog, day: Day, grouping: str) -> int:
    meter = next((meter for meter in day.meters if meter.name == REQUESTS.name), None)
    if meter is None:
        return day.requests
    page, value, denied = meter.columns
    columns = frozen_counts.c
    total = bounded_sum(columns[value]) + bounded_sum(columns[denied])
    of_grouping = [
        columns.day == day.id,
        columns.grouping == numbers.groupings[grouping],
        columns.page == page,
    ]
    return int(db.execute(sa.select(total).where(*of_grouping)).scalar() or 0)
