"""Targets: how far each partition must be counted before a day is closed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.billing.days.day_rows import Day
from analyzer.billing.days.signed_reasons import reason_signature
from analyzer.counting.gaps import OPEN
from analyzer.kernel.database.engine import insert, reading
from analyzer.kernel.database.partition_keys import (
    is_partition,
    partition_columns,
    partition_values,
    same_partition,
)
from analyzer.kernel.model import Partition, parent_analyzer
from analyzer.kernel.tables.billing_tables import day_positions
from analyzer.kernel.tables.schema import gaps, offsets
from analyzer.kernel.time_texts import format_second
from analyzer.sources.files.file_reader import CLUSTER

RENAMED_MS = 5_000  # an analyzer sends the heartbeats of all its files together, each second
ID_CHARS = 8  # of a topic id, where names of partitions need one

# Returns the ends of the logs that this process can ask for: of those of these partitions, and of further
# ones that it reads; None for a log that does not exist any more. Raises AnalyzerError.
AskEnds = Callable[[Sequence[Partition]], Mapping[Partition, int | None]]


class AwaitedPartition(NamedTuple):
    """A partition that a day waits for."""

    part: Partition
    target: int | None  # None: not known yet
    next: int | None  # None: counting has not begun
    gap: str = ""  # why it is stopped, until an operator decides
    renamed_ms: int | None = None  # of a file that was renamed before its end was read: when it was last read
    name: str = ""  # that tells it apart from others of one topic or path

    def __str__(self) -> str:
        name = self.name or str(self.part)
        if self.renamed_ms is not None:
            read = f"last read at {format_second(self.renamed_ms // 1000)} up to byte {self.next}"
            return f"{name}: the file was renamed before it was read to its end, {read}"
        if self.target is None:
            return f"{name}: no analyzer has said yet how far it must be counted"
        progress = "is not counted yet" if self.next is None else f"is counted up to {self.next}"
        stopped = f"; it is stopped: {self.gap}" if self.gap else ""
        return f"{name}: {progress}, and must be up to {self.target}{stopped}"


def distinct_names(parts: Iterable[Partition]) -> dict[Partition, str]:
    """Returns a name of each partition, with the begin of its topic id where several have one topic or path.

    >>> files = [Partition("file", topic, 0, "web", "app.log") for topic in ("3f9a2b1c77", "90d1e4c2aa")]
    >>> list(distinct_names(files).values()), list(distinct_names(files[:1]).values())
    (['app.log[0]#3f9a2b1c', 'app.log[0]#90d1e4c2'], ['app.log[0]'])
    """
    all_parts = list(parts)
    names = {part: str(part) for part in all_parts}
    for chars in (ID_CHARS, None):
        times = Counter(names.values())
        names |= {part: f"{part}#{part.topic_id[:chars]}" for part in all_parts if times[names[part]] > 1}
    return names


def untargeted(db: sa.Connection, day: Day) -> list[Partition]:
    """Returns the followed partitions whose target for a day is not stored."""
    statement = (
        sa.select(*partition_columns(offsets))
        .join(day_positions, _of_day(day), isouter=True)
        .where(offsets.c.beat_ms.is_not(None), day_positions.c.day.is_(None))
        .order_by(*partition_columns(offsets))
    )
    return [Partition(*row) for row in db.execute(statement)]


def has_targets(db: sa.Connection, day: Day) -> bool:
    """Whether the target of any partition is stored."""
    return db.execute(sa.select(day_positions.c.day).where(day_positions.c.day == day.id)).first() is not None


def store_targets(db: sa.Connection, day: Day, due_ms: int, ends: Mapping[Partition, int | None]) -> None:
    """Stores the targets that are known, of partitions without one. They never change afterwards.

    A partition whose end cannot be asked for has its target when a heartbeat finds that all which was there
    at `due_ms` has been read: the position of that heartbeat.
    """
    for part, end in sorted(ends.items()):
        target = _position(db, part) if end is None else end
        _store(db, day, part, target, is_gone=end is None)
    caught_up = offsets.c.beat_ms - offsets.c.behind_ms >= due_ms
    for part in untargeted(db, day):
        reached = db.execute(sa.select(offsets.c.next).where(is_partition(offsets, part), caught_up)).scalar()
        if reached is not None:
            _store(db, day, part, reached, is_gone=False)


def _store(db: sa.Connection, day: Day, part: Partition, target: int, *, is_gone: bool) -> None:
    row = {"day": day.id, "target": target, "is_gone": int(is_gone), **partition_values(part)}
    db.execute(insert(db, day_positions).values(row).on_conflict_do_nothing())


def _position(db: sa.Connection, part: Partition) -> int:
    return db.execute(sa.select(offsets.c.next).where(is_partition(offsets, part))).scalar() or 0


def awaited(db: sa.Connection, day: Day) -> list[AwaitedPartition]:
    """Returns the partitions that a day waits for, by topic and number.

    None of these are partitions that an operator has left out, and those that no analyzer follows any more.
    """
    position = day_positions.c
    stopped = sa.select(gaps.c.why).where(same_partition(gaps, day_positions), OPEN).limit(1)
    behind = (
        sa.select(
            *partition_columns(day_positions),
            position.target,
            offsets.c.next,
            stopped.correlate(offsets, day_positions).scalar_subquery(),
        )
        .join(offsets, same_partition(offsets, day_positions), isouter=True)
        .where(
            position.day == day.id,
            position.left_out == "",
            position.target > sa.func.coalesce(offsets.c.next, 0),
            # One that was begun has no heartbeat yet, and its analyzer may have died since.
            sa.or_(offsets.c.next.is_(None), offsets.c.seen == 0, offsets.c.beat_ms.is_not(None)),
        )
    )
    partitions = [
        AwaitedPartition(Partition(*row[:5]), row[5], row[6], row[7] or "") for row in db.execute(behind)
    ]
    unknown = [AwaitedPartition(part, None, _position(db, part)) for part in untargeted(db, day)]
    waits = [*partitions, *unknown]
    names = distinct_names(partition.part for partition in waits)
    renamed_ms = _renamed(db) if waits else {}
    return sorted(
        (
            partition._replace(name=names[partition.part], renamed_ms=renamed_ms.get(partition.part))
            for partition in waits
        ),
        key=lambda partition: (partition.part.topic, partition.part.number, partition.renamed_ms or 0),
    )


def _renamed(db: sa.Connection) -> dict[Partition, int]:
    """Returns the followed files of which their analyzer reads no more, but a later one under their path.

    With each, when it was last read. An analyzer reads a file that was renamed to its end first, unless it
    was started after that.
    """
    columns = offsets.c
    statement = sa.select(*partition_columns(offsets), columns.owner, columns.beat_ms).where(
        columns.cluster == CLUSTER, columns.beat_ms.is_not(None)
    )
    read_ms: defaultdict[tuple[str, str, str], dict[Partition, int]] = defaultdict(dict)
    for *key, owner, beat_ms in db.execute(statement):
        part = Partition(*key)
        read_ms[part.source, part.topic, parent_analyzer(owner)][part] = beat_ms
    return {
        part: beat_ms
        for files in read_ms.values()
        for part, beat_ms in files.items()
        if beat_ms < max(files.values()) - RENAMED_MS
    }


def awaited_now(engine: sa.Engine, day: Day) -> list[AwaitedPartition]:
    """Returns the partitions that a day waits for, as far as is known now. Raises StoreAway."""
    with reading(engine) as db:
        return awaited(db, day)


def leave_out(db: sa.Connection, day: Day, part: Partition, who: str, reason: str) -> None:
    """Has the day not wait for a partition."""
    left_out = {"left_out": reason, "who": who, **reason_signature(reason)}
    added = insert(db, day_positions).values(day=day.id, is_gone=0, **partition_values(part), **left_out)
    db.execute(added.on_conflict_do_update(index_elements=day_positions.primary_key, set_=left_out))


def _of_day(day: Day) -> sa.ColumnElement[bool]:
    return sa.and_(same_partition(offsets, day_positions), day_positions.c.day == day.id)
