"""Which series of a grouping may reach a limit, and the buckets of these.

The database adds up the series of a stretch of several days, and returns those that may have enough in one
window. Only these are added up by window, so that of ten million rows a few thousand leave it. Where windows
roll, a sum is a bound: a window that is no longer than a chunk of time lies in two neighbouring chunks at
most, so a series with a limit in any window has half of it in one chunk. The exact decision is made from the
buckets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.forecast.simulation.series_simulation import SeriesBucket
from analyzer.kernel.database.dialects import dialect_of
from analyzer.kernel.database.engine import sort_in_memory
from analyzer.kernel.database.row_parameters import as_parameters, is_among, rows_given
from analyzer.kernel.tables.schema import buckets
from analyzer.plan.catalog import Catalog, MeterColumn
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.meters import JOINS, REQUESTS, WIDTHS_S

WORK_MB = 256  # of PostgreSQL's memory, while the series of a step are added up
ROUNDED = 1 - 1e-9  # sums are floats: a bound must not miss a series
SERIES = (buckets.c.key, buckets.c.resource)
NO_RESOURCE = sa.literal("").label("resource")  # to group by less takes less time
LOOKUP_ROWS = 4  # rows that a scan reads in the time of one look-up
ROWS_AT_ONCE = 10_000
NEWLINE = "\n"  # no key contains a control character
SeriesName = tuple[str, str]  # key and resource


class StoredWidth(NamedTuple):
    """Buckets of one width that there are: from the first one's start to the last one's end."""

    width_s: int
    from_s: int
    until_s: int


class ScanStep(NamedTuple):
    """A stretch of time that is read by one statement."""

    from_s: int
    until_s: int
    is_asked: bool = True  # False: read for the windows that reach into the time that was asked for


class StretchSums(NamedTuple):
    """The sums over the series of a stretch of time."""

    rows: int
    requests: int
    keys: Sequence[str]
    reached: Mapping[SeriesName, float]  # series that may have the bound in a window, and their sums


class BucketScan(NamedTuple):
    """The buckets of one grouping and meter."""

    grouping: int
    has_resource: bool
    meter: MeterColumn
    requests: MeterColumn
    widths_s: Sequence[int]

    @classmethod
    def of(cls, catalog: Catalog, grouping: str, meter: str, widths_s: Sequence[int]) -> BucketScan:
        """Returns the scan of a grouping and a meter that have been counted."""
        has_resource = parse_grouping(grouping).resource is not None
        meters = catalog.meters[meter], catalog.meters[REQUESTS.name]
        return cls(catalog.groupings[grouping], has_resource, *meters, widths_s)

    def stretch_sums(self, db: sa.Connection, stretch: ScanStep, window_s: int, bound: float) -> StretchSums:
        """Adds up the series of a stretch; names those that may have `bound` in a window of `window_s`."""
        sums = self._sums(db, stretch, window_s, bound, self.meter)
        if self.meter.page == self.requests.page:
            return sums
        of_requests = self._sums(db, stretch, window_s, float("inf"), self.requests)
        return of_requests._replace(reached=sums.reached)

    def _sums(
        self, db: sa.Connection, stretch: ScanStep, window_s: int, bound: float, meter: MeterColumn
    ) -> StretchSums:
        source = self.requests if self.requests.page == meter.page else meter
        used, requests = _joined(meter), sa.func.sum(_amount(source))
        series = SERIES if self.has_resource else (buckets.c.key, NO_RESOURCE)
        enough = [used >= bound * ROUNDED]
        if JOINS[meter.join].adds_up and stretch.until_s - stretch.from_s > window_s:
            # A window has at most as many buckets as it can have, each like the largest.
            largest = sa.func.coalesce(_largest(meter, "value"), 0) + sa.func.coalesce(
                _largest(meter, "denied"), 0
            )
            enough.append(largest >= bound * min(self.widths_s) / window_s * ROUNDED)
        sums = (
            sa.select(*series, used.label("used"), requests.label("requests"), sa.func.count().label("rows"))
            .add_columns(sa.and_(*enough).label("is_enough"))
            .where(*self._in(stretch, meter))
            .group_by(*SERIES[: 1 + self.has_resource])
            .cte("sums")
        )
        keys = sa.func.aggregate_strings(sums.c.key, NEWLINE)
        whole = sa.select(sa.func.sum(sums.c.requests), keys, sa.literal(""), sa.func.sum(sums.c.rows))
        reached = sa.select(sums.c.used, *(sums.c[column.name] for column in SERIES), sa.literal(0))
        amounts: dict[SeriesName, float] = {}
        requests_in, rows_in, names = 0, 0, None
        statement: sa.CompoundSelect[Any] = sa.union_all(whole, reached.where(sums.c.is_enough))
        for amount, key, resource, rows in db.execute(statement).all():
            if rows != 0:  # of the whole: None without rows
                requests_in, rows_in, names = int(amount or 0), int(rows or 0), key
            else:
                amounts[key, resource] = max(amount, amounts.get((key, resource), 0.0))
        return StretchSums(rows_in, requests_in, [] if names is None else names.split(NEWLINE), amounts)

    def window_sums(
        self,
        db: sa.Connection,
        step: ScanStep,
        chunk_s: int | None,
        bound: float,
        keys: Sequence[str],
        rows: int,
    ) -> dict[SeriesName, float]:
        """Returns the series of these keys with `bound` in a chunk of a step, each with its largest sum.

        `chunk_s` None: the step is one chunk. The step has some `rows` rows.
        """
        of_keys, parameters = self._of_keys(db.dialect.name, step, keys, self.meter, rows)
        used, by_chunk = _joined(self.meter), list[sa.ColumnElement[Any]](SERIES)
        if chunk_s is not None:
            by_chunk.append((buckets.c.bucket_s - step.from_s) // chunk_s)
        statement = sa.select(*SERIES, used).where(*of_keys).group_by(*by_chunk)
        amounts: dict[SeriesName, float] = {}
        for key, resource, amount in db.execute(statement.having(used >= bound * ROUNDED), parameters):
            amounts[key, resource] = max(amount, amounts.get((key, resource), 0.0))
        return amounts

    def series_buckets(
        self, db: sa.Connection, step: ScanStep, series: Collection[SeriesName], rows: int
    ) -> Iterator[tuple[SeriesName, SeriesBucket]]:
        """Yields the buckets of these series in a step with some `rows` rows, in the order of time."""
        keys = sorted({key for key, _ in series})
        requests: dict[tuple[Any, ...], int] = {}
        if self.meter.page != self.requests.page:
            of_requests = self._rows(db, step, keys, self.requests, rows)
            requests = {row[:4]: row[4] + row[5] for row in of_requests}
        for row in self._rows(db, step, keys, self.meter, rows):
            bucket_s, width_s, key, resource, admitted, denied, requested = row
            if (key, resource) in series:
                requested = requests.get(row[:4], 0) if requests else requested
                yield (key, resource), SeriesBucket(bucket_s, width_s, admitted, denied, requested)

    def _rows(
        self, db: sa.Connection, step: ScanStep, keys: Sequence[str], meter: MeterColumn, rows: int
    ) -> Iterator[Any]:
        columns = buckets.c
        counts = [sa.func.coalesce(columns[f"{kind}_{meter.place}"], 0) for kind in ("value", "denied")]
        place = self.requests.place if self.requests.page == meter.page else meter.place
        requested = [sa.func.coalesce(columns[f"{kind}_{place}"], 0) for kind in ("value", "denied")]
        selected = sa.select(columns.bucket_s, columns.width_s, *SERIES, *counts, requested[0] + requested[1])
        of_keys, parameters = self._of_keys(db.dialect.name, step, keys, meter, rows)
        statement = selected.where(*of_keys).order_by(columns.bucket_s)
        with db.execute(statement, parameters, execution_options={"yield_per": ROWS_AT_ONCE}) as result:
            yield from map(tuple, result)

    def _of_keys(
        self, dialect: str, step: ScanStep, keys: Sequence[str], meter: MeterColumn, rows: int
    ) -> tuple[Sequence[sa.ColumnElement[bool]], dict[str, object]]:
        """Returns the condition on buckets of these keys, and its parameters.

        They are looked up one by one, or found among all `rows` of the step.
        """
        columns = buckets.c
        times = sorted({at_s for width_s in self.widths_s for at_s in self._times(step, width_s)})
        if len(keys) * len(times) * LOOKUP_ROWS < rows:
            looked_up = (is_among(dialect, columns.bucket_s, times), is_among(dialect, columns.key, keys))
            return (self._is_scanned(meter), *looked_up), {}
        names = rows_given(dialect, [columns.key])
        parameters = as_parameters(dialect, [columns.key], [[key] for key in keys])
        return (*self._in(step, meter), columns.key.in_(sa.select(names.c.key))), parameters

    def _times(self, step: ScanStep, width_s: int) -> range:
        """Returns the beginnings of the buckets of a width in a step."""
        return range(-(-step.from_s // width_s) * width_s, step.until_s, width_s)

    def _is_scanned(self, meter: MeterColumn) -> sa.ColumnElement[bool]:
        columns = buckets.c
        is_width = columns.width_s.in_(self.widths_s)
        return sa.and_(columns.grouping == self.grouping, columns.page == meter.page, is_width)

    def _in(self, step: ScanStep, meter: MeterColumn) -> tuple[sa.ColumnElement[bool], ...]:
        bucket_s = buckets.c.bucket_s
        return self._is_scanned(meter), bucket_s >= step.from_s, bucket_s < step.until_s


def _joined(meter: MeterColumn) -> sa.ColumnElement[float]:
    return (sa.func.sum if JOINS[meter.join].adds_up else sa.func.max)(_amount(meter))


def _largest(meter: MeterColumn, kind: str) -> sa.ColumnElement[float]:
    return sa.cast(sa.func.max(buckets.c[f"{kind}_{meter.place}"]), sa.Float)


def _amount(meter: MeterColumn) -> sa.ColumnElement[float]:
    """Returns what a row has of a meter, denied requests included."""
    value, denied = (
        sa.cast(sa.func.coalesce(buckets.c[f"{kind}_{meter.place}"], 0), sa.Float)
        for kind in ("value", "denied")
    )
    return value + denied


def stored_widths(db: sa.Connection, catalog: Catalog, grouping: str) -> list[StoredWidth]:
    """Returns the widths of the buckets of a grouping that there are, the narrowest first."""
    widths, bucket_s = [], buckets.c.bucket_s
    page = catalog.meters[REQUESTS.name].page
    for width_s in WIDTHS_S:
        of_width = (
            buckets.c.grouping == catalog.groupings[grouping],
            buckets.c.page == page,
            buckets.c.width_s == width_s,
        )
        first, last = (
            db.execute(sa.select(bucket_s).where(*of_width).order_by(order).limit(1)).scalar()
            for order in (bucket_s.asc(), bucket_s.desc())
        )
        if first is not None and last is not None:
            widths.append(StoredWidth(width_s, first, last + width_s))
    return widths


def allow_large_sums(db: sa.Connection) -> None:
    """Lets PostgreSQL add up all series of a stretch in memory, and plan for all rows of a cursor.

    Each statement is planned for its own times and keys: a plan for any of them reads all that was counted
    once for each key.
    """
    sort_in_memory(db, WORK_MB)
    dialect_of(db).set_local(db, {"cursor_tuple_fraction": "1.0", "plan_cache_mode": "force_custom_plan"})
