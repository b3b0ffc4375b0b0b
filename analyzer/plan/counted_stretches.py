"""Which offsets of a partition were counted by which plan, replays included, and which were skipped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.kernel.database.partition_keys import is_of
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
    of = stretches.c
    wanted = sa.select(of.start, of.plan, of.mark).where(is_of(stretches, part)).order_by(of.start)
    found = [(start, plan, mark) for start, plan, mark in db.execute(wanted)]
    for replay in _swapped(db, part, before_ms):
        found = _replaced(found, replay)
    found = [one for one in found if one[0] < end]
    bodies = _bodies(db, {one[1:] for one in found})
    return [StretchPlan(start, plan, mark, bodies.get((plan, mark))) for start, plan, mark in found]


def _swapped(db: sa.Connection, part: Partition, before_ms: int | None) -> list[_Swapped]:
    of = replay_positions.c
    wanted = (
        sa.select(of.begin, of.end, replays.c.plan, replays.c.mark)
        .join(replays, replays.c.id == of.replay)
        # Not the one that is being swapped in by this transaction.
        .where(is_of(replay_positions, part), replays.c.state == "swapped", replays.c.swapped_ms.is_not(None))
        .order_by(replays.c.swapped_ms, replays.c.id)
    )
    if before_ms is not None:
        wanted = wanted.where(replays.c.swapped_ms < before_ms)
    return [_Swapped(*row) for row in db.execute(wanted)]


def _replaced(found: Sequence[tuple[int, int, str]], replay: _Swapped) -> list[tuple[int, int, str]]:
    """Returns the stretches with those of a replay in place of what it has counted again."""
    before = [one for one in found if one[0] < replay.begin]
    behind = [one for one in found if one[0] >= replay.end]
    inside = [one for one in found if one[0] < replay.end]
    rest = []
    if inside and not (behind and behind[0][0] == replay.end):
        rest = [(replay.end, *inside[-1][1:])]
    return [*before, (replay.begin, replay.plan, replay.mark), *rest, *behind]


def _bodies(db: sa.Connection, wanted: set[tuple[int, str]]) -> dict[tuple[int, str], str]:
    of = plans.c
    rows = db.execute(
        sa.select(of.version, of.mark, of.body).where(of.version.in_({version for version, _ in wanted}))
    )
    return {(version, mark): body for version, mark, body in rows if (version, mark) in wanted}


def skipped_ranges(db: sa.Connection, part: Partition, end: int) -> list[tuple[int, int]]:
    """Returns the ranges of offsets before `end` that an operator let a partition skip, in order."""
    of = gaps.c
    wanted = sa.select(of.start, of.accepted_to).where(
        is_of(gaps, part), of.accepted_to > of.start, of.kind != "too-many-rejected", of.start < end
    )
    return [(start, until) for start, until in db.execute(wanted.order_by(of.start))]
