"""Judgements that no growth causes: totals that had to wait, and rolling windows whose locks end."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from analyzer.judging.activation_steps import decode_steps, filled_to
from analyzer.judging.judge import NOTHING, Judged, JudgedRows, lapsed, used_at
from analyzer.judging.locks import lock_feed
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.sql import plans, postponed
from analyzer.judging.sql.directory import read_limits
from analyzer.judging.sql.sql_judge import Judge
from analyzer.judging.sql.usual_levels import UsualLevels
from analyzer.judging.totals import TotalKey
from analyzer.kernel.database.clock import clock_ms, instant, millis
from analyzer.kernel.tables.schema import offsets
from analyzer.plan import catalog
from analyzer.plan.plan import Plan
from gatekeeper.model import Lock

# A lock that lasts is extended so long before its end: gates end it by their own clocks.
EXTENDED_MS = 2_000
SILENT_MS = 60_000  # after its last heartbeat a partition is followed by no analyzer


class JudgeOfWarden:
    """Judges by the plan in force, which it decodes once."""

    def __init__(self) -> None:
        self._known: tuple[int, str] | None = None
        self._plan = Plan()
        self._usual = UsualLevels()

    def in_force(self, db: sa.Connection) -> Judge | None:
        """Returns the judge by the plan in force, which no activation can replace until commit.

        None while there is none. Raises SchemaBehind.
        """
        row = self._locked(db)
        return None if row.version is None else self._judge(db, row)

    def _locked(self, db: sa.Connection) -> plans.LockedPlan:
        row = plans.lock_active(db)
        if row.version is not None and self._known != (row.version, row.mark):
            self._plan = plans.active(db)[1]
            self._known = row.version, row.mark
            self._usual = UsualLevels()
        return row

    def _judge(self, db: sa.Connection, row: plans.LockedPlan) -> Judge:
        numbers = catalog.load(db)
        return Judge(
            self._plan,
            row.version or 0,
            numbers,
            instant(row.now_ms),
            filling=filled_to(decode_steps(row.pending), plan_sums(self._plan).numbers(numbers.sum_number)),
            directory=row.directory,
            is_warden=True,
            usual=self._usual,
        )


def judge_waiting(db: sa.Connection, judges: JudgeOfWarden, mark: str) -> JudgedRows:
    """Judges totals whose time has come, up to a bound, and returns how many."""
    if not postponed.has_due(db, clock_ms(db)):
        return JudgedRows(0)
    judge = judges.in_force(db)
    if judge is None:
        return JudgedRows(0)
    now_ms = millis(judge.now)
    sums = plan_sums(judge.plan)
    numbers = {number: sum_ for sum_, number in sums.numbers(judge.catalog.sum_number).items()}
    waited, rows = postponed.due(db, numbers, now_ms, sums.together)
    limits = read_limits(db, judge.plan, judge.directory, {total.key for total in waited})
    judge = judge._replace(behind_s=behind_s(db, now_ms), limits=limits)
    totals = [
        TotalKey(total.sum, total.key, total.resource, window)
        for total in waited
        # A window that the caller does not have any more is judged no more.
        if (window := limits.series_window(total.sum, total.key, total.window_s)).start_s == total.window_s
    ]
    judged = judge.of(db, judge.held(db, totals), waited=waited)
    return JudgedRows(rows, judge.publish(db, judged, mark, only_longer=True))


def end_locks(db: sa.Connection, judges: JudgeOfWarden, mark: str) -> JudgedRows:
    """Clears the locks whose time is over, extends those of rolling windows that last; counts the former."""
    now_ms = clock_ms(db)
    # The locks are not held yet: totals come first, as in flushes.
    ending = lock_feed.ending(db, now_ms + EXTENDED_MS)
    judge = judges.in_force(db) if ending else None
    judged = NOTHING if judge is None else _of_ending_locks(db, judge, ending, now_ms)
    kept = {change.at for change in judged.changes}
    expired = [lock for lock in lock_feed.due(db, now_ms) if lock.at not in kept]
    over, evidence = lapsed(expired, instant(now_ms)), judged.evidence
    if judge is not None:
        standings = judge.lock_standings(db, {lock.at: int(lock.began.timestamp()) for lock in expired})
        used = {**evidence.used, **used_at(judge.plan, standings, over)}
        evidence = evidence._replace(plan=judge.version, used=used)
    changed = Judged([*over, *judged.changes], judged.notices, evidence)
    publish = lock_feed.publish_judged if judge is None else judge.publish
    return JudgedRows(len(over), publish(db, changed, mark))


def _of_ending_locks(db: sa.Connection, judge: Judge, ending: Sequence[Lock], now_ms: int) -> Judged:
    """Judges the rolling windows whose locks are about to end."""
    if not (totals := judge.rolling_totals(ending)):
        return NOTHING
    return judge._replace(behind_s=behind_s(db, now_ms)).of(db, judge.held(db, totals))


def behind_s(db: sa.Connection, now_ms: int) -> float:
    """Returns how far the analyzers are behind, the last one of them.

    A partition without a heartbeat is behind by the time since then, until no analyzer follows it.
    """
    farthest = sa.func.max(offsets.c.behind_ms + (now_ms - offsets.c.beat_ms))
    largest_ms = db.execute(sa.select(farthest).where(offsets.c.beat_ms > now_ms - SILENT_MS)).scalar()
    return max(0, largest_ms or 0) / 1000
