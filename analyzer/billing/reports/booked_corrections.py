"""Corrections: what was booked on some days, because earlier ones were closed already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.billing.days.day_rows import Day, stored_days
from analyzer.billing.reports.day_report import is_listed
from analyzer.counting.records.forgotten_callers import make_pseudonym
from analyzer.kernel.database.engine import slow_reading
from analyzer.kernel.tables.billing_tables import adjustments, corrections, days, referenced_names
from analyzer.plan import catalog


class BookedAmount(NamedTuple):
    """An amount that is added to a closed day."""

    booked: str  # date of the day that it is booked on
    is_final: bool  # whether that day is closed, so that the amount cannot grow any more
    day: str  # date of the day that it corrects
    zone: str
    grouping: str
    name: str
    resource: str
    meter: str
    value: int
    denied: int
    kind: str  # "late": records that came after the cut; "correction": by an operator
    who: str
    reason: str


def booked_amounts(
    engine: sa.Engine, zone: str, first: str, last: str, grouping: str, meter: str | None = None
) -> Iterator[BookedAmount]:
    """Yields what was booked on the days from `first` to `last`, both included, of one zone.

    Of the built-in meters `requests` alone, or the one that is asked for. By the day of booking, the day that
    is corrected, name, resource and meter. Raises StoreAway.
    """
    with slow_reading(engine) as db:
        in_time = (days.c.zone == zone, days.c.date >= first, days.c.date <= last)
        numbers = catalog.load(db)
        corrected = {day.id: day for day in stored_days(db, days.c.zone == zone, days.c.state != "open")}
        for booked in stored_days(db, *in_time):
            amounts = [
                *_late(db, numbers, grouping, booked, corrected),
                *_by_operators(db, grouping, booked, corrected),
            ]
            amounts = [amount for amount in amounts if is_listed(amount.meter, meter)]
            yield from sorted(
                amounts,
                key=lambda amount: (amount.day, amount.name, amount.resource, amount.meter, amount.kind),
            )


def _named(db: sa.Connection, table: sa.Table) -> tuple[sa.ColumnElement[str], sa.FromClause]:
    name = sa.func.coalesce(referenced_names.c.name, sa.literal(make_pseudonym("")) + table.c.reference)
    same = referenced_names.c.reference == table.c.reference
    return name, table.outerjoin(referenced_names, same)


def _late(
    db: sa.Connection, numbers: catalog.Catalog, grouping: str, booked: Day, corrected: dict[int, Day]
) -> Iterator[BookedAmount]:
    if grouping not in numbers.groupings:
        return
    name, joined = _named(db, adjustments)
    columns: Any = adjustments.c
    statement = sa.select(name.label("name"), adjustments).select_from(joined)
    statement = statement.where(columns.booked == booked.id, columns.grouping == numbers.groupings[grouping])
    for row in db.execute(statement).mappings():
        day = corrected[row["day"]]
        for meter in day.meters:
            page, value, denied = meter.columns
            if page == row["page"] and (row[value] or row[denied]):
                yield BookedAmount(
                    *(booked.date, booked.state == "closed", day.date, day.zone, grouping, row["name"]),
                    *(row["resource"], meter.name, row[value] or 0, row[denied] or 0),
                    *("late", "", ""),
                )


def _by_operators(
    db: sa.Connection, grouping: str, booked: Day, corrected: dict[int, Day]
) -> Iterator[BookedAmount]:
    name, joined = _named(db, corrections)
    statement = sa.select(name.label("name"), corrections).select_from(joined).order_by(corrections.c.id)
    statement = statement.where(corrections.c.booked == booked.id, corrections.c.grouping == grouping)
    for row in db.execute(statement).mappings():
        day = corrected[row["day"]]
        yield BookedAmount(
            *(booked.date, booked.state == "closed", day.date, day.zone, grouping, row["name"]),
            *(row["resource"], row["meter"], row["amount"], 0),
            *("correction", row["who"], row["reason"]),
        )
