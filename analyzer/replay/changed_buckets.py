"""Adds signed differences to the buckets, in the widths in which these hold the minutes by now."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from analyzer.counting.buckets import BucketColumns, add_rows, column_pages
from analyzer.kernel.database.row_parameters import LookUp, delete_given, in_parts, rows_given
from analyzer.kernel.errors import ReplayRefused
from analyzer.kernel.model import CountTable
from analyzer.kernel.tables.schema import buckets, proofs
from analyzer.plan.catalog import Catalog
from analyzer.plan.meters import DAY_S, MINUTE_S, QUARTER_S, bucket_start_s

SERIES = [buckets.c[name] for name in ("bucket_s", "key", "resource")]
AMOUNTS = [column for column in buckets.c if column.name.startswith(("value_", "denied_"))]
ROWS_AT_ONCE = 2_000  # of a statement, whose time-out is two seconds


def add_differences(db: sa.Connection, tables: Sequence[CountTable], catalog: Catalog) -> int:
    """Adds the differences; returns the number of rows.

    Rows without any amount left are deleted, as if they had never been counted. Raises ReplayRefused if less
    than nothing would be left of a row, or its day was deleted.
    """
    changed = 0
    for table in sorted(tables, key=lambda table: catalog.groupings[table.grouping]):
        for rows, joins in column_pages(table, catalog):
            for part in _parts(rows):
                for width, placed in _by_width(db, part):
                    add_rows(db, placed, joins)
                    _settle(db, placed, width)
                    changed += len(placed.keys)
    _void_proofs(db, tables)
    return changed


def _void_proofs(db: sa.Connection, tables: Sequence[CountTable]) -> None:
    """Voids the proofs of days whose buckets have changed. Raises ReplayRefused for a day that is deleted."""
    days = {bucket_start_s(bucket_s, DAY_S) for table in tables for bucket_s in set(table.buckets_s)}
    of_days = proofs.c.day_s.in_(sorted(days))
    if db.execute(sa.select(proofs.c.day_s).where(of_days, proofs.c.deleted == 1).limit(1)).first():
        raise ReplayRefused("the buckets of a day were deleted after their retention: choose a later --from")
    db.execute(sa.delete(proofs).where(of_days))


def _parts(rows: BucketColumns) -> Iterator[BucketColumns]:
    for first in range(0, len(rows.keys), ROWS_AT_ONCE):
        yield _chosen(rows, range(first, min(first + ROWS_AT_ONCE, len(rows.keys))))


def _chosen(rows: BucketColumns, places: Sequence[int]) -> BucketColumns:
    return rows._replace(
        buckets_s=[rows.buckets_s[index] for index in places],
        keys=[rows.keys[index] for index in places],
        resources=[rows.resources[index] for index in places],
        admitted={place: [column[index] for index in places] for place, column in rows.admitted.items()},
        denied={place: [column[index] for index in places] for place, column in rows.denied.items()},
    )


def _by_width(db: sa.Connection, rows: BucketColumns) -> Iterator[tuple[int, BucketColumns]]:
    """Yields the rows by the width of the stored ones that they belong to; new series come as minutes."""
    if not _has_wide(db, rows):
        yield MINUTE_S, rows
        return
    remaining = [*range(len(rows.keys))]
    places: dict[int, list[int]] = {}
    for width_s in (MINUTE_S, QUARTER_S, DAY_S):
        keys_by_place = {place: _series_key(rows, place, width_s) for place in remaining}
        existing = _existing(db, rows, width_s, {*keys_by_place.values()})
        places[width_s] = [place for place in remaining if keys_by_place[place] in existing]
        remaining = [place for place in remaining if keys_by_place[place] not in existing]
    places[MINUTE_S] = sorted([*places[MINUTE_S], *remaining])
    for width_s, chosen in places.items():
        if chosen:
            yield width_s, _widened(_chosen(rows, chosen), width_s)


def _series_key(rows: BucketColumns, place: int, width_s: int) -> tuple[int, str, str]:
    return bucket_start_s(rows.buckets_s[place], width_s), rows.keys[place], rows.resources[place]


def _has_wide(db: sa.Connection, rows: BucketColumns) -> bool:
    """Whether minutes of this time were joined into wider buckets."""
    for width_s in (QUARTER_S, DAY_S):
        wide = sa.select(buckets.c.bucket_s).where(
            *_of_page(rows, width_s),
            buckets.c.bucket_s > rows.buckets_s[0] - width_s,
            buckets.c.bucket_s <= rows.buckets_s[-1],
        )
        if db.execute(wide.limit(1)).first() is not None:
            return True
    return False


def _of_page(rows: BucketColumns, width_s: int) -> list[sa.ColumnElement[bool]]:
    values = {"grouping": rows.grouping, "page": rows.page, "width_s": width_s}
    return [buckets.c[name] == value for name, value in values.items()]


def _existing(
    db: sa.Connection, rows: BucketColumns, width_s: int, keys: Collection[tuple[int, str, str]]
) -> set[tuple[int, str, str]]:
    """Returns those of the wanted keys that have a row."""
    return {tuple(row) for row in _looked_up(db, rows, width_s, sorted(keys), SERIES)}


def _looked_up(
    db: sa.Connection,
    rows: BucketColumns,
    width_s: int,
    keys: Sequence[tuple[int, str, str]],
    columns: Sequence[sa.Column[Any]],
) -> Iterator[sa.Row[Any]]:
    fixed = {"of_grouping": rows.grouping, "of_page": rows.page, "of_width": width_s}
    if keys:
        for parameters in in_parts(db.dialect.name, SERIES, keys):
            yield from db.execute(_look_up(db.dialect.name, tuple(columns)), parameters | fixed)


@lru_cache
def _look_up(dialect: str, columns: tuple[sa.Column[Any], ...]) -> sa.Select[Any]:
    rows = rows_given(dialect, SERIES)
    same = [column == rows.c[column.name] for column in SERIES]
    of_page = [
        buckets.c[name] == sa.bindparam(f"of_{short}")
        for name, short in (("grouping", "grouping"), ("page", "page"), ("width_s", "width"))
    ]
    return sa.select(*columns).select_from(LookUp(rows, buckets, sa.and_(*of_page, *same)))


def _widened(rows: BucketColumns, width_s: int) -> BucketColumns:
    """Returns the rows by wider buckets, those of one bucket and series added up."""
    if width_s == MINUTE_S:
        return rows
    indexes_by_key: dict[tuple[int, str, str], list[int]] = {}
    for index in range(len(rows.keys)):
        indexes_by_key.setdefault(_series_key(rows, index, width_s), []).append(index)
    order = sorted(indexes_by_key)

    def joined(columns: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
        return {
            place: [sum(column[index] for index in indexes_by_key[key]) for key in order]
            for place, column in columns.items()
        }

    return rows._replace(
        width_s=width_s,
        buckets_s=[key[0] for key in order],
        keys=[key[1] for key in order],
        resources=[key[2] for key in order],
        admitted=joined(rows.admitted),
        denied=joined(rows.denied),
    )


def _settle(db: sa.Connection, rows: BucketColumns, width_s: int) -> None:
    """Deletes the rows of which nothing is left. Raises ReplayRefused for one with less than nothing."""
    columns = [*rows.admitted.values(), *rows.denied.values()]
    lowered = [
        _series_key(rows, index, width_s)
        for index in range(len(rows.keys))
        if any(column[index] < 0 for column in columns)
    ]
    empty = []
    for row in _looked_up(db, rows, width_s, lowered, [*SERIES, *AMOUNTS]):
        amounts = [amount for amount in tuple(row)[len(SERIES) :] if amount]
        if any(amount < 0 for amount in amounts):
            raise ReplayRefused(
                f"{row.key}: less is stored of it than was counted of these records, so they cannot be taken "
                "back; run `gatelock billing audit --all`, and look for callers that were folded"
            )
        if not amounts:
            empty.append((rows.grouping, rows.page, width_s, row.bucket_s, row.key, row.resource))
    key = tuple(buckets.primary_key.columns)
    if empty:
        for parameters in in_parts(db.dialect.name, key, empty):
            db.execute(delete_given(db.dialect.name, key), parameters)
