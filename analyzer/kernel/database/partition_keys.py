"""Partitions as keys of the tables that have rows about them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from analyzer.kernel.model import Partition
from analyzer.kernel.tables.schema import offsets

PartitionKey = tuple[str, str, int]  # cluster, topic id, number
KEY_COLUMNS = ("cluster", "topic_id", "partition")

# Columns of `offsets` for a partition that no analyzer follows any more.
UNFOLLOWED = {"beat_ms": None, "behind_ms": 0, "behind_records": 0}


def key_tuple(part: Partition) -> PartitionKey:
    """Returns the identity of a partition, without its names."""
    return part.cluster, part.topic_id, part.number


def key_values(part: Partition) -> dict[str, Any]:
    """Returns the key by column."""
    return dict(zip(KEY_COLUMNS, key_tuple(part), strict=True))


def partition_values(part: Partition) -> dict[str, Any]:
    """Returns key and names by column, for tables that are also displayed."""
    return key_values(part) | {"source": part.source, "topic": part.topic}


def key_columns(table: sa.Table) -> list[sa.Column[Any]]:
    """Returns the columns of `table` that identify a partition."""
    return [table.c[name] for name in KEY_COLUMNS]


def partition_columns(table: sa.Table) -> list[sa.Column[Any]]:
    """Returns the columns that make a `Partition`, in its order."""
    return [*key_columns(table), table.c.source, table.c.topic]


def is_partition(table: sa.Table, part: Partition) -> sa.ColumnElement[bool]:
    """Returns the condition for rows about this partition."""
    columns = zip(key_columns(table), key_tuple(part), strict=True)
    return sa.and_(*(column == value for column, value in columns))


def same_partition(first: sa.Table, second: sa.Table) -> sa.ColumnElement[bool]:
    """Returns the join condition for rows of two tables about one partition."""
    return sa.and_(*(a == b for a, b in zip(key_columns(first), key_columns(second), strict=True)))


def unfollow(db: sa.Connection, condition: sa.ColumnElement[bool]) -> int:
    """Marks followed partitions that meet `condition` as followed by no analyzer; returns their number."""
    # One statement each, in the order in which a flush locks the rows: no deadlock.
    key = key_columns(offsets)
    statement = sa.select(*key).where(condition, offsets.c.beat_ms.is_not(None))
    rows = db.execute(statement.order_by(*key).with_for_update()).all()
    for row in rows:
        is_row = sa.and_(*(column == value for column, value in zip(key, row, strict=True)))
        db.execute(sa.update(offsets).where(is_row).values(UNFOLLOWED))
    return len(rows)
