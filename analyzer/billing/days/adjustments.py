"""Adjustments: what a flush counts of days that are cut, booked on the open day of each zone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.billing.days.day_rows import COLUMNS, Day
from analyzer.billing.days.references import store_references
from analyzer.counting.buckets import column_increments, column_pages, joining
from analyzer.kernel.database.row_parameters import ColumnValues, upsert_columns
from analyzer.kernel.model import CountTable
from analyzer.kernel.tables.billing_tables import adjustments, days
from analyzer.plan.catalog import Catalog
from analyzer.plan.meters import JOINS


class CutDay(NamedTuple):
    """A day that is closed, or being closed, and the id of the day that its adjustments are booked on."""

    day: Day
    booked: int


def add_adjustments(
    db: sa.Connection, tables: Sequence[CountTable], catalog: Catalog, cut_until_s: int
) -> int:
    """Books what was counted of days that are cut; returns the number of rows.

    `cut_until_s` is the end of the last of these days, as the statement that locked the plan has seen it. Of
    a meter of largest values the adjustment is the largest late one.
    """
    tables = [table for table in tables if table.keys]
    earliest_s = min((table.buckets_s[0] for table in tables), default=cut_until_s)
    if earliest_s >= cut_until_s:
        return 0
    latest_s = max(table.buckets_s[-1] for table in tables)
    in_order = sorted(tables, key=lambda table: catalog.groupings[table.grouping])
    late = [
        (cut, part)
        for cut in _cut_days(db, earliest_s, latest_s)
        for table in in_order
        if table.grouping in cut.day.groupings
        for part in _of_day(table, cut.day, catalog)
    ]
    names = store_references(db, {key for _, part in late for key in part.keys})
    for cut, part in late:
        _add(db, cut, _by_reference(part, names), catalog)
    return sum(len(part.keys) for _, part in late)


def _cut_days(db: sa.Connection, earliest_s: int, latest_s: int) -> list[CutDay]:
    """Returns the days that hold buckets of this time, in the order of their ids."""
    open_days = days.alias()
    statement = (
        sa.select(*COLUMNS, open_days.c.id)
        .join(open_days, sa.and_(open_days.c.zone == days.c.zone, open_days.c.state == "open"))
        .where(days.c.state != "open", days.c.end_s > earliest_s, days.c.begin_s <= latest_s)
        .order_by(days.c.id)
    )
    return [CutDay(Day.of_row(row), booked) for *row, booked in db.execute(statement)]


def _of_day(table: CountTable, day: Day, catalog: Catalog) -> Iterator[CountTable]:
    """Yields the counts of a day, a row per series, or nothing."""
    places: dict[tuple[str, str], int] = {}
    indexes = [index for index, bucket_s in enumerate(table.buckets_s) if day.begin_s <= bucket_s < day.end_s]
    if not indexes:
        return
    row_of = [
        places.setdefault((table.keys[index], table.resources[index]), len(places)) for index in indexes
    ]
    joins = [JOINS[catalog.meters[meter].join] for meter in table.meters]

    def joined(columns: Sequence[Sequence[int]]) -> list[list[int]]:
        joined_columns = []
        for join, column in zip(joins, columns, strict=True):
            values = [0] * len(places)
            for row, index in zip(row_of, indexes, strict=True):
                values[row] = join.merge(values[row], column[index])
            joined_columns.append(values)
        return joined_columns

    yield table._replace(
        buckets_s=[day.begin_s] * len(places),
        keys=[key for key, _ in places],
        resources=[resource for _, resource in places],
        admitted=joined(table.admitted),
        denied=joined(table.denied) if table.denied else (),
    )


def _by_reference(table: CountTable, references: dict[str, str]) -> CountTable:
    """Returns the rows with references for keys, in the order in which all writers lock them."""
    keys = [references[key] for key in table.keys]
    order = sorted(range(len(keys)), key=lambda index: (keys[index], table.resources[index]))
    return table._replace(
        keys=[keys[index] for index in order],
        resources=[table.resources[index] for index in order],
        admitted=[[column[index] for index in order] for column in table.admitted],
        denied=[[column[index] for index in order] for column in table.denied],
    )


def _add(db: sa.Connection, cut: CutDay, table: CountTable, catalog: Catalog) -> None:
    for rows, joins in column_pages(table, catalog):
        values: dict[str, ColumnValues] = {
            "day": cut.day.id,
            "booked": cut.booked,
            "grouping": rows.grouping,
            "page": rows.page,
            "reference": rows.keys,
            "resource": "" if not any(rows.resources) else rows.resources,
            **column_increments(rows),
        }
        upsert_columns(db, adjustments, values, joining(rows, joins))
