"""Counts, read back: values per series and stretch of time, row by row.

Each query reads stretches of the primary key. For a single caller it names every bucket of the time in
question: the rows of a caller are in as many places as there are buckets, and reading them all takes a
fraction of a second for any number of other callers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa

from analyzer.counting.sql_joins import HALF, SQL_JOINS, IntColumn
from analyzer.kernel.database.dialects import dialect_of
from analyzer.kernel.database.engine import ROWS_AT_ONCE, reading, slow_reading, sort_in_memory, without_scans
from analyzer.kernel.database.row_parameters import is_among
from analyzer.kernel.tables.schema import buckets
from analyzer.plan import catalog
from analyzer.plan.catalog import Catalog, MeterColumn
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.meters import BUILT_IN, DAY_S, REQUESTS, WIDTHS_S
from analyzer.plan.windows import Window

UNASKED = tuple(meter.name for meter in BUILT_IN)  # shown when they are asked for
WORK_MB = 256  # of PostgreSQL's memory, for one report at a time

Order = Literal["time", "name", "value", "denied", "size"]


class UsageRow(NamedTuple):
    """One meter of one series in [bucket_s, bucket_s + width_s)."""

    key: str
    resource: str
    meter: str
    bucket_s: int
    width_s: int
    value: int
    denied: int

    def size(self, order: Order) -> int:
        """The number that an order by amounts compares, the largest first."""
        amounts = {"value": self.value, "denied": self.denied}
        return amounts.get(order, self.value + self.denied)

    def place(self, order: Order) -> tuple[Any, ...]:
        """The place of the row in an order."""
        if order == "name":
            return self.key, self.resource, self.bucket_s, self.width_s
        amount = () if order == "time" else (-self.size(order),)
        return (*amount, self.bucket_s, self.key, self.resource, self.width_s)


class UsageQuery(NamedTuple):
    """Selects rows of counts.

    The interval [from_s, until_s) selects the buckets that begin in it; None: unlimited.

    `order` is by time, by name, or by an amount, the largest first: the value, the denied, or both together
    ("size"). `top` selects so many rows, by size unless `order` is another amount. An order by an amount
    takes one meter: `meter`, or requests.

    With `window`, all buckets that lie in it are one row for each series; `width_s` has no effect.
    """

    grouping: str
    width_s: int
    from_s: int | None = None
    until_s: int | None = None
    key: str | None = None
    meter: str | None = None
    top: int | None = None
    order: Order = "time"
    window: Window | None = None

    @property
    def is_by_amount(self) -> bool:
        return self.top is not None or self.order in ("value", "denied", "size")

    @property
    def meter_read(self) -> str | None:
        """The meter of the rows; None: all meters."""
        return (self.meter or REQUESTS.name) if self.is_by_amount else self.meter


def usage_rows(engine: sa.Engine, query: UsageQuery) -> Iterator[UsageRow]:
    """Yields the rows by time, key, resource and meter, in one snapshot and in constant memory.

    With another order, in that one. Buckets up to the wanted width are joined to it, each meter by its own
    join. Wider ones, of long ago, keep their own width. Raises StoreAway.
    """
    with slow_reading(engine) as db:
        yield from usage_rows_of(db, query)


def usage_rows_of(db: sa.Connection, query: UsageQuery) -> Iterator[UsageRow]:
    """Yields the rows as `usage_rows` does, in a snapshot that several queries share."""
    query = query._replace(meter=query.meter_read)
    numbers = catalog.load(db)
    pages: dict[int, list[MeterColumn]] = {}
    for meter in sorted(numbers.meters.values()):
        if query.meter == meter.name or (query.meter is None and meter.name not in UNASKED):
            pages.setdefault(meter.page, []).append(meter)
    if query.grouping not in numbers.groupings or not pages:
        return
    without_scans(db)
    _allow_large_sorts(db)
    streams = [_rows(db, query, numbers, page) for page in pages.items()]
    yield from streams[0] if len(streams) == 1 else merge(*streams, key=lambda row: _place(row, query.order))


def is_counted(engine: sa.Engine, grouping: str) -> bool:
    """Whether `grouping` is or was in a plan. Raises StoreAway."""
    with reading(engine) as db:
        return grouping in catalog.load(db).groupings


def counted_values(engine: sa.Engine) -> set[str]:
    """Returns the named values by which a plan counts or has counted. Raises StoreAway."""
    with reading(engine) as db:
        names = catalog.load(db).groupings
    return {value for name in names for value in parse_grouping(name).named_values}


def _allow_large_sorts(db: sa.Connection) -> None:
    """A report of a million callers is grouped in memory: several times as fast as on the disk."""
    sort_in_memory(db, WORK_MB)


def _place(row: UsageRow, order: Order) -> tuple[Any, ...]:
    return (*row.place(order), row.meter)


def _rows(
    db: sa.Connection, query: UsageQuery, numbers: Catalog, page: tuple[int, Sequence[MeterColumn]]
) -> Iterator[UsageRow]:
    """Yields the rows of the meters of one page."""
    _, meters = page
    sources = [_buckets(db, query, numbers, page, width_s) for width_s in WIDTHS_S]
    counts = sa.union_all(*sources).subquery()
    series = [counts.c[name] for name in ("start_s", "key", "resource", "stretch_s")]
    values: list[Any] = []
    for meter in meters:
        for kind in ("value", "denied"):
            values += SQL_JOINS[meter.join].aggregate(counts.c[f"{kind}_{meter.place}"])
    values = [
        sa.cast(value, sa.BigInteger).label(f"part_{position}") for position, value in enumerate(values)
    ]
    statement = sa.select(*series, *values).group_by(*series)
    statement = statement.order_by(*_order_by(query, series, values))
    if query.top is not None:
        statement = statement.limit(query.top)
    names = [meter.name for meter in meters]
    places = range(4, 4 + 4 * len(names), 4)
    with db.execute(statement, execution_options={"yield_per": ROWS_AT_ONCE}) as rows:
        for row in rows:
            start_s, key, resource, stretch_s = row[:4]
            for name, position in zip(names, places, strict=True):
                value_high, value, denied_high, denied = row[position : position + 4]
                if value_high:
                    value += value_high * HALF
                if denied_high:
                    denied += denied_high * HALF
                if value or denied:
                    yield UsageRow(key, resource, name, start_s, stretch_s, value or 0, denied or 0)


def _order_by(
    query: UsageQuery, series: Sequence[sa.ColumnElement[Any]], values: Sequence[Any]
) -> list[sa.ColumnElement[Any]]:
    """Returns the columns of the query's order; `values` are the two halves of value and denied."""
    start_s, key, resource, stretch_s = series
    if not query.is_by_amount:
        return [key, resource, start_s, stretch_s] if query.order == "name" else list(series)
    parts = [sa.func.coalesce(sa.cast(value.element, sa.Float), 0.0) for value in values]
    value, denied = parts[0] * HALF + parts[1], parts[2] * HALF + parts[3]
    amount = {"value": value, "denied": denied}.get(query.order, value + denied)
    return [amount.desc(), *series]


