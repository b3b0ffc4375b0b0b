"""What stopped a partition: written down by the analyzer that met it, decided on by a person.

A gap is open while nobody accepted it and the partition still stands where it stood then. The decision
moves the stored offset in the same transaction, so that whoever reads the partition goes on from there.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.core.model import Gap, Partition
from analyzer.errors import AnalyzerError
from analyzer.store.database.audit_log import record
from analyzer.store.database.clock import instant
from analyzer.store.database.engine import NowMs, insert, reading, writing
from analyzer.store.database.partition_keys import (
    PartitionKey,
    is_of,
    partition_in,
    place_in,
    place_of,
    row_of,
    same_place,
    unfollow,
)
from analyzer.store.database.schema import gaps, offsets

GAP = [gaps.c[name] for name in Gap._fields]
AT = same_place(offsets, gaps)
UNDECIDED = gaps.c.accepted_ms.is_(None)
# A partition that stands elsewhere by now was moved on by somebody who saw no gap there.
OPEN = sa.and_(UNDECIDED, offsets.c.next.is_not_distinct_from(gaps.c.position))
# Rejected records are read once more instead.
PASSED_OVER = sa.and_(gaps.c.accepted_to > gaps.c.start, gaps.c.kind != "too-many-rejected")


class NoSuchGap(AnalyzerError):
    """Nothing is there to decide on, or not in this way."""


class RecordedGap(NamedTuple):
    """One gap, and the decision on it."""

    part: Partition
    gap: Gap
    found: datetime
    found_by: str
    accepted_to: int | None
    accepted: datetime | None  # None: nobody decided yet
    accepted_by: str
    reason: str

    @property
    def skipped(self) -> int:
        """How many offsets were passed over uncounted; an offset may have had no record."""
        if self.accepted_to is None or self.gap.kind == "too-many-rejected":
            return 0
        return max(0, self.accepted_to - self.gap.start)


class SqlGaps:
    """The analyzer's side. Everything raises StoreAway."""

    def __init__(self, engine: sa.Engine, owner: str) -> None:
        self._engine = engine
        self._owner = owner
        self._noted: set[tuple[PartitionKey, int]] = set()  # by where they begin

    def settle(self, stopped: Mapping[Partition, Gap]) -> set[Partition]:
        """Write down what stands in the way of `stopped`, and return those that may go on: somebody decided,
        or another analyzer went on with them."""
        with writing(self._engine) as db:
            known = _undecided(db, stopped)
            stand = _stand(db, stopped)
            free = set()
            for part, gap in sorted(stopped.items()):
                place = place_of(part)
                moved_on = stand.get(place) != gap.position
                decided = place not in known and (place, gap.start) in self._noted
                if moved_on or decided:
                    free.add(part)
                elif known.get(place) != (gap.position, *gap):
                    self._note(db, part, gap)
        self._noted -= {(place_of(part), stopped[part].start) for part in free}
        self._noted |= {(place_of(part), gap.start) for part, gap in stopped.items() if part not in free}
        return free

    def _note(self, db: sa.Connection, part: Partition, gap: Gap) -> None:
        told = row_of(part) | gap._asdict() | {"position": gap.position}
        row = insert(db, gaps).values(
            id=secrets.token_hex(8), found_ms=NowMs(), found_by=self._owner, accepted_by="", reason="", **told
        )
        if gap.kind == "recreated":
            _forget_older(db, part)
        # An open one of the same partition is this one, told better now, or over.
        again: dict[str, sa.ColumnElement[object]] = {
            name: row.excluded[name] for name in (*Gap._fields, "position")
        }
        moved = gaps.c.position.is_distinct_from(row.excluded.position)
        for name in ("found_ms", "found_by"):
            again[name] = sa.case((moved, row.excluded[name]), else_=gaps.c[name])
        db.execute(
            row.on_conflict_do_update(index_elements=place_in(gaps), index_where=UNDECIDED, set_=again)
        )


def open_gaps(db: sa.Connection, parts: Collection[Partition]) -> dict[PartitionKey, Gap]:
    """What stands in the way of these, by cluster, topic id and number."""
    wanted = {place_of(part) for part in parts}
    found = sa.select(*place_in(gaps), *GAP).select_from(gaps.outerjoin(offsets, AT))
    # Whether records can be read is found out by reading: the mapping may have been mended meanwhile.
    found = found.where(OPEN, gaps.c.kind != "too-many-rejected")
    found = found.where(gaps.c.topic_id.in_({part.topic_id for part in parts}))
    named = (((row[0], row[1], row[2]), Gap(*row[3:])) for row in db.execute(found))
    return {place: gap for place, gap in named if place in wanted}


def known(engine: sa.Engine, *, decided: bool = False) -> Iterator[RecordedGap]:
    """Every open gap, or with `decided` the others as well, those of one topic together.
    Raises StoreAway."""
    with reading(engine) as db:
        yield from _known(db, sa.or_(OPEN, gaps.c.accepted_ms.is_not(None)) if decided else OPEN)


def passed_over(db: sa.Connection) -> list[RecordedGap]:
    """Every gap that left offsets uncounted, by somebody's word."""
    return list(_known(db, PASSED_OVER))


def _known(db: sa.Connection, which: sa.ColumnElement[bool]) -> Iterator[RecordedGap]:
    columns = partition_in(gaps)
    rest = ("found_ms", "found_by", "accepted_to", "accepted_ms", "accepted_by", "reason")
    wanted = sa.select(*columns, *GAP, *(gaps.c[name] for name in rest))
    wanted = wanted.select_from(gaps.outerjoin(offsets, AT)).where(which)
    for row in db.execute(wanted.order_by(gaps.c.topic, gaps.c.partition, gaps.c.found_ms, gaps.c.id)):
        at, found = row[: len(columns)], row[len(columns) :]
        gap, (found_ms, found_by, to, accepted_ms, by, reason) = found[: len(GAP)], found[len(GAP) :]
        decision = None if accepted_ms is None else instant(accepted_ms)
        yield RecordedGap(Partition(*at), Gap(*gap), instant(found_ms), found_by, to, decision, by, reason)


