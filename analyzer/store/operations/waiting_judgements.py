"""Judgements that no growth causes: totals that had to wait, and rolling windows whose locks end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.core.judging.activation_steps import filled_to, steps_of
from analyzer.core.judging.earned_notices import Notice
from analyzer.core.judging.judge import lapsed
from analyzer.core.judging.plan import Plan
from analyzer.core.judging.totals import TotalKey
from analyzer.core.judging.windows import Rolling
from analyzer.store.database.clock import clock_ms, instant
from analyzer.store.database.schema import offsets
from analyzer.store.transaction import catalog, lock_feed, plans
from analyzer.store.transaction.judgement import postponed
from analyzer.store.transaction.judgement.directory import limits_of
from analyzer.store.transaction.judgement.sql_judge import Judge
from analyzer.store.transaction.judgement.usual_levels import UsualLevels
from gatekeeper.model import Change

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

    def of_rolling_windows(self, db: sa.Connection) -> Judge | None:
        """Returns the judge as `in_force` does; None also for a plan that has calendar windows alone."""
        row = self._locked(db)
        has_rolling = any(isinstance(sum_.window, Rolling) for sum_ in self._plan.policies_of)
        return None if row.version is None or not has_rolling else self._judge(db, row)

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
            filling=filled_to(steps_of(row.pending), numbers.sum_numbers(self._plan)),
            directory=row.directory,
            is_warden=True,
            usual=self._usual,
        )


class JudgedWaiting(NamedTuple):
    """The result of judging the totals whose time had come."""

    waited: int
    changes: Sequence[Change] = ()
    notices: Sequence[Notice] = ()


def judge_waiting(db: sa.Connection, judges: JudgeOfWarden, mark: str) -> JudgedWaiting:
    """Judges totals whose time has come, up to a bound."""
    if not postponed.has_due(db, clock_ms(db)):
        return JudgedWaiting(0)
    judge = judges.in_force(db)
    if judge is None:
        return JudgedWaiting(0)
    numbers = {number: sum_ for sum_, number in judge.catalog.sum_numbers(judge.plan).items()}
    wanted, rows = postponed.due(db, numbers, clock_ms(db), judge.plan.together)
    judge = judge._replace(behind_s=behind_s(db, clock_ms(db)))
    limits = limits_of(db, judge.plan, judge.directory, {one.key for one in wanted})
    totals = [
        TotalKey(one.sum, one.key, one.resource, window)
        for one in wanted
        # A window that the caller does not have any more is judged no more.
        if (window := limits.window_of(one.sum, one.key, one.window_s)).start_s == one.window_s
    ]
    due = judge.held(db, totals)
    postponed.forget(db, wanted, judge.catalog)
    changes, notices = judge.of(db, due)
    if changes:
        changes = lock_feed.publish_longer(db, changes, mark)
    return JudgedWaiting(rows, changes, notices)


def end_locks(db: sa.Connection, judges: JudgeOfWarden, mark: str) -> list[Change]:
    """Clears the locks whose time is over, extends those of rolling windows that last; returns both."""
    now_ms = clock_ms(db)
    judged = _judged(db, judges, now_ms)
    kept = {change.at for change in judged}
    ended = lapsed(lock_feed.due(db, now_ms), instant(now_ms))
    changes = [*(change for change in ended if change.at not in kept), *judged]
    return lock_feed.publish(db, changes, mark) if changes else []


def _judged(db: sa.Connection, judges: JudgeOfWarden, now_ms: int) -> Sequence[Change]:
    judge = judges.of_rolling_windows(db)
    if judge is None:
        return []
    # The locks are not held yet: totals come first, as in flushes.
    ending = judge.rolling_totals(lock_feed.ending(db, now_ms + EXTENDED_MS))
    if not ending:
        return []
    return judge._replace(behind_s=behind_s(db, now_ms)).of(db, judge.held(db, ending)).changes


def behind_s(db: sa.Connection, now_ms: int) -> float:
    """Returns how far the analyzers are behind, the last one of them.

    A partition without a heartbeat is behind by the time since then, until no analyzer follows it.
    """
    farthest = sa.func.max(offsets.c.behind_ms + (now_ms - offsets.c.beat_ms))
    found = db.execute(sa.select(farthest).where(offsets.c.beat_ms > now_ms - SILENT_MS)).scalar()
    return max(0, found or 0) / 1000
