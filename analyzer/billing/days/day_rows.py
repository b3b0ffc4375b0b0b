"""Days of zones as they are stored: one is open, those before it are being closed or closed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple
from zoneinfo import ZoneInfo

import sqlalchemy as sa

from analyzer.kernel.database.engine import insert
from analyzer.kernel.tables.billing_tables import days
from analyzer.kernel.tables.table_columns import COLUMNS_PER_PAGE
from analyzer.plan.windows import Calendar, Window, window_at

DayState = Literal["open", "closing", "closed"]


class FrozenMeter(NamedTuple):
    """A meter as it was called when a day was cut; its number never changes."""

    number: int
    name: str
    join: str

    @property
    def columns(self) -> tuple[int, str, str]:
        """The page, and the columns of its admitted and its denied amount."""
        page, place = divmod(self.number, COLUMNS_PER_PAGE)
        return page, f"value_{place}", f"denied_{place}"


class Day(NamedTuple):
    """A day of a zone: [begin_s, end_s), 23 to 25 hours."""

    id: int
    zone: str
    date: str  # "2026-11-20", as the zone's clocks show it
    begin_s: int
    end_s: int
    state: DayState
    groupings: tuple[str, ...] = ()  # frozen, or to be
    meters: tuple[FrozenMeter, ...] = ()
    cut_ms: int | None = None
    closed_ms: int | None = None
    rows: int = 0
    requests: int = 0  # of the callers, admitted and denied
    given: str = ""  # JSON
    digest: str = ""
    digest_before: str = ""
    digest_key: str = ""

    def __str__(self) -> str:
        return f"{self.date} ({self.zone})"

    @property
    def middle_s(self) -> int:
        """The time of its amounts in billing services: in all time zones the same date."""
        return (self.begin_s + self.end_s) // 2

    def due_ms(self, grace_s: float) -> int:
        """Returns the time at which the day is to be closed, in milliseconds since 1970."""
        return round((self.end_s + grace_s) * 1000)

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> Day:
        """Returns the day of a row with the columns of `Day`."""
        day = cls(*row)
        groupings = tuple(filter(None, str(day.groupings).split("\n")))
        meters = tuple(FrozenMeter(*meter) for meter in json.loads(str(day.meters or "[]")))
        return day._replace(groupings=groupings, meters=meters)


DIGESTS = ("digest", "digest_before", "digest_key")
COLUMNS = [days.c[name] for name in Day._fields]


def stored_days(db: sa.Connection, *conditions: sa.ColumnElement[bool]) -> list[Day]:
    """Returns the stored days that meet the conditions, by zone and time."""
    statement = sa.select(*COLUMNS).where(*conditions).order_by(days.c.zone, days.c.begin_s)
    return [Day.of_row(row) for row in db.execute(statement)]


def day_at(zone: str, at_s: int) -> tuple[str, Window]:
    """Returns the date and the stretch of the day that holds a moment.

    >>> day_at("Europe/Berlin", 1_774_746_000)  # clocks are set forward: a day of 23 hours
    ('2026-03-29', Window(start_s=1774738800, until_s=1774821600))
    """
    window = window_at(Calendar("day", zone), at_s)
    middle_s = (window.start_s + window.until_s) // 2  # clocks change at night
    return f"{datetime.fromtimestamp(middle_s, UTC).astimezone(ZoneInfo(zone)):%Y-%m-%d}", window


def day_window(zone: str, date: str) -> Window:
    """Returns the stretch of a date. Raises ValueError for one that the zone's clocks never showed."""
    noon = datetime.fromisoformat(date).replace(hour=12, tzinfo=ZoneInfo(zone))
    shown, window = day_at(zone, int(noon.timestamp()))
    if shown != date:
        raise ValueError(f"{zone} had no {date}")
    return window


def add_day(db: sa.Connection, zone: str, at_s: int, state: DayState = "open") -> Day:
    """Stores the day of a zone that holds a moment, unless it is stored; returns it."""
    date, window = day_at(zone, at_s)
    number = sa.select(sa.func.coalesce(sa.func.max(days.c.id), 0) + 1).scalar_subquery()
    row = {
        "id": number, "zone": zone, "date": date, "begin_s": window.start_s, "end_s": window.until_s,
        "state": state, **dict.fromkeys(("groupings", "meters", "given", *DIGESTS), ""),
        **dict.fromkeys(("rows", "requests"), 0),
    }  # fmt: skip
    db.execute(insert(db, days).values(row).on_conflict_do_nothing())
    [day] = stored_days(db, days.c.zone == zone, days.c.begin_s == window.start_s)
    return day


def open_day(db: sa.Connection, zone: str) -> Day | None:
    """Returns the day of the zone that corrections are booked on; None if the zone is not billed by."""
    stored = stored_days(db, days.c.zone == zone, days.c.state == "open")
    return stored[0] if stored else None


def hold_open(db: sa.Connection, day: Day) -> bool:
    """Whether a day is open, and stays so until commit."""
    is_open = sa.select(days.c.id).where(days.c.id == day.id, days.c.state == "open")
    return db.execute(is_open.with_for_update(read=True)).first() is not None
