"""Days as operators see them: state, cut, what was booked since."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from analyzer.billing.days.day_rows import COLUMNS, Day, stored_days
from analyzer.kernel.database.engine import reading
from analyzer.kernel.database.partition_keys import partition_columns
from analyzer.kernel.model import Partition
from analyzer.kernel.tables.billing_tables import adjustments, corrections, day_positions, days, deleted_days


class DayStatus(NamedTuple):
    """A day, and how many rows were booked on other days because of it."""

    day: Day
    adjusted: int  # rows of late records
    corrected: int  # amounts by operators
    deleted_ms: int | None  # when its rows were deleted after their retention; None: they are there


class DayPosition(NamedTuple):
    """The target of a partition for a day, and its position when the day was cut."""

    part: Partition
    target: int | None  # None: it needed none
    cut: int | None  # None: nothing of it was counted yet
    left_out: str  # why the day did not wait for it
    who: str
    is_gone: bool  # the log did not exist any more


def day_statuses(
    engine: sa.Engine, zone: str | None = None, newest: int | None = None, date: str | None = None
) -> list[DayStatus]:
    """Returns the stored days, the newest last; of a zone, of a date, or so many. Raises StoreAway."""
    counts = [
        sa.select(sa.func.count()).where(table.c.day == days.c.id).scalar_subquery()
        for table in (adjustments, corrections)
    ]
    statement = (
        sa.select(*COLUMNS, *counts, deleted_days.c.at_ms)
        .join(deleted_days, deleted_days.c.day == days.c.id, isouter=True)
        .order_by(days.c.begin_s.desc(), days.c.zone)
    )
    if zone is not None:
        statement = statement.where(days.c.zone == zone)
    if date is not None:
        statement = statement.where(days.c.date == date)
    if newest is not None:
        statement = statement.limit(newest)
    with reading(engine) as db:
        rows = db.execute(statement).all()
    return [DayStatus(Day.of_row(row[:-3]), *row[-3:]) for row in reversed(rows)]


def open_days(engine: sa.Engine) -> list[Day]:
    """Returns the open day of each zone. Raises StoreAway."""
    with reading(engine) as db:
        return stored_days(db, days.c.state == "open")


def stored_positions(engine: sa.Engine, day: Day) -> list[DayPosition]:
    """Returns the positions of a day, by topic and number. Raises StoreAway."""
    columns = day_positions.c
    statement = (
        sa.select(
            *partition_columns(day_positions),
            columns.target,
            columns.cut,
            columns.left_out,
            columns.who,
            columns.is_gone,
        )
        .where(columns.day == day.id)
        .order_by(columns.topic, columns.partition, columns.cluster, columns.topic_id)
    )
    with reading(engine) as db:
        return [DayPosition(Partition(*row[:5]), *row[5:9], bool(row[9])) for row in db.execute(statement)]
