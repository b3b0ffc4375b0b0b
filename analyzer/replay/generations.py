"""Shadow generations: begun, counted flush by flush, listed, dropped."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.counting.buckets import column_increments, column_pages, joining
from analyzer.judging.locks import verdict_decisions
from analyzer.kernel.database.audit_log import record
from analyzer.kernel.database.bounded_deletes import delete_at, first_keys
from analyzer.kernel.database.engine import NowMs, insert, reading, slow_reading, writing
from analyzer.kernel.database.partition_keys import (
    is_partition,
    key_values,
    partition_columns,
    partition_values,
)
from analyzer.kernel.database.row_parameters import ColumnValues, upsert_columns
from analyzer.kernel.errors import ReplayLost, ReplayRefused
from analyzer.kernel.model import Partition
from analyzer.kernel.tables.replay_tables import replay_positions, replayed_counts, replayed_rejects, replays
from analyzer.kernel.tables.schema import disbelieved, offsets, rejects
from analyzer.plan import catalog
from analyzer.plan.counted_stretches import StretchPlan, counted_stretches
from analyzer.replay.twin_counter import LedgerChange, ReplayedCounts

DELETED_AT_ONCE = 5_000
LEDGER = LedgerChange._fields
STATES = ("counting", "counted", "swapped", "dropped")


class ReplayRange(NamedTuple):
    """Offsets of a partition that are replayed: [begin, end), read from `warm` on."""

    part: Partition
    warm: int
    begin: int
    end: int


class ReplayPosition(NamedTuple):
    """A range, how far it is counted again, and how the ledger differs."""

    range: ReplayRange
    next: int
    stretches: str
    ledger: LedgerChange


class Replay(NamedTuple):
    """A replay as it is stored."""

    id: int
    state: str
    source: str
    plan: int
    mark: str
    parts: str
    files: tuple[str, ...]
    about: str
    who: str
    began_ms: int
    counted_ms: int | None
    swapped_ms: int | None
    swapped_by: str
    reason: str
    rows: int
    positions: tuple[ReplayPosition, ...] = ()

    @property
    def ledger(self) -> LedgerChange:
        return LedgerChange().plus(*(position.ledger for position in self.positions))


class NewReplay(NamedTuple):
    """The request for a replay.

    Attributes:
        source: Name of the source.
        plan: Version of the plan to count by, and its mark.
        parts: Digest of what this plan says about counts.
        files: Paths; of a topic, none.
        about: What was asked for, in words.
        ranges: Of each partition.
    """

    source: str
    plan: tuple[int, str]
    parts: str
    files: Sequence[str]
    about: str
    ranges: Sequence[ReplayRange]


def begin(engine: sa.Engine, new: NewReplay, who: str) -> Replay:
    """Stores a new replay, of which nothing is counted yet. Raises StoreAway, ReplayRefused."""
    with writing(engine) as db:
        newest = sa.select(sa.func.coalesce(sa.func.max(replays.c.id), 0) + 1).scalar_subquery()
        row = {
            "id": newest, "state": "counting", "source": new.source, "plan": new.plan[0], "mark": new.plan[1],
            "parts": new.parts, "files": json.dumps([*new.files]), "about": new.about, "who": who,
            "began_ms": NowMs(), **dict.fromkeys(("swapped_by", "reason", "days"), ""), "rows": 0,
        }  # fmt: skip
        number = db.execute(sa.insert(replays).values(row).returning(replays.c.id)).scalar_one()
        for log_range in sorted(new.ranges):
            refuse_disbelieved(db, log_range)
            stretches = stretches_text(counted_stretches(db, log_range.part, log_range.end))
            db.execute(
                sa.insert(replay_positions).values(
                    {
                        "replay": number,
                        **partition_values(log_range.part),
                        "warm": log_range.warm,
                        "begin": log_range.begin,
                    }
                    | {"next": log_range.begin, "end": log_range.end, "stretches": stretches}
                    | dict.fromkeys(LEDGER, 0)
                )
            )
    return stored(engine, number)


def stretches_text(stretches: Sequence[StretchPlan]) -> str:
    """Returns stretches as they are compared: equal texts, equal plans."""
    return json.dumps([[stretch.start, stretch.plan, stretch.mark] for stretch in stretches])


def refuse_disbelieved(db: sa.Connection, log_range: ReplayRange) -> None:
    """Raises ReplayRefused if requests count although their records call them denied."""
    columns = disbelieved.c
    moved = sa.select(columns.begin).where(
        is_partition(disbelieved, log_range.part),
        columns.begin < log_range.end,
        columns.next > log_range.warm,
    )
    if db.execute(moved.limit(1)).first() is not None:
        raise ReplayRefused(
            f"{log_range.part}: requests count that its records call denied, because no lock was in force "
            "(see `gatelock billing report corrections today`); choose a time without them"
        )


def rejected_reasons(engine: sa.Engine, log_range: ReplayRange) -> dict[int, str]:
    """Returns the offsets of the records of a range that are rejected at present, with the reasons."""
    columns = rejects.c
    statement = sa.select(columns.offset, columns.reason).where(
        is_partition(rejects, log_range.part),
        columns.offset >= log_range.warm,
        columns.offset < log_range.end,
    )
    with slow_reading(engine) as db:
        return {int(row.offset): str(row.reason) for row in db.execute(statement)}


def store(engine: sa.Engine, number: int, part: Partition, counted: ReplayedCounts) -> None:
    """Stores what was counted, together with the position: each record counts once.

    Raises ReplayLost, ReplayRefused, StoreAway.
    """
    with writing(engine) as db:
        _move(db, number, part, counted)
        if verdict_decisions.disbelieved(db, counted.verdicts):
            raise ReplayRefused(
                f"{part}: from offset {counted.start:,} on, requests are called denied for which no lock was "
                "in force; such requests cannot be replayed"
            )
        numbers = catalog.load(db)
        for table in sorted(counted.tables, key=lambda table: numbers.groupings[table.grouping]):
            for rows, joins in column_pages(table, numbers):
                values: dict[str, ColumnValues] = {
                    "replay": number,
                    "grouping": rows.grouping,
                    "page": rows.page,
                    "bucket_s": rows.buckets_s,
                    "key": rows.keys,
                    "resource": rows.resources,
                    **column_increments(rows),
                }
                upsert_columns(db, replayed_counts, values, joining(rows, joins))
        _add_rejected(db, number, part, counted)


def _move(db: sa.Connection, number: int, part: Partition, counted: ReplayedCounts) -> None:
    columns = replay_positions.c
    is_current = sa.and_(
        columns.replay == number, is_partition(replay_positions, part), columns.next == counted.start
    )
    added = {name: columns[name] + by for name, by in counted.ledger._asdict().items()}
    moved = sa.update(replay_positions).where(is_current).values(added | {"next": counted.next})
    if db.execute(moved).rowcount != 1:
        raise ReplayLost(f"replay {number}: another process continues it, or has dropped it")


def _add_rejected(db: sa.Connection, number: int, part: Partition, counted: ReplayedCounts) -> None:
    key = {"replay": number, **key_values(part)}
    rows = [
        key
        | {"offset": rejected.offset, "is_added": 1, "reason": rejected.reason, "sample": rejected.sample}
        | {"value_bytes": rejected.value_bytes, "kafka_ms": rejected.kafka_ms}
        for rejected in counted.rejected
    ]
    rows += [
        key
        | {"offset": offset, "is_added": 0, "reason": "", "sample": b""}
        | {"value_bytes": None, "kafka_ms": None}
        for offset in counted.readable
    ]
    if rows:
        db.execute(sa.insert(replayed_rejects), rows)


def finish(engine: sa.Engine, number: int) -> Replay:
    """Marks a replay as counted when each partition has reached its end; returns it.

    Raises ReplayLost, StoreAway.
    """
    columns = replay_positions.c
    unfinished = sa.exists().where(columns.replay == number, columns.next < columns.end)
    is_counted = sa.and_(replays.c.id == number, replays.c.state == "counting", ~unfinished)
    with writing(engine) as db:
        update = sa.update(replays).where(is_counted).values(state="counted", counted_ms=NowMs())
        if db.execute(update).rowcount != 1:
            raise ReplayLost(f"replay {number}: another process continues it, or has dropped it")
    return stored(engine, number)


def stored(engine: sa.Engine, number: int) -> Replay:
    """Returns a replay. Raises ReplayRefused if there is none with this number; StoreAway."""
    matching = [replay for replay in all_stored(engine) if replay.id == number]
    if not matching:
        raise ReplayRefused(f"there is no replay {number}: see `gatelock upkeep replay list`")
    return matching[0]


def all_stored(engine: sa.Engine) -> list[Replay]:
    """Returns all replays, the latest first. Raises StoreAway."""
    with reading(engine) as db:
        positions = _positions(db)
        columns = [replays.c[name] for name in Replay._fields[:-1]]
        stored_replays = [
            Replay(*row) for row in db.execute(sa.select(*columns).order_by(replays.c.id.desc()))
        ]
    return [
        replay._replace(
            files=tuple(json.loads(str(replay.files))), positions=tuple(positions.get(replay.id, ()))
        )
        for replay in stored_replays
    ]


def _positions(db: sa.Connection) -> Mapping[int, list[ReplayPosition]]:
    columns = replay_positions.c
    statement = sa.select(
        columns.replay,
        *partition_columns(replay_positions),
        columns.warm,
        columns.begin,
        columns.end,
        columns.next,
        columns.stretches,
        *(columns[name] for name in LEDGER),
    ).order_by(columns.replay, *partition_columns(replay_positions)[:3])
    positions: dict[int, list[ReplayPosition]] = {}
    for number, *row in db.execute(statement):
        log_range = ReplayRange(Partition(*row[:5]), *row[5:8])
        positions.setdefault(number, []).append(
            ReplayPosition(log_range, row[8], row[9], LedgerChange(*row[10:]))
        )
    return positions


def known_logs(engine: sa.Engine, source: str) -> dict[Partition, tuple[int, int]]:
    """Returns the partitions of a source with the offsets that are counted of them, [begin, next)."""
    columns = offsets.c
    statement = sa.select(*partition_columns(offsets), columns.begin, columns.next).where(
        columns.source == source
    )
    with reading(engine) as db:
        return {Partition(*row[:5]): (row[5], row[6]) for row in db.execute(statement)}


def drop(engine: sa.Engine, number: int, who: str, reason: str) -> Replay:
    """Gives up a replay that is not swapped in; returns it. Raises ReplayRefused, StoreAway."""
    with writing(engine) as db:
        is_open = sa.and_(replays.c.id == number, replays.c.state.in_(STATES[:2]))
        if db.execute(sa.update(replays).where(is_open).values(state="dropped")).rowcount == 1:
            record(db, who, "replay dropped", f"replay {number}", reason)
            _forget_positions(db, number)
    delete_rows(engine)
    replay = stored(engine, number)
    if replay.state == "swapped":
        raise ReplayRefused(f"replay {number} is swapped in: replay the log again to change its counts")
    return replay


def drop_open(engine: sa.Engine, who: str, reason: str) -> None:
    """Gives up all replays that are not swapped in. Raises StoreAway."""
    for replay in all_stored(engine):
        if replay.state in STATES[:2]:
            drop(engine, replay.id, who, reason)


def _forget_positions(db: sa.Connection, number: int) -> None:
    """Deletes the positions, so that a process that still counts stores nothing more."""
    db.execute(sa.delete(replay_positions).where(replay_positions.c.replay == number))


def delete_rows(engine: sa.Engine) -> None:
    """Deletes the rows of generations that are swapped in or dropped, in short transactions."""
    ended = sa.select(replays.c.id).where(replays.c.state.in_(STATES[2:]))
    for table in (replayed_counts, replayed_rejects):
        while True:
            with writing(engine) as db:
                statement = sa.select(table.c.replay).where(table.c.replay.in_(ended)).limit(1)
                number = db.execute(statement).scalar()
                if number is None:
                    break
                keys = first_keys(table, table.c.replay == number, DELETED_AT_ONCE)
                db.execute(delete_at(table, keys))


def insert_rejected(db: sa.Connection, rows: Sequence[Mapping[str, object]]) -> None:
    """Stores rejected records, unless they are there."""
    if rows:
        db.execute(insert(db, rejects).on_conflict_do_nothing(), rows)


def correcting_replays(engine: sa.Engine, day: int) -> list[Replay]:
    """Returns the replays that have booked adjustments of a closed day, in order. Raises StoreAway."""
    with reading(engine) as db:
        statement = sa.select(replays.c.id, replays.c.days).where(replays.c.state == "swapped")
        numbers = {number for number, days in db.execute(statement) if day in json.loads(days or "[]")}
    return sorted(replay for replay in all_stored(engine) if replay.id in numbers)
