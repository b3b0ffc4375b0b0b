"""Days, zones and periods on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple
from zoneinfo import ZoneInfo

from analyzer.billing.days.day_rows import day_at
from analyzer.billing.reports.day_report import NotFrozen
from analyzer.billing.reports.own_periods import MONTH, last_of_month
from analyzer.counting.usage import counted_values
from analyzer.faces.cli.described_options import Option
from analyzer.faces.cli.exit_codes import usage_error
from analyzer.faces.cli.options import parse_time, second_at
from analyzer.plan.groupings import known_grouping

if TYPE_CHECKING:
    import sqlalchemy as sa

    from analyzer.config.settings import Settings

ZoneOption = Annotated[
    str | None,
    Option(metavar="ZONE", help="The time zone of days; default: that of [billing], if it is one."),
]
FrozenGroupingOption = Annotated[str, Option(metavar="GROUPING", help="One of the groupings of [billing].")]
MeterOption = Annotated[str | None, Option(metavar="NAME", help="Only this meter.")]
OutOption = Annotated[
    Path | None,
    Option(
        metavar="FILE",
        help="Write FILE, and FILE.manifest.json, whole or not at all; of days that are not closed "
        "day.provisional.csv for day.csv.",
    ),
]
UnitsOption = Annotated[
    bool, Option("--units", help="Also write amounts in s, GB, or units of money, beside the exact ones.")
]
RANGE = re.compile(r"(\d{4}-\d{2}-\d{2})\.\.(\d{4}-\d{2}-\d{2})")
PERIODS = ("day", "week", "month")
CORRECTIONS = "corrections"
PERIOD = "period"
LONGEST = timedelta(days=3_660)


class Dates(NamedTuple):
    """The first and the last date of a report, both included."""

    first: str
    last: str


def zone_of(settings: Settings, zone: str | None) -> str:
    """The zone of days. Exits with 2 without one, and for one that days are not closed in."""
    zones = settings.billing.zones
    if zone is None and len(zones) == 1:
        return zones[0]
    if zone not in zones:
        names = ", ".join(zones) or "there is none"
        raise usage_error(f"--zone {zone or ''}: write one of [billing] zones: {names}")
    return zone


def date_of(engine: sa.Engine, text: str, zone: str) -> str:
    """The date of a time in the zone: of `today`, of a date, of a moment. Exits with 2 if it is none."""
    return day_at(zone, second_at(engine, parse_time(text, ZoneInfo(zone))))[0]


def dates_of(engine: sa.Engine, what: str, when: str, zone: str) -> Dates:
    """The dates of a report, or of a report of corrections. Exits with 2 for a period that is none."""
    if what == CORRECTIONS:
        return _dates(engine, when, "", zone) if RANGE.fullmatch(when) else _dates(engine, "day", when, zone)
    return _dates(engine, what, when, zone)


def _dates(engine: sa.Engine, what: str, when: str, zone: str) -> Dates:
    if named := RANGE.fullmatch(what):
        first, last = (date_of(engine, text, zone) for text in named.groups())
        if first > last:
            raise usage_error(f"{what}: the first date is behind the last")
        if date.fromisoformat(last) - date.fromisoformat(first) > LONGEST:
            raise usage_error(f"{what}: a report has at most {LONGEST.days:,} days")
        return Dates(first, last)
    if what not in PERIODS:
        raise usage_error(
            f"{what}: write day, week, month, period, corrections, or dates such as 2026-11-01..2026-11-20"
        )
    month = MONTH.fullmatch(when)
    day = date.fromisoformat(date_of(engine, f"{when}-01" if month and what == "month" else when, zone))
    if what == "week":
        monday = day - timedelta(days=day.weekday())
        return Dates(str(monday), str(monday + timedelta(days=6)))
    if what == "month":
        begin = day.replace(day=1)
        following = (begin + timedelta(days=31)).replace(day=1)
        return Dates(str(begin), str(following - timedelta(days=1)))
    return Dates(str(day), str(day))


def day_of_period(engine: sa.Engine, when: str, zone: str) -> date:
    """A day of each caller's period: in it, or in the month that it begins in. Exits with 2 for neither."""
    if MONTH.fullmatch(when):
        return last_of_month(date.fromisoformat(date_of(engine, f"{when}-01", zone)))
    return date.fromisoformat(date_of(engine, when, zone))


@contextmanager
def of_known_names(engine: sa.Engine, by: str) -> Iterator[None]:
    """Exits with 2 for a grouping or a meter that closed days do not have."""
    try:
        known_grouping(by, counted_values(engine))
        yield
    except NotFrozen as error:
        raise usage_error(f"--by {by}: {error}") from error
    except LookupError as error:
        raise usage_error(f"--meter: {error.args[0]}") from error
    except ValueError as error:
        raise usage_error(f"--by {error}") from error
