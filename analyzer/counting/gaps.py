"""Gaps: stored by the analyzer that is blocked by them, decided on by an operator.

A gap is open while it is not accepted and the partition is still at the gap's position. The decision moves
the stored offset in the same transaction, so that the next reader of the partition continues from there.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.kernel.database import signed_rows
from analyzer.kernel.database.audit_log import record
from analyzer.kernel.database.clock import instant
from analyzer.kernel.database.engine import NowMs, insert, reading, writing
from analyzer.kernel.database.partition_keys import (
    PartitionKey,
    is_partition,
    key_columns,
    key_tuple,
    partition_columns,
    partition_values,
    same_partition,
    unfollow,
)
from analyzer.kernel.errors import AnalyzerError
from analyzer.kernel.model import Gap, Partition
from analyzer.kernel.tables.schema import gaps, offsets

GAP_COLUMNS = [gaps.c[name] for name in Gap._fields]
SAME_PARTITION = same_partition(offsets, gaps)
UNDECIDED = gaps.c.accepted_ms.is_(None)
# If the partition is at another position, an analyzer has read past the gap.
OPEN = sa.and_(UNDECIDED, offsets.c.next.is_not_distinct_from(gaps.c.position))
# Accepted runs of rejected records are read once more instead of being skipped.
SKIPPED = sa.and_(gaps.c.accepted_to > gaps.c.start, gaps.c.kind != "too-many-rejected")


class NoSuchGap(AnalyzerError):
    """The gap does not exist, or was decided already."""


class RecordedGap(NamedTuple):
    """One gap, and the decision on it."""

    part: Partition
    gap: Gap
    found: datetime
    found_by: str
    accepted_to: int | None
    accepted: datetime | None  # None: not decided yet
    accepted_by: str
    reason: str

    @property
    def skipped(self) -> int:
        """Number of offsets that were skipped uncounted; some of them may have had no record."""
        if self.accepted_to is None or self.gap.kind == "too-many-rejected":
            return 0
        return max(0, self.accepted_to - self.gap.start)


class SqlGaps:
    """The gaps as the analyzer's loop uses them. Every method raises StoreAway."""

    def __init__(self, engine: sa.Engine, owner: str) -> None:
        self._engine = engine
        self._owner = owner
        self._stored: set[tuple[PartitionKey, int]] = set()  # partition and start of the gaps stored by us

    def settle(self, stopped: Mapping[Partition, Gap]) -> set[Partition]:
        """Stores the gaps of the stopped partitions, and returns the partitions that may continue.

        A partition may continue when an operator decided, or another analyzer read past the gap.
        """
        with writing(self._engine) as db:
            undecided = _undecided(db, stopped)
            positions = _positions(db, stopped)
            released = set()
            for part, gap in sorted(stopped.items()):
                key = key_tuple(part)
                is_passed = positions.get(key) != gap.position
                is_decided = key not in undecided and (key, gap.start) in self._stored
                if is_passed or is_decided:
                    released.add(part)
                elif undecided.get(key) != (gap.position, *gap):
                    self._store(db, part, gap)
        self._stored -= {(key_tuple(part), stopped[part].start) for part in released}
        self._stored |= {
            (key_tuple(part), gap.start) for part, gap in stopped.items() if part not in released
        }
        return released

    def _store(self, db: sa.Connection, part: Partition, gap: Gap) -> None:
        row = partition_values(part) | gap._asdict() | {"position": gap.position}
        new = insert(db, gaps).values(
            id=secrets.token_hex(8), found_ms=NowMs(), found_by=self._owner, accepted_by="", reason="", **row
        )
        if gap.kind == "recreated":
            _delete_older(db, part)
        # An undecided row of the same partition is this gap, which now has a better description, or an
        # obsolete one.
        updated: dict[str, sa.ColumnElement[object]] = {
            name: new.excluded[name] for name in (*Gap._fields, "position")
        }
        moved = gaps.c.position.is_distinct_from(new.excluded.position)
        for name in ("found_ms", "found_by"):
            updated[name] = sa.case((moved, new.excluded[name]), else_=gaps.c[name])
        db.execute(
            new.on_conflict_do_update(index_elements=key_columns(gaps), index_where=UNDECIDED, set_=updated)
        )


