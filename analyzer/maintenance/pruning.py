"""Deletion of what is beyond its retention, in bounded steps; a job for each kind of row.

Each `delete_*` is one transaction, safe to repeat, and returns how many rows it deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.alerts import message_rows
from analyzer.counting.buckets import newest_event_ms
from analyzer.gates.gate_reports import expired
from analyzer.judging.locks import lock_feed
from analyzer.judging.sql import directory, stored_notices, stored_values
from analyzer.judging.sql import hold_offs as hold_off_rows
from analyzer.judging.sql import holds as hold_rows
from analyzer.kernel.database.bounded_deletes import delete_anywhere, delete_at, first_keys
from analyzer.kernel.database.dialects import dialect_of
from analyzer.kernel.kept_ages import Retention
from analyzer.kernel.tables.job_tables import job_runs
from analyzer.kernel.tables.outbox_tables import alert_messages, outbox
from analyzer.kernel.tables.schema import (
    directory_versions,
    disbelieved,
    distinct_values,
    events,
    gates,
    hold_offs,
    holds,
    lock_history,
    notices,
    overrides,
    plans,
    rejects,
    stretches,
    totals,
)
from analyzer.maintenance import roll_up
from analyzer.plan import catalog
from analyzer.plan.windows import Calendar, Rolling, Windows, window_at

PLANS_MAX = 1_000  # kept at all, besides those that rows refer to
ROLLING_KEPT_S = 3_600  # totals of rolling sums, after nothing is in their window any more

ExpiredRows = tuple[sa.Table, sa.ColumnElement[bool]]


class PruneStep(NamedTuple):
    """One transaction of a job that deletes."""

    db: sa.Connection
    now_ms: int  # by the database's clock
    kept: Retention
    most: int  # rows

    def before_ms(self, kept_s: int) -> int:
        """Returns the time before which rows that are kept for `kept_s` are old."""
        return self.now_ms - kept_s * 1000

    def delete(self, rows: Iterable[ExpiredRows]) -> int:
        """Deletes rows of some tables, the first ones first; returns their number."""
        deleted = 0
        for table, condition in rows:
            if deleted < self.most:
                deleted += _delete(self.db, table, condition, self.most - deleted)
        return deleted


def delete_feed(step: PruneStep) -> int:
    return lock_feed.prune(step.db, step.before_ms(step.kept.feed_s), step.most)


def delete_locks(step: PruneStep) -> int:
    before_ms = step.before_ms(step.kept.locks_s)
    return step.delete(
        (
            (disbelieved, disbelieved.c.logged_s < before_ms // 1000),
            (lock_history, lock_history.c.until_ms < before_ms),
            # They explain locks of then.
            (directory_versions, directory.outdated_versions(before_ms)),
            (overrides, directory.forgotten_overrides()),
            (notices, stored_notices.outdated(step.now_ms)),
        )
    )


def delete_rejected(step: PruneStep) -> int:
    newest = sa.select(rejects.c.at_ms).order_by(rejects.c.at_ms.desc())
    beyond = newest.offset(step.kept.rejected).limit(1).scalar_subquery()
    return step.delete([(rejects, rejects.c.at_ms <= beyond)])


def delete_totals(step: PruneStep) -> int:
    """A window is past, and a rolling sum idle, when the newest bucket says so too: a clock that is ahead for
    a minute deletes no total of today."""
    counted_ms = newest_event_ms(step.db, catalog.load(step.db), step.now_ms)
    counted_s, kept_s = min(step.now_ms, counted_ms) // 1000, step.kept.totals_s
    return step.delete(
        (
            *((totals, condition) for condition in _totals_to_delete(step.db, counted_s, kept_s)),
            *((distinct_values, condition) for condition in _values_to_delete(step.db, counted_s, kept_s)),
        )
    )


def delete_plans(step: PruneStep) -> int:
    """A stretch is old when a later one of its partition follows it; a plan, when no stretch refers to it."""
    version = plans.c.version
    newest = sa.select(version).order_by(version.desc()).offset(PLANS_MAX - 1).limit(1)
    # In force at that moment: those before it had been replaced.
    at_that_time = sa.select(sa.func.max(version)).where(plans.c.at_ms < step.before_ms(step.kept.plans_s))
    first = max(step.db.execute(sa.select(newest.scalar_subquery())).scalar() or 0,
                step.db.execute(at_that_time).scalar() or 0)  # fmt: skip
    later = stretches.alias("later")
    of_partition = [later.c[name] == stretches.c[name] for name in ("cluster", "topic_id", "partition")]
    has_later = sa.exists().where(*of_partition, later.c.start > stretches.c.start)
    is_named = sa.exists().where(stretches.c.plan == version)
    return step.delete(
        (
            (stretches, sa.and_(stretches.c.plan < first, has_later)),
            (plans, sa.and_(plans.c.active == 0, version < first, ~is_named)),
        )
    )


def delete_gates(step: PruneStep) -> int:
    return step.delete(
        (
            (gates, expired(step.now_ms)),
            (holds, hold_rows.outdated(step.now_ms)),
            (hold_offs, hold_off_rows.outdated(step.now_ms)),
        )
    )


def delete_log(step: PruneStep) -> int:
    is_over = sa.and_(job_runs.c.began_ms < step.before_ms(step.kept.jobs_s), job_runs.c.outcome != "running")
    return step.delete(((events, events.c.at_ms < step.before_ms(step.kept.events_s)), (job_runs, is_over)))


def delete_alerts(step: PruneStep) -> int:
    """Events that no analyzer routes are dropped after a day: messages about them would be too late."""
    before_ms = step.before_ms(step.kept.alerts_s)
    return step.delete(
        (
            (alert_messages, message_rows.outdated(before_ms)),
            (outbox, message_rows.unrouted(step.now_ms)),
        )
    )


def delete_buckets(step: PruneStep) -> int:
    return roll_up.delete_days(step.db, step.kept.days_s, step.most)


def _totals_to_delete(db: sa.Connection, now_s: int, kept_s: int) -> list[sa.ColumnElement[bool]]:
    """Returns conditions for totals that nothing will be judged by any more.

    Those of dropped sums, of the oldest window that ended long before `now_s`, and of rolling sums that have
    not grown for longer than their window. Forgets dropped sums that have no totals any more.
    """
    conditions = []
    before_s = now_s - kept_s
    columns, numbers = totals.c, catalog.load(db)
    for name, number in [*numbers.sums.items(), *numbers.dropped_sums.items()]:
        oldest = sa.select(columns.window_s).where(columns.sum == number).order_by(columns.window_s).limit(1)
        window_s = db.execute(oldest).scalar()
        is_dropped = name in numbers.dropped_sums
        if window_s is None:
            if is_dropped and stored_values.oldest_s(db, number) is None:
                catalog.forget_sum(db, name)
            continue
        of_sum, windows = (
            sa.and_(columns.sum == number, columns.window_s == window_s),
            catalog.sum_windows(name),
        )
        if isinstance(windows, Rolling) and not is_dropped:
            idle_s = windows.period_s + windows.slot_s + ROLLING_KEPT_S
            conditions.append(sa.and_(of_sum, columns.touched_s < now_s - idle_s))
        elif is_dropped or _last_end_s(windows, window_s) <= before_s:
            conditions.append(of_sum)
    return conditions


def _last_end_s(windows: Windows, window_s: int) -> int:
    """Returns the end of the windows that begin at `window_s`; of callers' windows a time after it."""
    if isinstance(windows, Calendar) and windows.facts:
        return window_s + windows.longest_s
    return window_at(windows, window_s).until_s


