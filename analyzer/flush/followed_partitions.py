"""Which partitions are followed, by which analyzer, and how old their last heartbeat is."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.counting.gaps import forget, sources_with_gaps
from analyzer.kernel.database.audit_log import record
from analyzer.kernel.database.engine import NowMs, reading, writing
from analyzer.kernel.database.partition_keys import key_columns, unfollow
from analyzer.kernel.model import process_prefix
from analyzer.kernel.tables.schema import gaps, offsets

SILENT_MS = 15_000  # without a heartbeat; a living analyzer sends one each second


class FollowedPartition(NamedTuple):
    """One partition: how far it is counted, and how far behind it was at its last heartbeat."""

    source: str
    topic: str
    partition: int
    topic_id: str
    next: int
    behind_records: int
    behind_s: float
    heard_s: float | None  # age of the last heartbeat in seconds; None: no analyzer follows it any more
    owner: str


def followed(engine: sa.Engine) -> list[FollowedPartition]:
    """Returns every partition that was ever counted, by source. Raises StoreAway."""
    columns = offsets.c
    order = (columns.source, columns.topic, columns.partition, columns.topic_id)
    heard_ms = (NowMs() - columns.beat_ms).label("heard_ms")
    statement = sa.select(
        *order, columns.next, columns.behind_records, columns.behind_ms, heard_ms, columns.owner
    )
    with reading(engine) as db:
        return [_followed(row) for row in db.execute(statement.order_by(*order))]


def _followed(row: Sequence[Any]) -> FollowedPartition:
    source, topic, number, topic_id, offset, behind_records, behind_ms, heard_ms, owner = row
    heard_s = None if heard_ms is None else max(0, heard_ms) / 1000
    return FollowedPartition(
        source, topic, number, topic_id, offset, behind_records, behind_ms / 1000, heard_s, owner
    )


def rename_sources(engine: sa.Engine, names: Mapping[str, str], who: str) -> int:
    """Gives the partitions of a topic or file the name that its source has now; returns how many.

    `names` has the source of each topic and path. A source whose name is still in use, for another topic or
    file, was not renamed. Writes an event for each renamed source. Raises StoreAway.
    """
    if not names:
        return 0
    with writing(engine) as db:
        is_unused = offsets.c.source.not_in(sorted(set(names.values())))
        statement = sa.select(offsets.c.source, offsets.c.topic).where(
            is_unused, offsets.c.topic.in_(sorted(names))
        )
        renamed = sorted({(row.source, row.topic) for row in db.execute(statement)})
        number = 0
        for source, topic in renamed:
            for table in (offsets, gaps):
                of_source = sa.and_(table.c.source == source, table.c.topic == topic)
                key = key_columns(table)
                # One by one in the order in which a flush locks the rows: no deadlock.
                for row in db.execute(sa.select(*key).where(of_source).order_by(*key).distinct()).all():
                    is_row = sa.and_(*(column == value for column, value in zip(key, row, strict=True)))
                    db.execute(sa.update(table).where(is_row, of_source).values(source=names[topic]))
                    number += table is offsets
            record(db, who, "source renamed", f"{source} to {names[topic]}", f"it reads {topic}")
        return number


def release_removed(engine: sa.Engine, name: str, sources: Collection[str]) -> int:
    """Marks partitions that the analyzer `name` followed last as not followed, unless of `sources`.

    `sources` are all that it has now. Returns the number of partitions. An analyzer that follows one of them
    again sends a heartbeat within a second. Raises StoreAway.
    """
    is_followed_last = offsets.c.owner.startswith(process_prefix(name), autoescape=True)
    with writing(engine) as db:
        released = unfollow(db, sa.and_(is_followed_last, offsets.c.source.not_in(sources)))
        for source in sources_with_gaps(db) - {*sources}:
            forget(db, source)
        return released


def retire(engine: sa.Engine, source: str, who: str, reason: str) -> int:
    """Marks partitions of `source` without a recent heartbeat as not followed; returns their number.

    Their counts stay, an analyzer that follows them later continues there, and their open gaps are deleted.
    Raises StoreAway.
    """
    is_silent = offsets.c.beat_ms < NowMs() - SILENT_MS
    with writing(engine) as db:
        retired = unfollow(db, sa.and_(offsets.c.source == source, is_silent))
        if retired:
            forget(db, source)
            record(db, who, "upkeep sources retire", source, reason)
        return retired
