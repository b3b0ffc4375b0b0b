"""Acts of operators on days: close earlier ones, leave a partition out, correct an amount."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.billing.days import targets
from analyzer.billing.days.day_rows import Day, add_day, day_window, hold_open, open_day, stored_days
from analyzer.billing.days.references import store_references
from analyzer.billing.days.signed_reasons import reason_signature
from analyzer.counting.records.forgotten_callers import make_pseudonym
from analyzer.counting.sql_joins import bounded_sum
from analyzer.judging.sql import plans
from analyzer.kernel.database import signed_rows
from analyzer.kernel.database.audit_log import record
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import NowMs, slow_reading, writing
from analyzer.kernel.database.partition_keys import is_partition
from analyzer.kernel.errors import CorrectionRefused
from analyzer.kernel.model import Partition
from analyzer.kernel.tables.billing_tables import adjustments, corrections, day_positions, days, frozen_counts
from analyzer.kernel.tables.schema import buckets
from analyzer.plan import catalog
from analyzer.plan.meters import JOINS

CLOSED = "day closed"  # the act in the audit log


class DayWithoutClosing(NamedTuple):
    """A day that cannot be closed, and why."""

    why: str


def day_to_close(
    engine: sa.Engine, zone: str, date: str, groupings: Collection[str], *, is_shown_only: bool = False
) -> Day | DayWithoutClosing:
    """Returns a day that can be closed now by `groupings`, or that is closed.

    A day before the open one that was never closed is stored as one whose closing has to begin; with
    `is_shown_only` nothing is stored. Raises ValueError for a date that the zone never had, StoreAway.
    """
    window = day_window(zone, date)
    with writing(engine) as db:
        missing = set(groupings) - catalog.load(db).groupings.keys()
        if missing:
            return DayWithoutClosing(f"nothing was counted by {', '.join(sorted(missing))} yet")
        now_s = clock_ms(db) // 1000
        if window.until_s > now_s:
            return DayWithoutClosing(f"{date} ({zone}) is not over")
        first = open_day(db, zone)
        if first is None and not is_shown_only:
            first = add_day(db, zone, now_s)
        if first is not None and window.start_s > first.begin_s:
            return DayWithoutClosing(f"{first} has to be closed before {date}")
        if not is_shown_only and first is not None and window.start_s < first.begin_s:
            add_day(db, zone, window.start_s, state="closing")
        stored = stored_days(db, days.c.zone == zone, days.c.begin_s == window.start_s)
        return next(iter(stored), Day(0, zone, date, window.start_s, window.until_s, "closing"))


class CountedSoFar(NamedTuple):
    """Requests of a day that are counted so far, admitted and denied, and their callers."""

    requests: int
    callers: int


def counted_so_far(engine: sa.Engine, day: Day) -> CountedSoFar:
    """Returns what is counted of a day that is not closed. Raises StoreAway."""
    with slow_reading(engine) as db:
        numbers = catalog.load(db)
        meter = numbers.meters["requests"]
        columns = buckets.c
        value, denied = (columns[f"{part}_{meter.place}"] for part in ("value", "denied"))
        amount = sa.func.coalesce(value, 0) + sa.func.coalesce(denied, 0)  # null: nothing of it
        statement = sa.select(
            sa.func.coalesce(bounded_sum(amount), 0), sa.func.count(columns.key.distinct())
        ).where(
            columns.grouping == numbers.groupings["caller"],
            columns.page == meter.page,
            columns.bucket_s >= day.begin_s,
            columns.bucket_s < day.end_s,
        )
        return CountedSoFar(*map(int, db.execute(statement).one()))


def record_closing(engine: sa.Engine, day: Day, who: str, reason: str) -> None:
    """Writes into the audit log that an operator closes a day. Raises StoreAway."""
    with writing(engine) as db:
        record(db, who, CLOSED, str(day), reason)


def leave_out(engine: sa.Engine, day: Day, part: Partition, who: str, reason: str) -> None:
    """Has a day not wait for a partition, unless it is cut already. Raises StoreAway."""
    with writing(engine) as db:
        if not hold_open(db, day):
            return
        targets.leave_out(db, day, part, who, reason)
        is_left_out = day_positions.c.day == day.id, is_partition(day_positions, part)
        [row] = signed_rows.rows_of(db, day_positions, *is_left_out)
        signed_rows.sign(db, signed_rows.left_out(row))
        record(db, who, "partition left out", f"{day}: {part}", reason)


class Correction(NamedTuple):
    """An amount that is added to a day."""

    grouping: str
    key: str
    resource: str
    meter: str
    amount: int  # in the stored unit; negative: taken from the day


class Corrected(NamedTuple):
    """A correction as it was stored."""

    id: int
    before: int  # the amount with all that was booked before it
    after: int
    booked: str  # date of the day that it is booked on


def correct(engine: sa.Engine, day: Day, correction: Correction, who: str, reason: str) -> Corrected:
    """Adds an amount to a closed day, booked on the open day of its zone.

    Raises CorrectionRefused if the day does not have the grouping or the meter, the meter is not a sum, or
    less than nothing would be left; StoreAway.
    """
    if day.state != "closed":
        raise CorrectionRefused(f"{day} is not closed: its numbers still change by themselves")
    meter = next((meter for meter in day.meters if meter.name == correction.meter), None)
    if meter is None or correction.grouping not in day.groupings:
        meter_names = ", ".join(sorted(meter.name for meter in day.meters))
        raise CorrectionRefused(
            f"{day} was frozen by {', '.join(day.groupings)}, with the meters {meter_names}"
        )
    if not JOINS[meter.join].adds_up:
        raise CorrectionRefused(f"{meter.name} is the largest of many values, which nothing can be added to")
    with writing(engine) as db:
        # One correction after the other, each sees those before it; and no day is cut meanwhile.
        plans.block_flushes(db)
        booked = open_day(db, day.zone)
        if booked is None:
            raise CorrectionRefused(f"{day.zone} has no open day: it is not in [billing] zones any more")
        forgotten = plans.hold_forgotten(db)
        reference = store_references(db, [correction.key], forgotten)[correction.key]
        key = make_pseudonym(reference) if reference in forgotten else correction.key
        number = catalog.load(db).groupings[correction.grouping]
        old_amount = sum(
            _amount(db, table, day, number, reference, correction.resource, meter.columns)
            for table in (frozen_counts, adjustments)
        )
        same = {"grouping": correction.grouping, "reference": reference, "resource": correction.resource}
        conditions = [
            corrections.c[name] == value for name, value in {**same, "meter": correction.meter}.items()
        ]
        booked_before = sa.select(bounded_sum(corrections.c.amount)).where(
            corrections.c.day == day.id, *conditions
        )
        old_amount += db.execute(booked_before).scalar() or 0
        new_amount = old_amount + correction.amount
        if new_amount < 0:
            has = f"{key} has {old_amount:,} {correction.meter} on {day}"
            raise CorrectionRefused(f"{has}: not so much can be taken")
        newest = sa.select(sa.func.coalesce(sa.func.max(corrections.c.id), 0) + 1).scalar_subquery()
        row = {
            "id": newest,
            "day": day.id,
            "booked": booked.id,
            "meter": correction.meter,
            "amount": correction.amount,
            "reason": reason,
            **reason_signature(reason),
        }
        added = sa.insert(corrections).values(row | same | {"who": who, "at_ms": NowMs()})
        stored = db.execute(added.returning(*corrections.c)).mappings().one()
        signed_rows.sign(db, signed_rows.correction(stored))
        about = f"{day}: {key} {correction.resource}".rstrip()
        record(db, who, "day corrected", f"{about}: {correction.amount:+,} {correction.meter}", reason)
        return Corrected(stored["id"], old_amount, new_amount, booked.date)


def _amount(
    db: sa.Connection,
    table: sa.Table,
    day: Day,
    grouping: int,
    reference: str,
    resource: str,
    columns: tuple[int, str, str],
) -> int:
    page, value, _ = columns
    table_columns = table.c
    statement = sa.select(sa.func.coalesce(bounded_sum(table_columns[value]), 0)).where(
        table_columns.day == day.id,
        table_columns.grouping == grouping,
        table_columns.page == page,
        table_columns.reference == reference,
        table_columns.resource == resource,
    )
    return int(db.execute(statement).scalar() or 0)
