"""Additive upserts of buckets. Every flush executes them: each statement is built once."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.counting.sql_joins import SQL_JOINS, plus
from analyzer.kernel.database.partition_keys import KEY_COLUMNS, PartitionKey, key_tuple
from analyzer.kernel.database.row_parameters import Assignments, ColumnValues, upsert_columns
from analyzer.kernel.model import CountTable, Partition
from analyzer.kernel.tables.ranking_tables import changed_quarters
from analyzer.kernel.tables.schema import TOTAL_MAX, buckets, day_counts
from analyzer.plan.catalog import Catalog, MeterColumn
from analyzer.plan.meters import DAY_S, QUARTER_S, REQUESTS, UNRECORDED, WIDTHS_S, bucket_start_s

AUDITED = "caller"  # the grouping that is always counted, and whose requests the audit adds up
NO_PARTITION: PartitionKey = ("", "", 0)  # of counts whose partition is not known any more


class BucketColumns(NamedTuple):
    """Increments to the rows of one grouping, page and width, sorted by bucket, key and resource."""

    grouping: int
    page: int
    width_s: int
    buckets_s: Sequence[int]
    keys: Sequence[str]
    resources: Sequence[str]
    admitted: Mapping[int, Sequence[int]]  # by place on the page
    denied: Mapping[int, Sequence[int]]


def add_counts(
    db: sa.Connection, tables: Sequence[CountTable], catalog: Catalog, parts: Sequence[Partition] = ()
) -> None:
    """Adds what was counted to the buckets, and to the records of each day; notes which quarters change.

    `parts` are the partitions whose offsets the transaction has moved. All meters and groupings must have a
    number.
    """
    partition = key_tuple(min(parts)) if parts else NO_PARTITION
    for table in sorted(tables, key=lambda table: catalog.groupings[table.grouping]):
        for rows, joins in column_pages(table, catalog):
            add_rows(db, rows, joins)
        if table.grouping == AUDITED:
            add_days(db, records_by_day(table), partition)
    note_changes(db, {quarter_s for table in tables for quarter_s in quarters_of(table.buckets_s)}, partition)


def column_pages(table: CountTable, catalog: Catalog) -> Iterator[tuple[BucketColumns, dict[int, str]]]:
    """Yields the rows of each page, in order, with the join of each place."""
    pages: dict[int, list[tuple[MeterColumn, int]]] = {}
    for position, name in enumerate(table.meters):
        meter = catalog.meters[name]
        pages.setdefault(meter.page, []).append((meter, position))
    for page, meters in sorted(pages.items()):
        rows = BucketColumns(
            catalog.groupings[table.grouping],
            page,
            table.width_s,
            table.buckets_s,
            table.keys,
            table.resources,
            {meter.place: table.admitted[position] for meter, position in meters},
            {meter.place: table.denied[position] for meter, position in meters} if table.denied else {},
        )
        yield rows, {meter.place: meter.join for meter, _ in meters}


def newest_event_ms(db: sa.Connection, catalog: Catalog, default_ms: int) -> int:
    """Returns the beginning of the newest bucket of the audited grouping, or the default without any.

    A second opinion on the time, for what a clock that is ahead must not do.
    """
    meter = catalog.meters.get(REQUESTS.name)
    if meter is None or AUDITED not in catalog.groupings:
        return default_ms
    newest = [
        db.execute(
            sa.select(buckets.c.bucket_s)
            .where(
                buckets.c.grouping == catalog.groupings[AUDITED],
                buckets.c.page == meter.page,
                buckets.c.width_s == width_s,
            )
            .order_by(buckets.c.bucket_s.desc())
            .limit(1)
        ).scalar()
        for width_s in WIDTHS_S
    ]
    return max((bucket_s * 1000 for bucket_s in newest if bucket_s is not None), default=default_ms)


def add_rows(db: sa.Connection, rows: BucketColumns, joins: Mapping[int, str]) -> None:
    """Adds increments (at least one); `joins` has the join of each place."""
    values: dict[str, ColumnValues] = {
        "grouping": rows.grouping,
        "page": rows.page,
        "width_s": rows.width_s,
        "bucket_s": _constant_or_list(rows.buckets_s),
        "key": rows.keys,
        "resource": "" if not any(rows.resources) else rows.resources,
    }
    values |= column_increments(rows)
    upsert_columns(db, buckets, values, joining(rows, joins))


def column_increments(rows: BucketColumns) -> dict[str, ColumnValues]:
    """Returns the increments by the names of their columns."""
    return {
        f"{kind}_{place}": _bounded(column)
        for kind, columns in (("value", rows.admitted), ("denied", rows.denied))
        for place, column in sorted(columns.items())
    }


def joining(rows: BucketColumns, joins: Mapping[int, str]) -> Assignments:
    """Returns the assignments that join the increments to stored rows; `joins` has the join of each place."""
    places = tuple(sorted((place, joins[place]) for place in rows.admitted))
    return _upsert_assignments(places, bool(rows.denied))


def records_by_day(table: CountTable) -> dict[int, int]:
    """Returns the records of each UTC day, those of denied requests included.

    These are the requests, without those beyond one for each record.
    """
    records: Counter[int] = Counter()
    for meter, sign in ((REQUESTS, 1), (UNRECORDED, -1)):
        if meter.name in table.meters:
            position = list(table.meters).index(meter.name)
            for columns in (table.admitted, table.denied):
                if columns:
                    for bucket_s, value in zip(table.buckets_s, columns[position], strict=True):
                        records[bucket_start_s(bucket_s, DAY_S)] += sign * value
    return records


def add_days(db: sa.Connection, requests: Mapping[int, int], partition: PartitionKey) -> None:
    """Adds to the records of each day, in the rows of one partition."""
    days = sorted(requests)
    values: dict[str, ColumnValues] = dict(zip(KEY_COLUMNS, partition, strict=True))
    values |= {"day_s": days, "requests": _bounded([requests[day_s] for day_s in days])}
    upsert_columns(db, day_counts, values, _add_requests)


def quarters_of(buckets_s: Sequence[int]) -> Iterator[int]:
    """Yields the quarters of an hour that sorted buckets begin in."""
    first = 0
    while first < len(buckets_s):
        quarter_s = bucket_start_s(buckets_s[first], QUARTER_S)
        yield quarter_s
        first = bisect_left(buckets_s, quarter_s + QUARTER_S, first)


def note_changes(db: sa.Connection, quarters_s: Collection[int], partition: PartitionKey) -> None:
    """Notes that buckets which begin in these quarters change in this transaction: see `rankings`.

    `partition` is one whose offset the transaction holds; without any, `NO_PARTITION`.
    """
    add_changes(db, dict.fromkeys(quarters_s, 1), partition)


def add_changes(db: sa.Connection, changes: Mapping[int, int], partition: PartitionKey) -> None:
    """Adds to the changes of quarters, in the rows of one partition."""
    if changes:
        quarters_s = sorted(changes)
        values: dict[str, ColumnValues] = {"quarter_s": quarters_s}
        values |= dict(zip(KEY_COLUMNS, partition, strict=True))
        values |= {"changes": [changes[quarter_s] for quarter_s in quarters_s]}
        upsert_columns(db, changed_quarters, values, _add_changes)


def _add_changes(_dialect: str, table: sa.Table, new: Any) -> dict[str, Any]:
    return {"changes": table.c.changes + new.changes}


def _add_requests(_dialect: str, table: sa.Table, new: Any) -> dict[str, Any]:
    return {"requests": plus(table.c.requests, new.requests)}


@lru_cache
def _upsert_assignments(places: tuple[tuple[int, str], ...], has_denied: bool) -> Assignments:
    """Returns the assignments of an upsert for these places and joins; equal arguments, equal function."""
    kinds = ("value", "denied") if has_denied else ("value",)

    def assignments(dialect: str, table: sa.Table, new: Any) -> dict[str, Any]:
        return {
            name: SQL_JOINS[join].upsert(dialect, sa.func.coalesce(table.c[name], 0), new[name])
            for place, join in places
            for name in (f"{kind}_{place}" for kind in kinds)
        }

    return assignments


def _constant_or_list(values: Sequence[int]) -> ColumnValues:
    return values[0] if values[0] == values[-1] else values  # sorted: the first equals the last


def _bounded(values: Sequence[int]) -> Sequence[int]:
    return values if max(values) <= TOTAL_MAX else [min(value, TOTAL_MAX) for value in values]
