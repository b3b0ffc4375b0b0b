"""How a partition stands in the tables that have rows of it."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from analyzer.core.model import Partition
from analyzer.store.database.schema import offsets

PartitionKey = tuple[str, str, int]  # cluster, topic id and number
PLACE = ("cluster", "topic_id", "partition")  # the columns that hold it

# What `offsets` says of a partition that nobody follows any more.
UNFOLLOWED = {"beat_ms": None, "behind_ms": 0, "behind_records": 0}


def place_of(part: Partition) -> PartitionKey:
    """Which partition it is, whatever it is called."""
    return part.cluster, part.topic_id, part.number


def key_of(part: Partition) -> dict[str, Any]:
    """The same by column."""
    return dict(zip(PLACE, place_of(part), strict=True))


def row_of(part: Partition) -> dict[str, Any]:
    """All that is known of it by column, for tables that are also shown to people."""
    return key_of(part) | {"source": part.source, "topic": part.topic}


def place_in(table: sa.Table) -> list[sa.Column[Any]]:
    """The columns that say of which partition a row of `table` is."""
    return [table.c[name] for name in PLACE]


def partition_in(table: sa.Table) -> list[sa.Column[Any]]:
    """The columns that make a `Partition`, in its order."""
    return [*place_in(table), table.c.source, table.c.topic]


def is_of(table: sa.Table, part: Partition) -> sa.ColumnElement[bool]:
    """Which rows of `table` are of this partition."""
    return sa.and_(*(column == value for column, value in zip(place_in(table), place_of(part), strict=True)))


def unfollow(db: sa.Connection, which: sa.ColumnElement[bool]) -> int:
    """Say of these partitions, as far as somebody follows them, that nobody does; how many those were."""
    # One by one, in the order in which a flush takes them: nobody waits for anybody in a circle.
    place = place_in(offsets)
    wanted = sa.select(*place).where(which, offsets.c.beat_ms.is_not(None))
    found = db.execute(wanted.order_by(*place).with_for_update()).all()
    for row in found:
        here = sa.and_(*(column == value for column, value in zip(place, row, strict=True)))
        db.execute(sa.update(offsets).where(here).values(UNFOLLOWED))
    return len(found)


def same_place(one: sa.Table, other: sa.Table) -> sa.ColumnElement[bool]:
    """Which rows of two tables are of one partition."""
    return sa.and_(*(a == b for a, b in zip(place_in(one), place_in(other), strict=True)))
