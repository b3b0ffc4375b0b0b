"""The rows of a report: frozen counts of closed days, and those of the buckets for days that are not closed.

All rows come in the order of names and resources, byte by byte, so that a report is written while it is read,
and any two reports of the same counts are equal.

A report by two parts (`caller+model`) adds up to the one by its first part: what was counted by the first
part alone, because the other one came into the configuration later, is a last row of its name.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import date, timedelta
from functools import cached_property, partial, reduce
from itertools import groupby
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.billing.days.day_rows import Day, FrozenMeter, day_window, stored_days
from analyzer.counting.records.forgotten_callers import make_pseudonym, reference_in
from analyzer.counting.sql_joins import bounded_join
from analyzer.counting.usage import UsageQuery, usage_rows_of
from analyzer.kernel.database.dialects import dialect_of
from analyzer.kernel.database.engine import ROWS_AT_ONCE, reading, slow_reading, sort_in_memory
from analyzer.kernel.tables.billing_tables import days as days_table
from analyzer.kernel.tables.billing_tables import deleted_days, frozen_counts, referenced_names
from analyzer.kernel.tables.schema import offsets
from analyzer.plan import catalog
from analyzer.plan.derived_meters import is_stated
from analyzer.plan.meters import JOINS
from analyzer.plan.windows import Window

WORK_MB = 256  # of PostgreSQL's memory, for one report at a time
NOT_COUNTED = "(not counted)"  # in place of the second part: what was counted by the first one alone

Amounts = Mapping[str, tuple[int, int]]  # admitted and denied, by meter


class ReportedDay(NamedTuple):
    """A day of a report."""

    date: str
    window: Window
    closed: Day | None  # None: its counts may still change


class Report(NamedTuple):
    """The contents of a report.

    Attributes:
        zone: Of the days.
        days: In order, without a gap.
        grouping: By which it lists.
        meters: The names of the meters, in order, with the join of each. Of the built-in ones `requests`, and
            others that were asked for.
        complete_until_ms: Of a provisional report: all that was logged until then is counted. None: it is
            final, or no partition is followed.
        human_units: Whether it has its amounts in units that people read, too.
        key: Only the rows of this caller, tenant or other key; None: all.
        whole: Of a grouping of two parts: that of its first part, to which the rows add up; "" where a day
            has no rows by it.
    """

    zone: str
    days: Sequence[ReportedDay]
    grouping: str
    meters: Mapping[str, str]
    complete_until_ms: int | None = None
    human_units: bool = False
    key: str | None = None
    whole: str = ""

    @property
    def is_final(self) -> bool:
        return all(day.closed is not None for day in self.days)


class SeriesAmounts(NamedTuple):
    """One row: all meters of a series over all days."""

    name: str
    resource: str
    amounts: Amounts


class NotFrozen(LookupError):
    """A closed day was not frozen by the grouping of a report, or its rows are deleted; says what to do."""


def read_report(
    engine: sa.Engine, zone: str, first: str, last: str, grouping: str, meter: str | None = None
) -> Report:
    """Returns the report of all days from `first` to `last`, both included.

    Dates that the zone never had are left out. Raises NotFrozen when a closed day has no rows by this
    grouping nor by its first part, or none any more, or when no day has the grouping; LookupError for a meter
    that was never counted, ValueError for an impossible date, StoreAway.
    """
    windows = dict(_windows(zone, date.fromisoformat(first), date.fromisoformat(last)))
    with reading(engine) as db:
        closed = _closed_days(db, zone, windows)
        numbers = catalog.load(db)
        deleted = set(db.scalars(sa.select(deleted_days.c.day)))
        complete_until_ms = _counted_until_ms(db) if len(closed) < len(windows) else None
    is_open = len(closed) < len(windows)
    whole = _whole(grouping, closed.values(), numbers)
    is_counted = is_open and grouping in numbers.groupings
    may_lack = whole and (is_counted or any(grouping in day.groupings for day in closed.values()))
    for day in closed.values():
        if day.id in deleted:
            raise NotFrozen(f"the rows of {day} were deleted after their retention")
        if grouping not in day.groupings and not may_lack:
            raise NotFrozen(missing_grouping(day, grouping, closed.values()))
    if is_open and not is_counted and not may_lack:
        raise NotFrozen(f"nothing is counted by {grouping}; add it to [billing] groupings")
    meters = {frozen_meter.name: frozen_meter.join for day in closed.values() for frozen_meter in day.meters}
    if is_open:
        meters |= {counted_meter.name: counted_meter.join for counted_meter in numbers.meters.values()}
    if meter is not None and meter not in meters:
        raise LookupError(f"{meter} was never counted; there are {', '.join(sorted(meters))}")
    names = [name for name in sorted(meters) if is_listed(name, meter)]
    joins = {name: meters[name] for name in names}
    days = [ReportedDay(date_text, window, closed.get(date_text)) for date_text, window in windows.items()]
    if complete_until_ms is not None:
        complete_until_ms = min(complete_until_ms, days[-1].window.until_s * 1000)
    return Report(zone, days, grouping, joins, complete_until_ms, whole=whole)


def missing_grouping(day: Day, grouping: str, others: Iterable[Day]) -> str:
    """Returns in a sentence that a day was not frozen by a grouping, and what to do."""
    later = min((other.date for other in others if grouping in other.groupings), default="")
    cure = (
        f"days from {later} on were"
        if later > day.date
        else "add it to [billing] groupings for the days to come"
    )
    return f"{day} was closed by {', '.join(day.groupings)}, and not by {grouping}; {cure}"


def _whole(grouping: str, closed: Iterable[Day], numbers: catalog.Catalog) -> str:
    """Returns the grouping by the first part of `grouping`, if each day has rows by it; otherwise ""."""
    first, plus, _ = grouping.partition("+")
    return (
        first if plus and first in numbers.groupings and all(first in day.groupings for day in closed) else ""
    )


def _counted_until_ms(db: sa.Connection) -> int | None:
    """Returns the time until which every followed partition is counted; None if none is followed."""
    columns = offsets.c
    until_ms = sa.func.min(columns.beat_ms - columns.behind_ms)  # as targets are reached: see `store_targets`
    return db.execute(sa.select(until_ms).where(columns.beat_ms.is_not(None))).scalar()


def is_listed(name: str, meter: str | None) -> bool:
    """Whether a report has this meter: the one that is asked for, else those that configurations state."""
    return name == meter if meter is not None else is_stated(name)


def days_between(engine: sa.Engine, zone: str, first: str, last: str) -> list[tuple[str, Day | None]]:
    """Returns the days from `first` to `last`, both included; None for one that is not closed. Raises
    StoreAway."""
    dates = [
        date_text for date_text, _ in _windows(zone, date.fromisoformat(first), date.fromisoformat(last))
    ]
    with reading(engine) as db:
        closed = _closed_days(db, zone, dates)
    return [(date_text, closed.get(date_text)) for date_text in dates]


def _closed_days(db: sa.Connection, zone: str, dates: Collection[str]) -> dict[str, Day]:
    in_zone = (days_table.c.zone == zone, days_table.c.state == "closed")
    return {day.date: day for day in stored_days(db, *in_zone, days_table.c.date.in_(dates))}


def _windows(zone: str, first: date, last: date) -> Iterator[tuple[str, Window]]:
    """Yields each day of a zone; a date that its clocks never showed is none."""
    for index in range((last - first).days + 1):
        date_text = str(first + timedelta(days=index))
        with suppress(ValueError):
            yield date_text, day_window(zone, date_text)


def report_rows(engine: sa.Engine, report: Report) -> Iterator[SeriesAmounts]:
    """Yields the rows by name and resource, in constant memory. Raises StoreAway.

    What was not counted by the second part is the last row of its name.
    """
    with ExitStack() as stack:
        snapshots = _Snapshots(engine, stack)
        rows = _counted_rows(snapshots, report)
        if report.whole:
            wholes = _counted_rows(snapshots, report._replace(grouping=report.whole))
            rows = _with_remainders(rows, wholes, report.meters)
        yield from rows


class _Snapshots:
    """The snapshots of closed and of open days that the rows of a report are read in, opened when needed."""

    def __init__(self, engine: sa.Engine, stack: ExitStack) -> None:
        self._engine = engine
        self.stack = stack

    @cached_property
    def closed(self) -> sa.Connection:
        db = self.stack.enter_context(slow_reading(self._engine))
        sort_in_memory(db, WORK_MB)
        return db

    @cached_property
    def open(self) -> sa.Connection:
        return self.stack.enter_context(slow_reading(self._engine))


def _with_remainders(
    rows: Iterable[SeriesAmounts], wholes: Iterable[SeriesAmounts], joins: Mapping[str, str]
) -> Iterator[SeriesAmounts]:
    """Yields the rows; behind those of a name what its whole has besides them, of meters that add up."""
    adding_up = [meter for meter, join in joins.items() if JOINS[join].adds_up]
    marked = heapq.merge(
        ((row, False) for row in rows), ((row, True) for row in wholes), key=lambda pair: pair[0].name
    )
    for name, same in groupby(marked, lambda pair: pair[0].name):
        lacking: dict[str, tuple[int, int]] = {}
        for row, is_whole in same:
            sign = 1 if is_whole else -1
            for meter in adding_up:
                value, denied = row.amounts.get(meter, (0, 0))
                subtotal = lacking.get(meter, (0, 0))
                lacking[meter] = subtotal[0] + sign * value, subtotal[1] + sign * denied
            if not is_whole:
                yield row
        if remainder := {meter: pair for meter, pair in lacking.items() if any(pair)}:
            yield SeriesAmounts(name, NOT_COUNTED, remainder)


def _counted_rows(snapshots: _Snapshots, report: Report) -> Iterator[SeriesAmounts]:
    """Yields what was counted, by name and resource."""
    closed = [day.closed for day in report.days if day.closed is not None]
    frozen = [day for day in closed if report.grouping in day.groupings]
    streams = []
    if frozen:
        db = snapshots.closed
        numbers = catalog.load(db)
        for page, meters in _by_page(frozen, report).items():
            number = numbers.groupings[report.grouping]
            conditions = _frozen_conditions(report, number, frozen, page)
            streams.append(_frozen_rows(snapshots.stack, db, conditions, meters))
    streams += [_open_rows(snapshots.open, report, *stretch) for stretch in _open_stretches(report)]
    merged = heapq.merge(*streams, key=_series)
    for _, same in groupby(merged, _series):
        row = _joined(list(same), report)
        if row.amounts:
            yield row


def _series(row: SeriesAmounts) -> tuple[str, str]:
    return row.name, row.resource


def _joined(rows: Sequence[SeriesAmounts], report: Report) -> SeriesAmounts:
    return rows[0]._replace(amounts=reduce(partial(join_amounts, report), (row.amounts for row in rows)))


def join_amounts(report: Report, first: Amounts, second: Amounts) -> Amounts:
    """Returns the amounts of two rows of a report as those of one."""
    amounts = dict(first)
    for meter, (value, denied) in second.items():
        merge = JOINS[report.meters[meter]].merge
        subtotal = amounts.get(meter, (0, 0))
        amounts[meter] = merge(subtotal[0], value), merge(subtotal[1], denied)
    return amounts


def _by_page(frozen: Sequence[Day], report: Report) -> dict[int, list[FrozenMeter]]:
    """Returns the wanted meters of all days, by page; of a number that had two names, the last one."""
    pages: dict[int, dict[int, FrozenMeter]] = {}
    for day in frozen:
        for meter in day.meters:
            if meter.name in report.meters:
                pages.setdefault(meter.columns[0], {})[meter.number] = meter
    return {page: [meters[number] for number in sorted(meters)] for page, meters in sorted(pages.items())}


def _frozen_conditions(
    report: Report, grouping: int, frozen: Sequence[Day], page: int
) -> Iterator[sa.ColumnElement[bool]]:
    """Yields the conditions of the rows of closed days."""
    columns, names = frozen_counts.c, referenced_names.c
    yield columns.day.in_([day.id for day in frozen])
    yield columns.grouping == grouping
    yield columns.page == page
    if report.key is not None:
        of_name = sa.select(names.reference).where(names.name == report.key)
        yield columns.reference.in_(sa.union_all(of_name, sa.select(sa.literal(reference_in(report.key)))))


def _frozen_rows(
    stack: ExitStack,
    db: sa.Connection,
    conditions: Iterable[sa.ColumnElement[bool]],
    meters: Sequence[FrozenMeter],
) -> Iterator[SeriesAmounts]:
    columns = frozen_counts.c
    shown_name: sa.ColumnElement[str] = sa.func.coalesce(
        referenced_names.c.name, sa.literal(make_pseudonym("")) + columns.reference
    )
    name = dialect_of(db).by_bytes(shown_name).label("name")
    joined = [
        sa.func.coalesce(bounded_join(meter.join, columns[column]), 0)
        for meter in meters
        for column in meter.columns[1:]
    ]
    series = (name, columns.resource)
    statement = (
        sa.select(*series, *joined)
        .join(referenced_names, referenced_names.c.reference == columns.reference, isouter=True)
        .where(*conditions)
        .group_by(*series)
        .order_by(name, columns.resource)
    )
    rows = stack.enter_context(db.execute(statement, execution_options={"yield_per": ROWS_AT_ONCE}))
    return _amounts(rows, meters)


def _amounts(rows: sa.CursorResult[Any], meters: Sequence[FrozenMeter]) -> Iterator[SeriesAmounts]:
    for row in rows:
        name, resource, *values = tuple(row)
        pairs = zip(values[::2], values[1::2], strict=True)
        amounts = {
            meter.name: (int(value), int(denied))
            for meter, (value, denied) in zip(meters, pairs, strict=True)
            if value or denied
        }
        yield SeriesAmounts(name, resource, amounts)


def _open_stretches(report: Report) -> Iterator[tuple[int, int]]:
    """Yields the stretches of days that are not closed."""
    for is_closed, days in groupby(report.days, lambda day: day.closed is not None):
        if not is_closed:
            open_days = list(days)
            yield open_days[0].window.start_s, open_days[-1].window.until_s


def _open_rows(db: sa.Connection, report: Report, from_s: int, until_s: int) -> Iterator[SeriesAmounts]:
    only = next(iter(report.meters)) if len(report.meters) == 1 else None
    window = Window(from_s, until_s)
    query = UsageQuery(
        *(report.grouping, 0, from_s, until_s), key=report.key, meter=only, order="name", window=window
    )
    for (name, resource), rows in groupby(usage_rows_of(db, query), lambda row: (row.key, row.resource)):
        amounts: dict[str, tuple[int, int]] = {}
        for row in rows:
            if row.meter in report.meters:
                merge = JOINS[report.meters[row.meter]].merge
                subtotal = amounts.get(row.meter, (0, 0))
                amounts[row.meter] = merge(subtotal[0], row.value), merge(subtotal[1], row.denied)
        if amounts:
            yield SeriesAmounts(name, resource, amounts)
