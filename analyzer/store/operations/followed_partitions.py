"""Which partitions are followed, by whom, and since when nobody has been heard of."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.store.database.audit_log import record
from analyzer.store.database.engine import NowMs, reading, writing
from analyzer.store.database.partition_keys import unfollow
from analyzer.store.database.schema import offsets
from analyzer.store.transaction.gaps import forget, waiting

SILENT_MS = 15_000  # an analyzer that lives is heard of each second


class FollowedPartition(NamedTuple):
    """One partition: how far it is counted, and how far behind its analyzer was when it last said so."""

    source: str
    topic: str
    partition: int
    topic_id: str
    next: int
    behind_records: int
    behind_s: float
    heard_s: float | None  # seconds ago; None: nobody follows it any more
    owner: str


def followed(engine: sa.Engine) -> list[FollowedPartition]:
    """Every partition that was ever counted, those of one source together. Raises StoreAway."""
    of = offsets.c
    place = (of.source, of.topic, of.partition, of.topic_id)
    heard_ms = (NowMs() - of.beat_ms).label("heard_ms")
    statement = sa.select(*place, of.next, of.behind_records, of.behind_ms, heard_ms, of.owner)
    with reading(engine) as db:
        return [_followed(row) for row in db.execute(statement.order_by(*place))]


def _followed(row: Sequence[Any]) -> FollowedPartition:
    source, topic, number, topic_id, offset, behind_records, behind_ms, heard_ms, owner = row
    heard_s = None if heard_ms is None else max(0, heard_ms) / 1000
    return FollowedPartition(
        source, topic, number, topic_id, offset, behind_records, behind_ms / 1000, heard_s, owner
    )


def leave_off(engine: sa.Engine, name: str, sources: Collection[str]) -> int:
    """Stop waiting for what the analyzer `name` followed last and follows no more, because `sources` are all
    that it has now; how many partitions that were. Who follows one all the same says so within a second.
    Raises StoreAway."""
    ours = offsets.c.owner.startswith(f"{name}:", autoescape=True)
    with writing(engine) as db:
        ended = unfollow(db, sa.and_(ours, offsets.c.source.not_in(sources)))
        for source in waiting(db) - {*sources}:
            forget(db, source)
        return ended


def retire(engine: sa.Engine, source: str, who: str, why: str) -> int:
    """Stop waiting for the partitions of `source` of which nobody has been heard for a while; how many these
    were. Their counts stay, and who follows them later goes on there; what waited for a person waits no
    more. Raises StoreAway."""
    silent = offsets.c.beat_ms < NowMs() - SILENT_MS
    with writing(engine) as db:
        ended = unfollow(db, sa.and_(offsets.c.source == source, silent))
        if ended:
            forget(db, source)
            record(db, who, "source retired", source, why)
        return ended
