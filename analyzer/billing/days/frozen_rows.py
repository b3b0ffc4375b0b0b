"""Frozen rows: what the buckets hold of a day, added up in a snapshot and written a part at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.billing.days.day_rows import Day, FrozenMeter
from analyzer.billing.days.references import store_references
from analyzer.counting.buckets import AUDITED
from analyzer.counting.sql_joins import bounded_join, bounded_sum
from analyzer.kernel.database.bounded_deletes import delete_at, first_keys
from analyzer.kernel.database.engine import sort_in_memory, without_scans
from analyzer.kernel.database.row_parameters import ColumnValues, upsert_columns
from analyzer.kernel.tables.billing_tables import frozen_counts
from analyzer.kernel.tables.schema import buckets
from analyzer.plan.catalog import Catalog
from analyzer.plan.meters import REQUESTS, WIDTHS_S

ROWS_AT_ONCE = 1_000  # written in one transaction, which takes some milliseconds
WORK_MB = 256  # of PostgreSQL's memory: callers are added up in memory, several times as fast as on the disk


class FrozenPart(NamedTuple):
    """Rows of one grouping and page, to be written together."""

    grouping: int
    page: int
    columns: Sequence[str]  # of amounts
    rows: Sequence[sa.Row[Any]]  # key, resource, amounts


def frozen_parts(snapshot: sa.Connection, catalog: Catalog, day: Day) -> Iterator[FrozenPart]:
    """Yields what the buckets of a snapshot hold of a day, by grouping, page, key and resource."""
    without_scans(snapshot)
    sort_in_memory(snapshot, WORK_MB)
    pages: dict[int, list[FrozenMeter]] = {}
    for meter in day.meters:
        pages.setdefault(meter.columns[0], []).append(meter)
    for grouping in sorted(catalog.groupings[name] for name in day.groupings):
        for page, meters in sorted(pages.items()):
            columns = [column for meter in meters for column in meter.columns[1:]]
            options = {"yield_per": ROWS_AT_ONCE}
            with snapshot.execute(
                _added_up(day, grouping, page, meters), execution_options=options
            ) as result:
                for rows in result.partitions():
                    yield FrozenPart(grouping, page, columns, rows)


def _added_up(day: Day, grouping: int, page: int, meters: Sequence[FrozenMeter]) -> sa.Select[Any]:
    # Days in UTC stand in for the minutes of long ago; of another zone's day no whole one lies in it.
    of_day = [buckets.c.bucket_s >= day.begin_s, buckets.c.bucket_s < day.end_s]
    amounts = [buckets.c[column] for meter in meters for column in meter.columns[1:]]
    counts = sa.union_all(
        *(
            sa.select(buckets.c.key, buckets.c.resource, *amounts).where(
                buckets.c.grouping == grouping,
                buckets.c.page == page,
                buckets.c.width_s == width_s,
                *of_day,
                buckets.c.bucket_s + width_s <= day.end_s,
            )
            for width_s in WIDTHS_S
        )
    ).subquery()
    joined = [
        sa.func.coalesce(bounded_join(meter.join, counts.c[column]), 0)
        for meter in meters
        for column in meter.columns[1:]
    ]
    series = (counts.c.key, counts.c.resource)
    return sa.select(*series, *joined).group_by(*series).order_by(*series)


def write(db: sa.Connection, day: Day, part: FrozenPart, forgotten: Collection[str] = ()) -> None:
    """Writes rows of a day that is being closed; names of callers forgotten since its cut are not stored."""
    references = store_references(db, {row[0] for row in part.rows}, forgotten)
    rows = sorted((references[row[0]], *tuple(row)[1:]) for row in part.rows)
    resources = [str(row[1]) for row in rows]
    values: dict[str, ColumnValues] = {
        "day": day.id,
        "grouping": part.grouping,
        "page": part.page,
        "reference": [str(row[0]) for row in rows],
        "resource": resources if any(resources) else "",
    }
    values |= {column: [int(row[2 + index]) for row in rows] for index, column in enumerate(part.columns)}
    upsert_columns(db, frozen_counts, values, _replace)


def _replace(_dialect: str, table: sa.Table, new: Any) -> dict[str, Any]:
    return {column.name: new[column.name] for column in table.columns if not column.primary_key}


def delete_some(db: sa.Connection, day: Day) -> int:
    """Deletes rows that an earlier attempt has written, up to a bound; returns their number."""
    keys = first_keys(frozen_counts, frozen_counts.c.day == day.id, ROWS_AT_ONCE)
    key = next(iter(frozen_counts.primary_key))
    return len(db.execute(delete_at(frozen_counts, keys).returning(key)).all())


def frozen_totals(db: sa.Connection, catalog: Catalog, day: Day) -> tuple[int, int]:
    """Returns the number of frozen rows of a day, and the requests of all callers, admitted and denied."""
    of_day = frozen_counts.c.day == day.id
    rows = db.execute(sa.select(sa.func.count()).where(of_day)).scalar_one()
    requests = next((meter for meter in day.meters if meter.name == REQUESTS.name), None)
    if requests is None or AUDITED not in day.groupings:
        return rows, 0
    page, *columns = requests.columns
    total = sum((bounded_sum(frozen_counts.c[str(column)]) for column in columns), sa.literal(0))
    of_callers = [
        of_day,
        frozen_counts.c.grouping == catalog.groupings[AUDITED],
        frozen_counts.c.page == page,
    ]
    return rows, int(db.execute(sa.select(total).where(*of_callers)).scalar() or 0)
