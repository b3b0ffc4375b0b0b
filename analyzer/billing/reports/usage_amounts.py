"""Amounts of closed days as they are handed over: one series and meter at a time, by reference.

Closed days do not change, and references do not either. So the order of these amounts is the same at any
time, also after a caller was forgotten, and a hand-over continues where it ended. Each page is a
separate transaction: a hand-over may take hours, and an open snapshot keeps old rows from being cleaned up.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa

from analyzer.billing.days.day_rows import Day, FrozenMeter, stored_days
from analyzer.billing.reports.day_report import NotFrozen, missing_grouping
from analyzer.counting.sql_joins import bounded_sum
from analyzer.kernel.database.engine import ROWS_AT_ONCE, reading, without_scans
from analyzer.kernel.tables.billing_tables import (
    adjustments,
    corrections,
    days,
    frozen_counts,
    referenced_names,
)
from analyzer.plan import catalog
from analyzer.plan.derived_meters import is_stated

# "live": increments that were pushed before the day was closed, see billing/hand_over/live_usage.py.
AmountKind = Literal["frozen", "late", "correction", "live"]
COUNTED: tuple[AmountKind, ...] = ("frozen",)
BOOKED: tuple[AmountKind, ...] = ("late", "correction")
SUFFIXES = {
    "frozen": "",
    "late": ", late",
    "correction": ", corrections",
    "live": ", live",
}  # of a meter, in sentences

UsagePlace = tuple[str | int, ...]  # of an amount in its part; amounts are in this order


class UsagePart(NamedTuple):
    """The amounts of one meter and day that are handed over in one order."""

    day: Day  # for late amounts and corrections, the day that they are booked on
    grouping: str
    meter: str
    join: str
    kind: AmountKind

    def __str__(self) -> str:
        return f"{self.day}: {self.meter}{SUFFIXES[self.kind]}"


class UsageAmount(NamedTuple):
    """An amount of a series."""

    day: str  # date of the day that it belongs to
    reference: str
    name: str | None  # None: of a caller that was forgotten
    resource: str
    value: int  # of a correction, perhaps negative
    denied: int
    number: int  # of the correction, or of the increment; 0 of counts
    place: UsagePlace


class PartTotal(NamedTuple):
    """The size of a part."""

    amounts: int
    value: int


def usage_parts(
    engine: sa.Engine,
    zone: str,
    dates: Collection[str],
    grouping: str,
    meter: str | None,
    kinds: Collection[AmountKind],
) -> list[UsagePart]:
    """Returns the parts of closed days, by day, kind and meter; those of days that are not closed are left
    out.

    Without `meter`, of those that reports list. Raises NotFrozen when a day has no rows by this grouping,
    LookupError when no day has the meter, StoreAway.
    """
    with reading(engine) as db:
        in_zone = (days.c.zone == zone, days.c.state == "closed")
        all_closed = stored_days(db, *in_zone)
    chosen_days = [day for day in all_closed if day.date in dates]
    parts = []
    for day in chosen_days:
        # Corrections are of any earlier day, and have its meters.
        earlier_days = [] if "frozen" in kinds else [earlier for earlier in all_closed if earlier.id < day.id]
        if "frozen" in kinds and grouping not in day.groupings:
            raise NotFrozen(missing_grouping(day, grouping, all_closed))
        meters = {
            frozen_meter.name: frozen_meter
            for with_meters in (*earlier_days, day)
            for frozen_meter in with_meters.meters
        }
        names = [name for name in sorted(meters) if name == meter or (meter is None and is_stated(name))]
        parts += [UsagePart(day, grouping, name, meters[name].join, kind) for kind in kinds for name in names]
    if meter is not None and chosen_days and not parts:
        raise LookupError(f"{meter} was never counted on these days")
    return parts


def usage_amounts(engine: sa.Engine, part: UsagePart, place: UsagePlace = ()) -> Iterator[UsageAmount]:
    """Yields the amounts of a part that stand after a place, without those that are 0. Raises StoreAway."""
    read = {"frozen": _frozen, "late": _late, "correction": _corrections}[part.kind]
    while True:
        with reading(engine) as db:
            without_scans(db)
            page = read(db, part, place)
        yield from page
        if len(page) < ROWS_AT_ONCE:
            return
        place = page[-1].place


def part_total(db: sa.Connection, part: UsagePart, place: UsagePlace = ()) -> PartTotal:
    """Returns how many amounts of a part stand after a place, and their sum, without those that are 0."""
    totals = [db.execute(statement).one() for statement in _totals(db, part, place)]
    return PartTotal(sum(int(row[0]) for row in totals), sum(int(row[1] or 0) for row in totals))


def _totals(db: sa.Connection, part: UsagePart, place: UsagePlace) -> Iterator[sa.Select[Any]]:
    if part.kind == "correction":
        behind = _of_corrections(part, place)
        yield sa.select(sa.func.count(), bounded_sum(corrections.c.amount)).where(*behind)
        return
    table = frozen_counts if part.kind == "frozen" else adjustments
    whole = ((day, meter, place) for day, meter in _own(part))
    for day, meter, begin in _corrected_behind(db, part, place) if part.kind == "late" else whole:
        value = table.c[meter.columns[1]]
        rows = [*_of_counts(db, table, part, day, meter), *_behind(table, begin)]
        yield sa.select(sa.func.count(), bounded_sum(value)).where(*rows)


def _own(part: UsagePart) -> Iterator[tuple[Day, FrozenMeter]]:
    yield from ((part.day, meter) for meter in part.day.meters if meter.name == part.meter)


def _corrected(db: sa.Connection, part: UsagePart) -> Iterator[tuple[Day, FrozenMeter]]:
    """Yields the days that have late amounts booked on the day of a part, by their ids."""
    of_day = sa.select(adjustments.c.day).where(adjustments.c.booked == part.day.id).distinct()
    for day in sorted(stored_days(db, days.c.id.in_(of_day)), key=lambda day: day.id):
        yield from ((day, meter) for meter in day.meters if meter.name == part.meter)


def _corrected_behind(
    db: sa.Connection, part: UsagePart, place: UsagePlace
) -> Iterator[tuple[Day, FrozenMeter, UsagePlace]]:
    """Yields the days that have late amounts after a place, each with the place at which it begins."""
    reached = int(place[0]) if place else 0
    for day, meter in _corrected(db, part):
        if day.id >= reached:
            yield day, meter, place if day.id == reached else ()


def _behind(table: sa.Table, place: UsagePlace) -> Iterator[sa.ColumnElement[bool]]:
    """Yields the condition of the rows of one day that stand after a place."""
    if place:
        columns = table.c
        yield sa.tuple_(columns.reference, columns.resource) > sa.tuple_(*map(sa.literal, place[-2:]))


def _of_counts(
    db: sa.Connection, table: sa.Table, part: UsagePart, day: Day, meter: FrozenMeter
) -> list[sa.ColumnElement[bool]]:
    """Returns the conditions of the rows of one day and meter."""
    page, value, _ = meter.columns
    number = catalog.load(db).groupings.get(part.grouping, -1)
    conditions = [table.c.grouping == number, table.c.page == page, table.c[value] != 0]
    if table is adjustments:
        conditions.append(table.c.booked == part.day.id)
    return [table.c.day == day.id, *conditions]


def _name_query(table: sa.Table) -> sa.ScalarSelect[str]:
    """Returns the name of a row's reference, by one look-up for each row: no page reads all names."""
    names = referenced_names.c
    return sa.select(names.name).where(names.reference == table.c.reference).scalar_subquery()