def _values_to_delete(db: sa.Connection, now_s: int, kept_s: int) -> list[sa.ColumnElement[bool]]:
    """Returns conditions for distinct values that nothing will be judged by any more."""
    conditions = []
    before_s = now_s - kept_s
    columns, numbers = distinct_values.c, catalog.load(db)
    for name, number in [*numbers.sums.items(), *numbers.dropped_sums.items()]:
        oldest_s = stored_values.oldest_s(db, number)
        if oldest_s is None:
            continue
        windows = catalog.sum_windows(name)
        of_sum = columns.sum == number
        if name in numbers.dropped_sums:
            conditions.append(of_sum)
        elif isinstance(windows, Rolling):
            idle_s = windows.period_s + windows.slot_s + ROLLING_KEPT_S
            conditions.append(sa.and_(of_sum, columns.window_s < now_s - idle_s))
        elif window_at(windows, oldest_s).until_s <= before_s:
            conditions.append(sa.and_(of_sum, columns.window_s == oldest_s))
    return conditions


def _delete(db: sa.Connection, table: sa.Table, condition: sa.ColumnElement[bool], most: int) -> int:
    """Deletes rows and returns their number; SQLite's driver has no row count for a DELETE after WITH."""
    if table in (distinct_values, overrides) and dialect_of(db).has_row_places:
        return db.execute(delete_anywhere(table, condition, most)).rowcount
    deleted = delete_at(table, first_keys(table, condition, most))
    return len(db.execute(deleted.returning(next(iter(table.primary_key)))).all())
