"""Work that one analyzer at a time does for all: ending locks, and keeping every table bounded."""

from __future__ import annotations

import logging
from collections.abc import Callable

import sqlalchemy as sa

from analyzer.core.counting.meters import DAY_S, MINUTE_S, QUARTER_S, bucket_start_s
from analyzer.core.judging.judge import JudgedRows
from analyzer.core.judging.windows import Calendar, Rolling, Windows, window_at
from analyzer.store.database.bounded_deletes import delete_anywhere, delete_at, first_keys
from analyzer.store.database.clock import clock_ms
from analyzer.store.database.engine import NowMs, insert, slow_reading, without_scans, writing
from analyzer.store.database.schema import (
    directory_versions,
    disbelieved,
    distinct_values,
    gates,
    leases,
    notices,
    overrides,
    rejects,
    stretches,
    totals,
)
from analyzer.store.database.schema import hold_offs as hold_offs_table
from analyzer.store.database.schema import holds as holds_table
from analyzer.store.database.schema import lock_history as lock_history_table
from analyzer.store.database.schema import plans as plans_table
from analyzer.store.operations import (
    applied_facts,
    braked_policies,
    caller_changes,
    changed_limits,
    roll_up,
    total_repair,
    waiting_judgements,
)
from analyzer.store.reports.audit import prove_next_day
from analyzer.store.reports.gate_reports import expired
from analyzer.store.transaction import catalog, lock_feed, plans
from analyzer.store.transaction.buckets import newest_event_ms
from analyzer.store.transaction.judgement import (
    directory,
    hold_offs,
    holds,
    slots,
    stored_notices,
    stored_values,
)
from analyzer.store.transaction.verdicts.lock_history import HISTORY_KEPT_MS

log = logging.getLogger(__name__)

LEASE_MS = 5_000
LEAP_MS = 1_000  # a clock that goes back by less has ended no lock that would not end now anyway
DELETED_MAX = 10_000  # rows in one transaction
REJECTS_KEPT = 100_000  # the newest; the ledger keeps the count of all
CHANGES_KEPT_MS = 3_600_000  # of the feed; a gate that was away for longer gets a snapshot
PLANS_KEPT = 1_000  # the newest
FOLDED_AT_ONCE = 500  # callers whose rows of a day are joined in one transaction
ACTIVATION_ROWS = 5_000  # read in one step, while flushes wait
ROLLING_KEPT_S = 3_600  # totals of rolling sums, after nothing is in their window any more
TOTALS_KEPT_S = 2 * DAY_S  # after the end of their window, when they are never judged again


