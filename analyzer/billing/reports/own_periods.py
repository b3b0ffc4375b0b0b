"""Reports by subscription period: each caller's or tenant's own month, from the day of its anchor.

Days are closed in the zones of billing, so a period consists of the days of such a zone that begin in it.
Each of these days is in exactly one period of a caller.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import NamedTuple
from zoneinfo import ZoneInfo

import sqlalchemy as sa

from analyzer.billing.days.day_rows import day_at, day_window
from analyzer.billing.reports.day_report import Report, SeriesAmounts, read_report, report_rows
from analyzer.billing.reports.manifest import Contents, report_contents
from analyzer.judging.caller_limits import NO_PROFILE, Profile, fact_name
from analyzer.judging.sql.directory import HELD
from analyzer.kernel.database.engine import ROWS_AT_ONCE, slow_reading
from analyzer.kernel.tables.schema import callers
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.windows import Calendar, is_zone, window_at

MONTH = re.compile(r"[0-9]{4}-[0-9]{2}")


class OwnPeriod(NamedTuple):
    """The first and the last day of a period, dates of a zone of billing."""

    first: str
    last: str


def own_period(profile: Profile, zone: str, day: date) -> OwnPeriod:
    """Returns the period that holds a day, as the caller's clocks show it, in days of the zone `zone`.

    Without an anchor it is a month of the calendar, without a zone one of `zone`. In a month without the day
    of the anchor, it begins on the last one.

    >>> own_period(Profile(anchor="2026-01-31"), "UTC", date(2026, 2, 28))
    OwnPeriod(first='2026-02-28', last='2026-03-30')
    """
    own_zone = profile.zone if is_zone(profile.zone) else zone
    first_day = date.fromisoformat(profile.anchor).day if profile.anchor else 1
    noon = datetime(day.year, day.month, day.day, 12, tzinfo=ZoneInfo(own_zone))
    window = window_at(Calendar("month", own_zone, first_day=first_day), int(noon.timestamp()))
    after = _first_from(zone, window.until_s)
    return OwnPeriod(_first_from(zone, window.start_s), day_at(zone, day_window(zone, after).start_s - 1)[0])


def last_of_month(day: date) -> date:
    """Returns the last day of a month; the period that holds it is the one that begins in this month."""
    return day.replace(day=monthrange(day.year, day.month)[1])


def _first_from(zone: str, at_s: int) -> str:
    """Returns the date of the first day that begins at a moment or behind it."""
    date_text, window = day_at(zone, at_s)
    return date_text if window.start_s == at_s else day_at(zone, window.until_s)[0]


class PeriodReport(NamedTuple):
    """The report of one period, and the callers or tenants that have it.

    Attributes:
        report: Of the days of the period.
        period_by_name: Of all callers or tenants with facts; those without have the period `common`.
    """

    report: Report
    period_by_name: Mapping[str, OwnPeriod]
    common: OwnPeriod

    def rows(self, engine: sa.Engine) -> Iterator[SeriesAmounts]:
        """Yields the rows of those that have the period, by name and resource. Raises StoreAway."""
        grouping = parse_grouping(self.report.grouping)
        period = OwnPeriod(self.report.days[0].date, self.report.days[-1].date)
        for row in report_rows(engine, self.report):
            if self.period_by_name.get(fact_name(grouping, row.name), self.common) == period:
                yield row


def read_period_reports(
    engine: sa.Engine, zone: str, day: date, grouping: str, meter: str | None = None
) -> list[PeriodReport]:
    """Returns the reports of all periods that hold a day, by their first day.

    `grouping` is one of callers or tenants; the rows of each period are read separately. Raises NotFrozen,
    LookupError and ValueError as `read_report` does, StoreAway.
    """
    common = own_period(NO_PROFILE, zone, day)
    period_by_facts: dict[tuple[str, str], OwnPeriod] = {}
    period_by_name = {}
    for name, *facts in _zones_and_anchors(engine):
        own_zone, anchor = facts
        key = own_zone, anchor[-2:]
        if key not in period_by_facts:
            period_by_facts[key] = own_period(Profile(zone=own_zone, anchor=anchor), zone, day)
        period_by_name[name] = period_by_facts[key]
    return [
        PeriodReport(read_report(engine, zone, *period, grouping, meter), period_by_name, common)
        for period in sorted({common, *period_by_facts.values()})
    ]


def _zones_and_anchors(engine: sa.Engine) -> Iterator[tuple[str, str, str]]:
    """Yields the callers and tenants that have a zone or an anchor."""
    held = HELD["zone"].element, HELD["anchor"].element
    statement = sa.select(callers.c.caller, *held).where(sa.or_(*(fact != "" for fact in held)))
    with (
        slow_reading(engine) as db,
        db.execute(statement, execution_options={"yield_per": ROWS_AT_ONCE}) as rows,
    ):
        yield from map(tuple, rows)


def period_contents(reports: Sequence[PeriodReport]) -> Contents:
    """Returns the contents of a file with the lines of all periods."""
    parts = [report_contents(part.report) for part in reports]
    days = sorted({date_text: closed for part in parts for date_text, closed in part.days}.items())
    known = [part.complete_until_ms for part in parts if part.complete_until_ms is not None]
    meters = sorted({meter for part in parts for meter in part.meters})
    until_ms = min(known, default=None)
    return parts[0]._replace(what="periods", days=days, meters=meters, complete_until_ms=until_ms)
