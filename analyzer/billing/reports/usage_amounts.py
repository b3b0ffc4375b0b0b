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
from analyzer.billing.reports.day_report import NotFrozen
from analyzer.counting.sql_joins import bounded_sum
from analyzer.kernel.database.engine import ROWS_AT_ONCE, reading, slow_reading, without_scans
from analyzer.kernel.tables.billing_tables import (
    adjustments,
    corrections,
    days,
    frozen_counts,
    referenced_names,
)
from analyzer.plan import catalog
from analyzer.plan.meters import BUILT_IN

AmountKind = Literal["frozen", "late", "correction"]
COUNTED: tuple[AmountKind, ...] = ("frozen",)
BOOKED: tuple[AmountKind, ...] = ("late", "correction")

UsagePlace = tuple[str | int, ...]  # of an amount in its part; amounts are in this order


class UsagePart(NamedTuple):
    """The amounts of one meter and day that are handed over in one order."""

    day: Day  # for late amounts and corrections, the day that they are booked on
    grouping: str
    meter: str
    join: str
    kind: AmountKind

    def __str__(self) -> str:
        what = {"frozen": "", "late": ", late", "correction": ", corrections"}[self.kind]
        return f"{self.day}: {self.meter}{what}"


class UsageAmount(NamedTuple):
    """An amount of a series."""

    day: str  # date of the day that it belongs to
    reference: str
    name: str | None  # None: of a caller that was forgotten
    resource: str
    value: int  # of a correction, perhaps negative
    denied: int
    number: int  # of the correction; 0 of counts
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
    wanted = [day for day in all_closed if day.date in dates]
    built_in = {one.name for one in BUILT_IN}
    found = []
    for day in wanted:
        # Corrections are of any earlier day, and have its meters.
        others = [] if "frozen" in kinds else [other for other in all_closed if other.id < day.id]
        if "frozen" in kinds and grouping not in day.groupings:
            raise NotFrozen(f"{day} was closed by {', '.join(day.groupings)}, and not by {grouping}")
        meters = {one.name: one for with_meters in (*others, day) for one in with_meters.meters}
        names = [name for name in sorted(meters) if name == meter or (meter is None and name not in built_in)]
        found += [UsagePart(day, grouping, name, meters[name].join, kind) for kind in kinds for name in names]
    if meter is not None and wanted and not found:
        raise LookupError(f"{meter} was never counted on these days")
    return found


def usage_amounts(engine: sa.Engine, part: UsagePart, after: UsagePlace = ()) -> Iterator[UsageAmount]:
    """Yields the amounts of a part that stand after a place, without those that are 0. Raises StoreAway."""
    read = {"frozen": _frozen, "late": _late, "correction": _corrections}[part.kind]
    while True:
        with reading(engine) as db:
            without_scans(db)
            page = read(db, part, after)
        yield from page
        if len(page) < ROWS_AT_ONCE:
            return
        after = page[-1].place


def part_total(engine: sa.Engine, part: UsagePart) -> PartTotal:
    """Returns how many amounts a part has, and their sum. Raises StoreAway."""
    with slow_reading(engine) as db:
        without_scans(db)
        totals = [db.execute(wanted).one() for wanted in _totals(db, part)]
    return PartTotal(sum(int(row[0]) for row in totals), sum(int(row[1] or 0) for row in totals))


def _totals(db: sa.Connection, part: UsagePart) -> Iterator[sa.Select[Any]]:
    if part.kind == "correction":
        yield sa.select(sa.func.count(), bounded_sum(corrections.c.amount)).where(*_of_corrections(part))
        return
    table = frozen_counts if part.kind == "frozen" else adjustments
    for day, meter in _corrected(db, part) if part.kind == "late" else _own(part):
        value = table.c[meter.columns[1]]
        rows = _of_counts(db, table, part, day, meter)
        yield sa.select(sa.func.count(), bounded_sum(value)).where(*rows)


