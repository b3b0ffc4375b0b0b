"""Which offsets of a partition were counted by which plan, replays included, and which were skipped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.kernel.database.partition_keys import is_partition
from analyzer.kernel.model import Partition
from analyzer.kernel.tables.replay_tables import replay_positions, replays
from analyzer.kernel.tables.schema import gaps, plans, stretches


class StretchPlan(NamedTuple):
    """Offsets from `start` on that were counted by a plan."""

    start: int
    plan: int  # version
    mark: str
    body: str | None  # as it is stored; None: deleted since


class _Swapped(NamedTuple):
    """Offsets [begin, end) that a replay has counted again by a plan."""

    begin: int
    end: int
    plan: int
    mark: str


def counted_stretches(
    db: sa.Connection, part: Partition, end: int, before_ms: int | None = None
) -> list[StretchPlan]:
    """Returns the plans by which the offsets before `end` are counted, in order.

    With `before_ms` as they were counted at that time, in milliseconds since 1970 by the database's clock:
    without the replays that were swapped in later.
    """
    columns = stretches.c
    statement = (
        sa.select(columns.start, columns.plan, columns.mark)
        .where(is_partition(stretches, part))
        .order_by(columns.start)
    )
    rows = [(start, plan, mark) for start, plan, mark in db.execute(statement)]
    for replay in _swapped(db, part, before_ms):
        rows = _replaced(rows, replay)
    rows = [row for row in rows if row[0] < end]
    bodies = _bodies(db, {row[1:] for row in rows})
    return [StretchPlan(start, plan, mark, bodies.get((plan, mark))) for start, plan, mark in rows]


def _swapped(db: sa.Connection, part: Partition, before_ms: int | None) -> list[_Swapped]:
    columns = replay_positions.c
    statement = (
        sa.select(columns.begin, columns.end, replays.c.plan, replays.c.mark)
        .join(replays, replays.c.id == columns.replay)
        # Not the one that is being swapped in by this transaction.
        .where(
            is_partition(replay_positions, part),
            replays.c.state == "swapped",
            replays.c.swapped_ms.is_not(None),
        )
        .order_by(replays.c.swapped_ms, replays.c.id)
    )
    if before_ms is not None:
        statement = statement.where(replays.c.swapped_ms < before_ms)
    return [_Swapped(*row) for row in db.execute(statement)]


def _replaced(rows: Sequence[tuple[int, int, str]], replay: _Swapped) -> list[tuple[int, int, str]]:
    """Returns the stretches with those of a replay in place of what it has counted again."""
    front = [row for row in rows if row[0] < replay.begin]
    behind = [row for row in rows if row[0] >= replay.end]
    inside = [row for row in rows if row[0] < replay.end]
    resumed = []
    if inside and not (behind and behind[0][0] == replay.end):
        resumed = [(replay.end, *inside[-1][1:])]
    return [*front, (replay.begin, replay.plan, replay.mark), *resumed, *behind]


def _bodies(db: sa.Connection, keys: set[tuple[int, str]]) -> dict[tuple[int, str], str]:
    columns = plans.c
    rows = db.execute(
        sa.select(columns.version, columns.mark, columns.body).where(
            columns.version.in_({version for version, _ in keys})
        )
    )
    return {(version, mark): body for version, mark, body in rows if (version, mark) in keys}


def skipped_ranges(db: sa.Connection, part: Partition, end: int) -> list[tuple[int, int]]:
    """Returns the ranges of offsets before `end` that an operator let a partition skip, in order."""
    columns = gaps.c
    statement = sa.select(columns.start, columns.accepted_to).where(
        is_partition(gaps, part),
        columns.accepted_to > columns.start,
        columns.kind != "too-many-rejected",
        columns.start < end,
    )
    return [(start, until) for start, until in db.execute(statement.order_by(columns.start))]
