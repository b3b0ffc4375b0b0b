"""Corrections: what was booked on some days, because earlier ones were closed already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.billing.days.day_rows import Day, stored_days
from analyzer.billing.reports.day_report import is_listed
from analyzer.counting.records.forgotten_callers import pseudonym_of
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
        known = catalog.load(db)
        corrected = {day.id: day for day in stored_days(db, days.c.zone == zone, days.c.state != "open")}
        for booked in stored_days(db, *in_time):
            found = [
                *_late(db, known, grouping, booked, corrected),
                *_by_operators(db, grouping, booked, corrected),
            ]
            found = [one for one in found if is_listed(one.meter, meter)]
            yield from sorted(found, key=lambda one: (one.day, one.name, one.resource, one.meter, one.kind))


def _named(db: sa.Connection, table: sa.Table) -> tuple[sa.ColumnElement[str], sa.FromClause]:
    name = sa.func.coalesce(referenced_names.c.name, sa.literal(pseudonym_of("")) + table.c.reference)
    same = referenced_names.c.reference == table.c.reference
    return name, table.outerjoin(referenced_names, same)


def _late(
    db: sa.Connection, known: catalog.Catalog, grouping: str, booked: Day, corrected: dict[int, Day]
) -> Iterator[BookedAmount]:
    if grouping not in known.groupings:
        return
    name, joined = _named(db, adjustments)
    of: Any = adjustments.c
    wanted = sa.select(name.label("name"), adjustments).select_from(joined)
    wanted = wanted.where(of.booked == booked.id, of.grouping == known.groupings[grouping])
    for row in db.execute(wanted).mappings():
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
    wanted = sa.select(name.label("name"), corrections).select_from(joined).order_by(corrections.c.id)
    wanted = wanted.where(corrections.c.booked == booked.id, corrections.c.grouping == grouping)
    for row in db.execute(wanted).mappings():
        day = corrected[row["day"]]
        yield BookedAmount(
            *(booked.date, booked.state == "closed", day.date, day.zone, grouping, row["name"]),
            *(row["resource"], row["meter"], row["amount"], 0),
            *("correction", row["who"], row["reason"]),
        )