def skipped_of(offsets: sa.Table) -> sa.ScalarSelect[int]:
    """How many offsets of a partition were passed over, in a statement about `offsets`."""
    passed = sa.func.coalesce(sa.func.sum(gaps.c.accepted_to - gaps.c.start), 0)
    each = sa.select(sa.cast(passed, sa.BigInteger)).where(same_place(offsets, gaps), PASSED_OVER)
    return each.correlate(offsets).scalar_subquery()


def waiting(db: sa.Connection) -> set[str]:
    """The sources of which a partition waits, or once did and is over."""
    return set(db.execute(sa.select(gaps.c.source).where(UNDECIDED).distinct()).scalars())


def forget(db: sa.Connection, source: str) -> None:
    """What stands in the way of partitions of `source` that nobody follows. Who follows them later meets it
    again."""
    at = sa.and_(AT, offsets.c.beat_ms.is_not(None))
    followed = sa.select(offsets.c.next).where(at).correlate(gaps).exists()
    # Of a log that was made anew nothing is stored yet: it goes with the last of the old one.
    others = (
        sa.select(offsets.c.next).where(offsets.c.source == source, offsets.c.beat_ms.is_not(None)).exists()
    )
    over = sa.case((gaps.c.position.is_(None), ~others), else_=~followed)
    db.execute(sa.delete(gaps).where(gaps.c.source == source, UNDECIDED, over))


def accept(engine: sa.Engine, at: RecordedGap, to: int, who: str, reason: str) -> None:
    """Let the partition go on at `to`: its stored offset is moved from where it stands, or it begins there.

    Raises NoSuchGap when it stands elsewhere by now, or somebody else has decided; StoreAway.
    """
    part, gap = at.part, at.gap
    with writing(engine) as db:
        # Offsets first, like every writer. An analyzer that still counts from the old place fails at its own
        # compare-and-set from here on.
        moved = _begin(db, part, to) if gap.position is None else _move(db, part, gap, to)
        decided = sa.update(gaps).where(is_of(gaps, part), UNDECIDED, gaps.c.start == gap.start)
        decision = {"accepted_to": to, "accepted_ms": NowMs(), "accepted_by": who, "reason": reason}
        if not moved or db.execute(decided.values(**decision)).rowcount != 1:
            raise NoSuchGap(f"{part}: somebody else has decided meanwhile: see `gatelock gaps list --all`")
        record(db, who, "gap accepted", f"{part}: {gap.kind} {range_of(gap)}, on at {to}", reason)


def range_of(gap: Gap) -> str:
    """
    >>> range_of(Gap("corrupt", 10, 20, "")), range_of(Gap("corrupt", 10, None, ""))
    ('[10, 20)', '[10, ?)')
    """
    return f"[{gap.start}, {'?' if gap.end is None else gap.end})"


def _move(db: sa.Connection, part: Partition, gap: Gap, to: int) -> bool:
    moved = sa.update(offsets).where(is_of(offsets, part), offsets.c.next == gap.position)
    values: dict[str, int | str] = {"next": to, "resume_token": ""}  # the old one told of the place before
    if gap.kind == "too-many-rejected":  # they are read again, and set aside one by one
        values = {"rejects_accepted_to": to}
    return db.execute(moved.values(values)).rowcount == 1


def _begin(db: sa.Connection, part: Partition, to: int) -> bool:
    """Of a log that was made again. Nobody follows the old one any more, in none of its partitions."""
    named_so = sa.and_(offsets.c.source == part.source, offsets.c.topic == part.topic)
    unfollow(db, sa.and_(named_so, offsets.c.topic_id != part.topic_id))
    row = row_of(part) | {"next": to, "resume_token": ""}
    begun = insert(db, offsets).values(row)
    return db.execute(begun.on_conflict_do_nothing().returning(offsets.c.next)).first() is not None


def _forget_older(db: sa.Connection, part: Partition) -> None:
    """What stood in the way of logs that are gone. Nobody will read them again."""
    same = sa.and_(gaps.c.source == part.source, gaps.c.topic == part.topic, gaps.c.partition == part.number)
    db.execute(sa.delete(gaps).where(same, UNDECIDED, gaps.c.topic_id != part.topic_id))


def _undecided(db: sa.Connection, parts: Collection[Partition]) -> dict[PartitionKey, tuple[object, ...]]:
    """The rows of gaps that nobody decided on, whether or not they are over."""
    wanted = sa.select(*place_in(gaps), gaps.c.position, *GAP)
    wanted = wanted.where(UNDECIDED, gaps.c.topic_id.in_({part.topic_id for part in parts}))
    return {(row[0], row[1], row[2]): tuple(row[3:]) for row in db.execute(wanted)}


def _stand(db: sa.Connection, parts: Collection[Partition]) -> dict[PartitionKey, int]:
    """Where partitions stand, their rows locked until commit: a decision waits, and then finds the gap."""
    place = place_in(offsets)
    wanted = sa.select(*place, offsets.c.next)
    wanted = wanted.where(sa.or_(*(is_of(offsets, part) for part in parts)))
    wanted = wanted.order_by(*place).with_for_update()
    return {(row[0], row[1], row[2]): row[3] for row in db.execute(wanted)}
