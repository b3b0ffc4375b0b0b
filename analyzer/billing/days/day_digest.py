"""The digest of a closed day, over its rows and the digest of the day that was closed before.

`DigestKey` chains it with that of the day before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256

import sqlalchemy as sa

from analyzer.billing.days.day_rows import Day
from analyzer.kernel.database.partition_keys import key_columns
from analyzer.kernel.tables.billing_tables import (
    adjustments,
    corrections,
    day_positions,
    deleted_days,
    frozen_counts,
)

ROWS_AT_ONCE = 1_000
UNSIGNED = ("reason", "salt")  # `reason_digest` is signed in their place


def content_digest(db: sa.Connection, day: Day) -> str:
    """Returns the digest of all that is stored about a day, and booked on it, in a fixed order.

    Of a day whose rows are deleted, the digest that they had.
    """
    of_deleted = sa.select(deleted_days.c.content).where(deleted_days.c.day == day.id)
    kept: str | None = db.execute(of_deleted).scalar()
    if kept is not None:
        return kept
    digest = sha256()
    for line in _lines(db, day):
        digest.update(line.encode())
        digest.update(b"\n")
    return digest.hexdigest()


def _lines(db: sa.Connection, day: Day) -> Iterator[str]:
    yield _line(
        "day", day.zone, day.date, day.begin_s, day.end_s, day.cut_ms, day.groupings, day.meters, day.given
    )
    positions = day_positions.c
    columns = [
        *key_columns(day_positions),
        positions.target,
        positions.cut,
        positions.reason_digest,
        positions.who,
        positions.is_gone,
    ]
    yield from _rows(db, day_positions, columns, positions.day == day.id, key_columns(day_positions))
    for table, condition in (
        (frozen_counts, frozen_counts.c.day == day.id),
        (adjustments, adjustments.c.booked == day.id),
        (corrections, corrections.c.booked == day.id),
    ):
        signed = [column for column in table.columns if column.name not in UNSIGNED]
        yield from _rows(db, table, signed, condition, list(table.primary_key.columns))


def _rows(
    db: sa.Connection,
    table: sa.Table,
    columns: list[sa.Column[object]],
    condition: sa.ColumnElement[bool],
    order: list[sa.Column[object]],
) -> Iterator[str]:
    statement = sa.select(*columns).where(condition).order_by(*order)
    with db.execute(statement, execution_options={"yield_per": ROWS_AT_ONCE}) as rows:
        for row in rows:
            yield _line(table.name, *row)


def _line(*values: object) -> str:
    return json.dumps(values, separators=(",", ":"))