def _times(db: sa.Connection, conditions: Sequence[sa.ColumnElement[bool]], width_s: int) -> list[int]:
    """Returns every time at which a bucket that meets the conditions may begin."""
    bucket_s = buckets.c.bucket_s
    first, last = (
        db.execute(sa.select(bucket_s).where(*conditions).order_by(order).limit(1)).scalar()
        for order in (bucket_s.asc(), bucket_s.desc())
    )
    return [] if first is None or last is None else list(range(first, last + 1, width_s))


def _between(column: sa.ColumnElement[int], query: UsageQuery) -> list[sa.ColumnElement[bool]]:
    return [
        *([column >= query.from_s] if query.from_s is not None else []),
        *([column < query.until_s] if query.until_s is not None else []),
    ]


def _buckets(
    db: sa.Connection,
    query: UsageQuery,
    numbers: Catalog,
    page: tuple[int, Sequence[MeterColumn]],
    width_s: int,
) -> sa.Select[Any]:
    """Returns the wanted buckets of one width, each with the stretch of time that it is shown in."""
    number, meters = page
    columns = buckets.c
    bucket_s: sa.ColumnElement[int] = columns.bucket_s
    conditions = [
        columns.grouping == numbers.groupings[query.grouping],
        columns.page == number,
        columns.width_s == width_s,
    ]
    between = _between(bucket_s, query)
    if query.key is None:
        conditions += between
    else:
        times = is_among(db.dialect.name, bucket_s, _times(db, [*conditions, *between], width_s))
        # The times are in the interval. PostgreSQL may read the interval instead where that has few rows;
        # SQLite would always do so if it knew the limits.
        limits = between if dialect_of(db).has_statistics else []
        conditions += [*limits, times, columns.key == query.key]
    start, stretch = _shown(query, bucket_s, width_s)
    values = [columns[f"{kind}_{meter.place}"] for meter in meters for kind in ("value", "denied")]
    return sa.select(
        start.label("start_s"),
        stretch.label("stretch_s"),
        *(columns.key, columns.resource, *values),
    ).where(*conditions)


def _shown(
    query: UsageQuery, bucket_s: sa.ColumnElement[int], width_s: int
) -> tuple[sa.ColumnElement[int], sa.ColumnElement[int]]:
    """Returns start and length of the stretch in which buckets of one width are shown."""
    if query.window is None:
        shown_s = max(width_s, query.width_s)
        start = bucket_s if shown_s == width_s else bucket_s - _modulo(bucket_s, shown_s)
        return start, sa.literal(shown_s, sa.BigInteger)
    return _within(query.window, bucket_s, sa.literal(width_s, sa.BigInteger), may_cross=width_s == DAY_S)


def _within(
    window: Window, bucket_s: sa.ColumnElement[int], width_s: sa.ColumnElement[int], *, may_cross: bool
) -> tuple[sa.ColumnElement[int], sa.ColumnElement[int]]:
    """Returns the window as start and length; for a bucket that crosses its end, those of the bucket."""
    start, length = (
        sa.literal(value, sa.BigInteger) for value in (window.start_s, window.until_s - window.start_s)
    )
    if not may_cross:  # minutes and quarters of an hour lie in one window of any zone
        return start, length
    crosses = sa.or_(bucket_s < window.start_s, bucket_s + width_s > window.until_s)
    return sa.case((crosses, bucket_s), else_=start), sa.case((crosses, width_s), else_=length)


def _modulo(value: IntColumn, width_s: int) -> IntColumn:
    """Returns the remainder, never negative: both databases give it the sign of `value`."""
    return (value % width_s + width_s) % width_s