class SqlUpkeep:
    """Implements `Upkeep`. Every method is idempotent, and safe while a second warden runs.

    Two wardens run for a moment when another one takes the lease. All methods raise StoreAway. Must not be
    shared between threads.
    """

    def __init__(self, engine: sa.Engine, owner: str, random_mark: Callable[[], str]) -> None:
        self._engine = engine
        self._owner = owner
        self._random_mark = random_mark
        self._few: tuple[int, int, list[str]] | None = None  # callers to fold: grouping, day, names
        self._differing: dict[int, int] = {}  # days whose buckets differ from what was counted
        self._repair = total_repair.Pace()
        self._judges = waiting_judgements.JudgeOfWarden()

    def hold(self, name: str) -> bool:
        """Takes or extends the lease `name` for five seconds; returns whether we hold it.

        A lease that ends later than a lease can was taken while the clock was ahead: it belongs to no
        analyzer. Locks have ended by that clock, and totals were judged by it, so all are judged again.
        """
        latest_ms = NowMs() + LEASE_MS + LEAP_MS
        is_ahead = sa.and_(leases.c.name == name, leases.c.until_ms > latest_ms)
        with writing(self._engine) as db:
            was_ahead = db.execute(sa.select(leases.c.until_ms).where(is_ahead)).first() is not None
            lease = insert(db, leases).values(name=name, holder=self._owner, until_ms=NowMs() + LEASE_MS)
            is_free = sa.or_(leases.c.until_ms < NowMs(), leases.c.until_ms > latest_ms)
            taken = lease.on_conflict_do_update(
                index_elements=leases.primary_key,
                set_={"holder": lease.excluded.holder, "until_ms": lease.excluded.until_ms},
                where=sa.or_(leases.c.holder == self._owner, is_free),
            )
            is_held = db.execute(taken.returning(leases.c.name)).first() is not None
            if is_held and was_ahead:
                log.warning("the database's clock was ahead and is back: all totals are judged again")
                plans.judge_again(db, clock_was_ahead=True)
            return is_held

    def release(self, name: str) -> None:
        """Gives the lease up, so that another analyzer can take it at once.

        Its row stays: the next holder sees by it whether the clock was ahead.
        """
        with writing(self._engine) as db:
            is_held = sa.and_(leases.c.name == name, leases.c.holder == self._owner)
            db.execute(
                sa.update(leases).where(is_held, leases.c.until_ms > NowMs()).values(until_ms=NowMs() - 1)
            )

    def end_locks(self) -> JudgedRows:
        """Clears the locks whose time is over, extends those that last; counts those that ended."""
        with writing(self._engine) as db:
            return waiting_judgements.end_locks(db, self._judges, self._random_mark())

    def judge_waiting(self) -> JudgedRows:
        """Judges totals that had to wait, up to a bound. Call again until none has waited."""
        with writing(self._engine) as db:
            return waiting_judgements.judge_waiting(db, self._judges, self._random_mark())

    def change_overrides(self) -> JudgedRows:
        """Begins and ends overrides, up to a bound, and judges their series."""
        return caller_changes.change_due(self._engine, self._random_mark)

    def apply_facts(self) -> JudgedRows:
        """Applies facts that records state, up to a bound, and judges their callers."""
        return applied_facts.apply_waiting(self._engine, self._random_mark)

    def refill_totals(self) -> JudgedRows:
        """Completes and judges totals of callers whose windows have changed, up to a bound."""
        return changed_limits.refill(self._engine, self._random_mark)

    def apply_brakes(self) -> JudgedRows:
        """Turns locks of braked policies to shadow, up to a bound; notes the traffic of each minute."""
        return braked_policies.turn_to_shadow(self._engine, self._random_mark)

    def empty_slots(self) -> int:
        """Empties the slots of the next generation; returns 1 if there were any, else 0."""
        with writing(self._engine) as db:
            return int(slots.empty_next(db, clock_ms(db) // 1000))

    def prune(self) -> int:
        """Deletes what is beyond its retention, up to a bound; returns the number of rows.

        These are totals and distinct values of past windows, the oldest rejected records, old changes of the
        feed, old plans with their stretches, holds that no look continues, notices of windows long past,
        locks that ended long ago in the history, decisions about verdicts and overrides of then, and gates
        that stopped reporting. A window is past, and a rolling sum idle, when the newest bucket says so too:
        a clock that is ahead for a minute deletes no total of today. Call again until it returns 0.
        """
        with writing(self._engine) as db:
            without_scans(db)
            now_ms = clock_ms(db)
            counted_s = min(now_ms, newest_event_ms(db, catalog.load(db), now_ms)) // 1000
            newest = sa.select(rejects.c.at_ms).order_by(rejects.c.at_ms.desc())
            beyond = rejects.c.at_ms <= newest.offset(REJECTS_KEPT).limit(1).scalar_subquery()
            deleted = sum(
                _delete(db, *rows)
                for rows in (
                    *((totals, gone) for gone in _totals_to_delete(db, counted_s)),
                    *((distinct_values, gone) for gone in _values_to_delete(db, counted_s)),
                    (rejects, beyond),
                    (gates, expired(now_ms)),
                    (plans_table, _old_plans()),
                    (stretches, _old_stretches()),
                    (holds_table, holds.outdated(now_ms)),
                    (hold_offs_table, hold_offs.outdated(now_ms)),
                    (notices, stored_notices.outdated(now_ms)),
                    (disbelieved, disbelieved.c.logged_s < (now_ms - HISTORY_KEPT_MS) // 1000),
                    (lock_history_table, lock_history_table.c.until_ms < now_ms - HISTORY_KEPT_MS),
                    # They explain locks of then.
                    (directory_versions, directory.outdated_versions(now_ms - HISTORY_KEPT_MS)),
                    (overrides, directory.forgotten_overrides()),
                )
            )
            return deleted + lock_feed.prune(db, now_ms - CHANGES_KEPT_MS, DELETED_MAX)

    def roll_up(self, minutes_kept_s: int, quarters_kept_s: int) -> int:
        """Joins old minutes into quarters of an hour, and old quarters into days; returns the rows joined.

        Each count stays in exactly one row. Call again until it returns 0.
        """
        with writing(self._engine) as db:
            joined = roll_up.widen(db, MINUTE_S, QUARTER_S, minutes_kept_s)
        with writing(self._engine) as db:
            return joined + roll_up.widen(db, QUARTER_S, DAY_S, quarters_kept_s)

    def fold(self, requests_max: int, minutes_kept_s: int) -> int:
        """Joins callers with at most `requests_max` requests on a day, once its minutes are rolled up.

        Returns the rows joined, or 1 when a day is done. Call again until it returns 0.
        """
        if self._few is None:
            self._few = self._next_few(requests_max, minutes_kept_s)
            if self._few is None:
                return 0
        grouping, day_s, keys = self._few
        chunk, rest = keys[:FOLDED_AT_ONCE], keys[FOLDED_AT_ONCE:]
        self._few = (grouping, day_s, rest) if rest else None
        with writing(self._engine) as db:
            if chunk:
                return roll_up.fold(db, grouping, day_s, chunk)
            roll_up.set_folded_to(db, catalog.load(db), grouping, day_s + DAY_S)
            return 1

    def _next_few(self, requests_max: int, minutes_kept_s: int) -> tuple[int, int, list[str]] | None:
        """Returns a grouping, a day, and callers to fold; without callers the day is done. None: no day."""
        with slow_reading(self._engine) as db:
            known = catalog.load(db)
            # The quarter that holds this moment may still get minutes.
            before_s = bucket_start_s(clock_ms(db) // 1000 - minutes_kept_s, QUARTER_S)
            for grouping in roll_up.foldable(known):
                day_s = roll_up.first_day_to_fold(db, known, grouping)
                if day_s is not None and day_s + DAY_S <= before_s:
                    return (
                        grouping,
                        day_s,
                        roll_up.few_requests(db, known, grouping, day_s, requests_max),
                    )
        return None

    def delete_days(self, days_kept_s: int) -> int:
        """Deletes days of long ago; returns the rows deleted. Call again until it returns 0."""
        with writing(self._engine) as db:
            return roll_up.delete_days(db, days_kept_s)

    def move_old(self) -> int:
        """Moves rows of an earlier version into the buckets; returns how many, up to a bound."""
        with writing(self._engine) as db:
            return roll_up.move_old(db)

    def continue_activation(self) -> JudgedRows:
        """Brings totals and locks nearer to agreement with the plan in force; counts the rows read."""
        with writing(self._engine) as db:
            return plans.continue_activation(db, self._random_mark, ACTIVATION_ROWS)

    def repair_totals(self) -> int:
        """Corrects totals of open windows that do not equal the buckets, up to a bound; returns how many.

        0 also while the last comparison is so recent that another one would load the database.
        """
        return total_repair.repair(self._engine, self._repair)

    def prove_day(self) -> int:
        """Compares the buckets of a past day with what was counted; returns 1, or 0 when no day is left.

        Raises CountsDiffer where they differ, again and again while they do.
        """
        return prove_next_day(self._engine, self._differing)


def _totals_to_delete(db: sa.Connection, now_s: int) -> list[sa.ColumnElement[bool]]:
    """Returns conditions for totals that nothing will be judged by any more.

    Those of dropped sums, of the oldest window that ended long before `now_s`, and of rolling sums that have
    not grown for longer than their window. Forgets dropped sums that have no totals any more.
    """
    conditions = []
    before_s = now_s - TOTALS_KEPT_S
    columns, known = totals.c, catalog.load(db)
    for name, number in [*known.sums.items(), *known.dropped_sums.items()]:
        oldest = sa.select(columns.window_s).where(columns.sum == number).order_by(columns.window_s).limit(1)
        window_s = db.execute(oldest).scalar()
        is_dropped = name in known.dropped_sums
        if window_s is None:
            if is_dropped and stored_values.oldest_s(db, number) is None:
                catalog.forget_sum(db, name)
            continue
        of_sum, windows = (
            sa.and_(columns.sum == number, columns.window_s == window_s),
            catalog.windows_of(name),
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


def _values_to_delete(db: sa.Connection, now_s: int) -> list[sa.ColumnElement[bool]]:
    """Returns conditions for distinct values that nothing will be judged by any more."""
    conditions = []
    before_s = now_s - TOTALS_KEPT_S
    columns, known = distinct_values.c, catalog.load(db)
    for name, number in [*known.sums.items(), *known.dropped_sums.items()]:
        oldest_s = stored_values.oldest_s(db, number)
        if oldest_s is None:
            continue
        windows = catalog.windows_of(name)
        of_sum = columns.sum == number
        if name in known.dropped_sums:
            conditions.append(of_sum)
        elif isinstance(windows, Rolling):
            kept_s = windows.period_s + windows.slot_s + ROLLING_KEPT_S
            conditions.append(sa.and_(of_sum, columns.window_s < now_s - kept_s))
        elif window_at(windows, oldest_s).until_s <= before_s:
            conditions.append(sa.and_(of_sum, columns.window_s == oldest_s))
    return conditions


def _old_plans() -> sa.ColumnElement[bool]:
    newest = sa.select(plans_table.c.version).order_by(plans_table.c.version.desc())
    last_kept = newest.offset(PLANS_KEPT).limit(1).scalar_subquery()
    return sa.and_(plans_table.c.active == 0, plans_table.c.version <= last_kept)


def _old_stretches() -> sa.ColumnElement[bool]:
    """Stretches that were counted by plans that are deleted."""
    oldest = sa.select(sa.func.min(plans_table.c.version)).scalar_subquery()
    return stretches.c.plan < oldest


def _delete(db: sa.Connection, table: sa.Table, condition: sa.ColumnElement[bool]) -> int:
    """Deletes rows and returns their number; SQLite's driver has no row count for a DELETE after WITH."""
    if table in (distinct_values, overrides) and db.dialect.name == "postgresql":
        return db.execute(delete_anywhere(table, condition, DELETED_MAX)).rowcount
    deleted = delete_at(table, first_keys(table, condition, DELETED_MAX))
    return len(db.execute(deleted.returning(next(iter(table.primary_key)))).all())