def open_gaps(db: sa.Connection, parts: Collection[Partition]) -> dict[PartitionKey, Gap]:
    """Returns the gaps that block these partitions."""
    keys = {key_tuple(part) for part in parts}
    statement = sa.select(*key_columns(gaps), *GAP_COLUMNS).select_from(
        gaps.outerjoin(offsets, SAME_PARTITION)
    )
    # Rejected records are read again on start: the mapping may have been corrected meanwhile.
    statement = statement.where(OPEN, gaps.c.kind != "too-many-rejected")
    statement = statement.where(gaps.c.topic_id.in_({part.topic_id for part in parts}))
    keyed_gaps = (((row[0], row[1], row[2]), Gap(*row[3:])) for row in db.execute(statement))
    return {key: gap for key, gap in keyed_gaps if key in keys}


def recorded_gaps(engine: sa.Engine, *, decided: bool = False) -> Iterator[RecordedGap]:
    """Yields every open gap, and with `decided` the decided ones too, by topic. Raises StoreAway."""
    with reading(engine) as db:
        yield from _recorded(db, sa.or_(OPEN, gaps.c.accepted_ms.is_not(None)) if decided else OPEN)


def skipped_gaps(db: sa.Connection) -> list[RecordedGap]:
    """Returns every gap that left offsets uncounted by an operator's decision."""
    return list(_recorded(db, SKIPPED))


def _recorded(db: sa.Connection, condition: sa.ColumnElement[bool]) -> Iterator[RecordedGap]:
    columns = partition_columns(gaps)
    decision = ("found_ms", "found_by", "accepted_to", "accepted_ms", "accepted_by", "reason")
    statement = sa.select(*columns, *GAP_COLUMNS, *(gaps.c[name] for name in decision))
    statement = statement.select_from(gaps.outerjoin(offsets, SAME_PARTITION)).where(condition)
    for row in db.execute(statement.order_by(gaps.c.topic, gaps.c.partition, gaps.c.found_ms, gaps.c.id)):
        part, values = row[: len(columns)], row[len(columns) :]
        gap, (found_ms, found_by, to, accepted_ms, by, reason) = (
            values[: len(Gap._fields)],
            values[len(Gap._fields) :],
        )
        accepted = None if accepted_ms is None else instant(accepted_ms)
        yield RecordedGap(Partition(*part), Gap(*gap), instant(found_ms), found_by, to, accepted, by, reason)


def skipped_offsets(offsets: sa.Table) -> sa.ScalarSelect[int]:
    """Returns the number of skipped offsets of a partition, as a subquery of a statement on `offsets`."""
    skipped = sa.func.coalesce(sa.func.sum(gaps.c.accepted_to - gaps.c.start), 0)
    statement = sa.select(sa.cast(skipped, sa.BigInteger)).where(same_partition(offsets, gaps), SKIPPED)
    return statement.correlate(offsets).scalar_subquery()


def recounted_offsets(offsets: sa.Table) -> sa.ScalarSelect[int]:
    """Returns the number of offsets that were counted, cut off the log, and given to other records.

    A subquery of a statement on `offsets`. Of these, `skipped_offsets` has those that were skipped.
    """
    first = sa.case((gaps.c.accepted_to < gaps.c.start, gaps.c.accepted_to), else_=gaps.c.start)
    again = sa.func.coalesce(sa.func.sum(gaps.c.end - first), 0)
    is_cut = sa.and_(gaps.c.kind == "past-end", gaps.c.accepted_to < gaps.c.end)
    statement = sa.select(sa.cast(again, sa.BigInteger)).where(same_partition(offsets, gaps), is_cut)
    return statement.correlate(offsets).scalar_subquery()


def sources_with_gaps(db: sa.Connection) -> set[str]:
    """Returns the sources with an undecided gap, open or obsolete."""
    return set(db.execute(sa.select(gaps.c.source).where(UNDECIDED).distinct()).scalars())


def forget(db: sa.Connection, source: str) -> None:
    """Deletes the undecided gaps of partitions that no analyzer follows.

    An analyzer that follows such a partition later finds and stores its gap again.
    """
    is_followed = offsets.c.beat_ms.is_not(None)
    followed = sa.select(offsets.c.next).where(SAME_PARTITION, is_followed).correlate(gaps).exists()
    # A recreated log has no stored offset yet: its gap goes with the last partition of the old log.
    source_followed = sa.select(offsets.c.next).where(offsets.c.source == source, is_followed).exists()
    is_obsolete = sa.case((gaps.c.position.is_(None), ~source_followed), else_=~followed)
    db.execute(sa.delete(gaps).where(gaps.c.source == source, UNDECIDED, is_obsolete))