def _own(part: UsagePart) -> Iterator[tuple[Day, FrozenMeter]]:
    yield from ((part.day, meter) for meter in part.day.meters if meter.name == part.meter)


def _corrected(db: sa.Connection, part: UsagePart) -> Iterator[tuple[Day, FrozenMeter]]:
    """Yields the days that have late amounts booked on the day of a part, by their ids."""
    of_day = sa.select(adjustments.c.day).where(adjustments.c.booked == part.day.id).distinct()
    for day in sorted(stored_days(db, days.c.id.in_(of_day)), key=lambda day: day.id):
        yield from ((day, meter) for meter in day.meters if meter.name == part.meter)


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


def _name_of(table: sa.Table) -> sa.ScalarSelect[str]:
    """Returns the name of a row's reference, by one look-up for each row: no page reads all names."""
    names = referenced_names.c
    return sa.select(names.name).where(names.reference == table.c.reference).scalar_subquery()


def _page_of(
    db: sa.Connection,
    table: sa.Table,
    rows: Sequence[sa.ColumnElement[bool]],
    day: Day,
    meter: FrozenMeter,
    after: UsagePlace,
    most: int,
) -> list[UsageAmount]:
    of = table.c
    _, value, denied = meter.columns
    wanted = (
        sa.select(of.reference, _name_of(table), of.resource, of[value], sa.func.coalesce(of[denied], 0))
        .where(*rows)
        .order_by(of.reference, of.resource)
        .limit(most)
    )
    if after:
        wanted = wanted.where(sa.tuple_(of.reference, of.resource) > sa.tuple_(*map(sa.literal, after[-2:])))
    in_front: UsagePlace = (day.id,) if table is adjustments else ()
    return [
        UsageAmount(day.date, reference, name, resource, value, denied, 0, (*in_front, reference, resource))
        for reference, name, resource, value, denied in db.execute(wanted)
    ]


def _frozen(db: sa.Connection, part: UsagePart, after: UsagePlace) -> list[UsageAmount]:
    return [
        one
        for day, meter in _own(part)
        for one in _page_of(
            *(db, frozen_counts, _of_counts(db, frozen_counts, part, day, meter), day, meter),
            *(after, ROWS_AT_ONCE),
        )
    ]


def _late(db: sa.Connection, part: UsagePart, after: UsagePlace) -> list[UsageAmount]:
    found: list[UsageAmount] = []
    reached = int(after[0]) if after else 0
    for day, meter in _corrected(db, part):
        if day.id < reached:
            continue
        rows = _of_counts(db, adjustments, part, day, meter)
        begin = after if day.id == reached else ()
        found += _page_of(db, adjustments, rows, day, meter, begin, ROWS_AT_ONCE - len(found))
        if len(found) >= ROWS_AT_ONCE:
            break
    return found


def _of_corrections(part: UsagePart) -> list[sa.ColumnElement[bool]]:
    of = corrections.c
    return [of.booked == part.day.id, of.grouping == part.grouping, of.meter == part.meter]


def _corrections(db: sa.Connection, part: UsagePart, after: UsagePlace) -> list[UsageAmount]:
    of = corrections.c
    wanted = (
        sa.select(days.c.date, of.reference, _name_of(corrections), of.resource, of.amount, of.id)
        .join(days, days.c.id == of.day)
        .where(*_of_corrections(part), of.id > (after[0] if after else 0))
        .order_by(of.id)
        .limit(ROWS_AT_ONCE)
    )
    return [
        UsageAmount(date, reference, name, resource, amount, 0, number, (number,))
        for date, reference, name, resource, amount, number in db.execute(wanted)
    ]


def place_text(place: UsagePlace) -> str:
    """Returns a place as it is stored; "" for the begin of a part."""
    return json.dumps(place, ensure_ascii=False) if place else ""


def place_of(text: str) -> UsagePlace:
    """Returns the place that `place_text` has written."""
    return tuple(json.loads(text)) if text else ()