def _read_page(
    db: sa.Connection,
    table: sa.Table,
    rows: Sequence[sa.ColumnElement[bool]],
    day: Day,
    meter: FrozenMeter,
    place: UsagePlace,
    most: int,
) -> list[UsageAmount]:
    columns = table.c
    _, value, denied = meter.columns
    statement = (
        sa.select(
            columns.reference,
            _name_query(table),
            columns.resource,
            columns[value],
            sa.func.coalesce(columns[denied], 0),
        )
        .where(*rows, *_behind(table, place))
        .order_by(columns.reference, columns.resource)
        .limit(most)
    )
    in_front: UsagePlace = (day.id,) if table is adjustments else ()
    return [
        UsageAmount(day.date, reference, name, resource, value, denied, 0, (*in_front, reference, resource))
        for reference, name, resource, value, denied in db.execute(statement)
    ]


def _frozen(db: sa.Connection, part: UsagePart, place: UsagePlace) -> list[UsageAmount]:
    return [
        amount
        for day, meter in _own(part)
        for amount in _read_page(
            *(db, frozen_counts, _of_counts(db, frozen_counts, part, day, meter), day, meter),
            *(place, ROWS_AT_ONCE),
        )
    ]


def _late(db: sa.Connection, part: UsagePart, place: UsagePlace) -> list[UsageAmount]:
    amounts: list[UsageAmount] = []
    for day, meter, begin in _corrected_behind(db, part, place):
        rows = _of_counts(db, adjustments, part, day, meter)
        amounts += _read_page(db, adjustments, rows, day, meter, begin, ROWS_AT_ONCE - len(amounts))
        if len(amounts) >= ROWS_AT_ONCE:
            break
    return amounts


def _of_corrections(part: UsagePart, place: UsagePlace) -> list[sa.ColumnElement[bool]]:
    columns = corrections.c
    of_part = [columns.booked == part.day.id, columns.grouping == part.grouping, columns.meter == part.meter]
    return [*of_part, columns.id > (place[0] if place else 0)]


def _corrections(db: sa.Connection, part: UsagePart, place: UsagePlace) -> list[UsageAmount]:
    columns = corrections.c
    statement = (
        sa.select(
            days.c.date,
            columns.reference,
            _name_query(corrections),
            columns.resource,
            columns.amount,
            columns.id,
        )
        .join(days, days.c.id == columns.day)
        .where(*_of_corrections(part, place))
        .order_by(columns.id)
        .limit(ROWS_AT_ONCE)
    )
    return [
        UsageAmount(date, reference, name, resource, amount, 0, number, (number,))
        for date, reference, name, resource, amount, number in db.execute(statement)
    ]


def place_text(place: UsagePlace) -> str:
    """Returns a place as it is stored; "" for the begin of a part."""
    return json.dumps(place, ensure_ascii=False) if place else ""


def parse_place(text: str) -> UsagePlace:
    """Returns the place that `place_text` has written; another text is a place that no amount has."""
    try:
        return tuple(json.loads(text)) if text else ()
    except (ValueError, TypeError):
        return (text,)


def is_place(kind: AmountKind, place: UsagePlace) -> bool:
    """Whether an amount of a kind can have a place, or the place is the begin of a part."""
    types = {"frozen": (str, str), "late": (int, str, str), "correction": (int,)}
    return place == () or tuple(map(type, place)) == types.get(kind)