def accept(engine: sa.Engine, recorded: RecordedGap, to: int, who: str, reason: str) -> None:
    """Lets the partition continue at `to`: moves its stored offset, or begins it there.

    Raises NoSuchGap when the partition has moved or the gap was decided since; StoreAway.
    """
    part, gap = recorded.part, recorded.gap
    with writing(engine) as db:
        # Offsets first, like every writer. An analyzer that still counts from the old position fails at its
        # compare-and-set from here on.
        moved = _begin(db, part, gap, to) if gap.position is None else _move(db, part, gap, to)
        decided = sa.update(gaps).where(is_partition(gaps, part), UNDECIDED, gaps.c.start == gap.start)
        decision = {"accepted_to": to, "accepted_ms": NowMs(), "accepted_by": who, "reason": reason}
        rows = db.execute(decided.values(**decision).returning(*gaps.c)).mappings().all() if moved else ()
        if len(rows) != 1:
            raise NoSuchGap(
                f"{part}: the gap was decided or is obsolete: see `gatelock upkeep sources list --gaps --all`"
            )
        signed_rows.sign(db, signed_rows.gap(rows[0]))
        record(db, who, "gap accepted", f"{part}: {gap.kind} {format_range(gap)}, on at {to}", reason)


def format_range(gap: Gap) -> str:
    """Returns the gap's offsets for display.

    >>> format_range(Gap("corrupt", 10, 20, "")), format_range(Gap("corrupt", 10, None, ""))
    ('[10, 20)', '[10, ?)')
    """
    return f"[{gap.start}, {'?' if gap.end is None else gap.end})"


def _move(db: sa.Connection, part: Partition, gap: Gap, to: int) -> bool:
    at_gap = sa.update(offsets).where(is_partition(offsets, part), offsets.c.next == gap.position)
    values: dict[str, int | str] = {
        "next": to,
        "resume_token": "",
    }  # the stored token describes the old position
    if gap.kind == "too-many-rejected":  # they are read again, and rejected one by one
        values = {"rejects_accepted_to": to}
    return db.execute(at_gap.values(values)).rowcount == 1


def _begin(db: sa.Connection, part: Partition, gap: Gap, to: int) -> bool:
    """Begins a recreated log. No analyzer follows the old one any more, in any partition."""
    same_name = sa.and_(offsets.c.source == part.source, offsets.c.topic == part.topic)
    unfollow(db, sa.and_(same_name, offsets.c.topic_id != part.topic_id))
    # From the gap's start on: the offsets up to `to` are skipped.
    row = partition_values(part) | {"begin": min(gap.start, to), "next": to, "resume_token": ""}
    begun = insert(db, offsets).values(row)
    return db.execute(begun.on_conflict_do_nothing().returning(offsets.c.next)).first() is not None


def _delete_older(db: sa.Connection, part: Partition) -> None:
    """Deletes the undecided gaps of earlier logs under this name: they will never be read again."""
    same = sa.and_(gaps.c.source == part.source, gaps.c.topic == part.topic, gaps.c.partition == part.number)
    db.execute(sa.delete(gaps).where(same, UNDECIDED, gaps.c.topic_id != part.topic_id))


def _undecided(db: sa.Connection, parts: Collection[Partition]) -> dict[PartitionKey, tuple[object, ...]]:
    """Returns the columns of the undecided gaps of these partitions, open or obsolete."""
    statement = sa.select(*key_columns(gaps), gaps.c.position, *GAP_COLUMNS)
    statement = statement.where(UNDECIDED, gaps.c.topic_id.in_({part.topic_id for part in parts}))
    return {(row[0], row[1], row[2]): tuple(row[3:]) for row in db.execute(statement)}


def _positions(db: sa.Connection, parts: Collection[Partition]) -> dict[PartitionKey, int]:
    """Returns the stored offsets, and locks their rows until commit, so that a decision waits for the gap."""
    key = key_columns(offsets)
    statement = sa.select(*key, offsets.c.next)
    statement = statement.where(sa.or_(*(is_partition(offsets, part) for part in parts)))
    statement = statement.order_by(*key).with_for_update()
    return {(row[0], row[1], row[2]): row[3] for row in db.execute(statement)}
