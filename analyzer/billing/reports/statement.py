"""A statement: the use of one caller or tenant in a period, what was booked, and the digests of the days."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from functools import partial, reduce
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.billing.reports.booked_corrections import BookedAmount, booked_amounts
from analyzer.billing.reports.day_report import (
    NOT_COUNTED,
    Amounts,
    Report,
    ReportedDay,
    join_amounts,
    read_report,
    report_rows,
)
from analyzer.billing.reports.own_periods import OwnPeriod, own_period
from analyzer.judging.caller_limits import NO_PROFILE, Profile, subject_named
from analyzer.judging.sql.directory import PROFILE
from analyzer.kernel.database.engine import reading
from analyzer.kernel.tables.schema import callers
from analyzer.plan import catalog
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.meters import JOINS, REQUESTS

LAST_DATE = "9999-12-31"
PARTS_MAX = 50  # rows of a table of parts; the others are one row
OTHERS = "(others)"


class StatementDay(NamedTuple):
    """A day of a statement."""

    day: ReportedDay
    amounts: Amounts


class StatementParts(NamedTuple):
    """The use in the period by a second part, of a grouping such as `caller+model`; rows add up to the use.

    Attributes:
        name: Of the part: "model".
        rows: A text of the part, "" without one, and its amounts; those with the most requests first,
            and what was not counted by the part last.
    """

    name: str
    rows: Sequence[tuple[str, Amounts]]


class MeterTotal(NamedTuple):
    """The amounts of one meter in a period; of a meter of largest values nothing is added to its use."""

    meter: str
    used: int
    denied: int
    booked: int | None  # None: its amounts do not add up

    @property
    def total(self) -> int:
        return self.used + (self.booked or 0)


class UsageStatement(NamedTuple):
    """The contents of a statement.

    Attributes:
        name: Of the caller, or of the tenant with `tenant:` in front.
        zone: Of the days.
        period: Of this caller or tenant: see `own_period`.
        days: Those that are closed, and others that have amounts.
        joins: Of each meter that was ever counted, by name.
        open_days: How many days of the period are not closed; with one, the statement is provisional.
        complete_until_ms: As `Report` has it.
        booked: Booked on the days of the period: of these days, and of days of earlier statements.
        booked_since: Booked on later days, of days of the period: part of later statements.
        parts: Of each grouping in which its days were closed besides its own one.
    """

    name: str
    zone: str
    period: OwnPeriod
    days: Sequence[StatementDay]
    joins: Mapping[str, str]
    open_days: int
    complete_until_ms: int | None
    booked: Sequence[BookedAmount]
    booked_since: Sequence[BookedAmount]
    parts: Sequence[StatementParts] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the caller or tenant used nothing, and nothing was booked."""
        return not (self.booked or self.booked_since or any(day.amounts for day in self.days))

    @property
    def totals(self) -> list[MeterTotal]:
        """The amounts of each meter, by its name."""
        totals = []
        for meter in self.meters:
            join = JOINS[self.joins[meter]]
            pairs = [day.amounts[meter] for day in self.days if meter in day.amounts]
            used, denied = (reduce(join.merge, column) for column in zip((0, 0), *pairs, strict=True))
            booked = sum(amount.value for amount in self.booked if amount.meter == meter)
            totals.append(MeterTotal(meter, used, denied, booked if join.adds_up else None))
        return totals

    @property
    def meters(self) -> list[str]:
        """The names of the meters that were used or corrected."""
        return sorted(
            {meter for day in self.days for meter in day.amounts}.union(
                amount.meter for amount in self.booked
            )
        )

    @property
    def booked_earlier(self) -> list[BookedAmount]:
        """Changes of earlier statements."""
        return [amount for amount in self.booked if amount.day < self.period.first]

    @property
    def booked_within(self) -> list[BookedAmount]:
        """Corrections of days of the period."""
        return [amount for amount in self.booked if amount.day >= self.period.first]


def read_statement(engine: sa.Engine, name: str, zone: str, day: date) -> UsageStatement:
    """Returns the statement of the period that holds a day.

    `name` is that of a caller, or of a tenant with `tenant:` in front. Raises NotFrozen when a closed day has
    no rows of callers or tenants, or none any more, StoreAway.
    """
    grouping, key = subject_named(name)
    with reading(engine) as db:
        facts = db.execute(sa.select(*PROFILE).where(callers.c.caller == name)).first()
        joins = {meter.name: meter.join for meter in catalog.load(db).meters.values()}
    period = own_period(NO_PROFILE if facts is None else Profile(*facts[1:]), zone, day)
    report = read_report(engine, zone, *period, grouping)._replace(key=key)
    statement_days = []
    for reported in report.days:
        rows = list(report_rows(engine, report._replace(days=[reported])))
        if rows or reported.closed is not None:
            statement_days.append(StatementDay(reported, rows[0].amounts if rows else {}))
    booked = [
        amount
        for amount in booked_amounts(engine, zone, period.first, LAST_DATE, grouping)
        if amount.name == key
    ]
    return UsageStatement(
        name,
        zone,
        period,
        statement_days,
        joins | dict(report.meters),
        sum(reported.closed is None for reported in report.days),
        report.complete_until_ms,
        [amount for amount in booked if amount.booked <= period.last],
        [
            amount
            for amount in booked
            if amount.booked > period.last and period.first <= amount.day <= period.last
        ],
        _read_parts(engine, report),
    )


def _read_parts(engine: sa.Engine, report: Report) -> list[StatementParts]:
    """Returns the use of a report's key by each grouping that has a second part."""
    closed = [day.closed for day in report.days if day.closed is not None]
    groupings = {name for day in closed for name in day.groupings if name.startswith(f"{report.grouping}+")}
    parts = []
    for grouping in sorted(groupings):
        period = report.zone, report.days[0].date, report.days[-1].date
        by_part = read_report(engine, *period, grouping)._replace(key=report.key)
        rows = [(row.resource, row.amounts) for row in report_rows(engine, by_part)]
        rows.sort(key=lambda row: (row[0] == NOT_COUNTED, -row[1].get(REQUESTS.name, (0, 0))[0], row[0]))
        if len(rows) > PARTS_MAX:
            others = reduce(partial(join_amounts, by_part), (amounts for _, amounts in rows[PARTS_MAX:]))
            rows[PARTS_MAX:] = [(OTHERS, others)]
        parts.append(StatementParts(parse_grouping(grouping).columns[1], rows))
    return [part for part in parts if part.rows]
