"""Mutations of the product, each of which breaks one promise, to show that the simulation detects it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from analyzer.callers import changed_limits
from analyzer.counting import counter_state
from analyzer.counting.counter.counter import PythonCounter
from analyzer.counting.counter.event_ids import EventIds
from analyzer.flush import flush
from analyzer.flush.flush import CatalogCache, SqlFlush
from analyzer.flush.pipeline import Pipeline
from analyzer.judging import judge, kinds
from analyzer.judging import totals as judging_totals
from analyzer.judging.circumstances import Circumstances
from analyzer.judging.earned_notices import Notice
from analyzer.judging.kinds import quota
from analyzer.judging.locks import lock_feed, verdict_decisions
from analyzer.judging.plan_sums import PlanSums
from analyzer.judging.sql import plans, stored_notices, totals
from analyzer.judging.sql.activation import Activation
from analyzer.judging.sql.directory import NO_DIRECTORY, DirectoryCache
from analyzer.judging.sql.sql_judge import NOTHING
from analyzer.judging.totals import Growth
from analyzer.kernel.errors import AnalyzerError
from analyzer.kernel.model import CountTable, FeedResult, Lag, Partition, PartitionProgress
from analyzer.kernel.tables.schema import buckets, notices
from analyzer.kernel.tables.schema import feed as feed_row
from analyzer.maintenance import pruning, roll_up
from analyzer.plan.sums import NEVER, Sum
from analyzer.sources.kafka.partitions import AssignedPartitions
from gatekeeper.feed import poller
from gatekeeper.model import Change, Update
from gatekeeper.sources import sql
from gatekeeper.view import lock_view
from gatekeeper.view.lock_view import LockView, ViewOutOfStep
from tests.cuts.mutations import locks_lost_with_the_source
from tests.faults.mutations import Patch, without_compare_and_set
from tests.simulation.policies.mode_mutations import MODE_MUTATIONS
from tests.simulation.policies.rolling_mutations import ROLLING_MUTATIONS


def offsets_in_a_separate_transaction(patch: Patch) -> None:
    """The offset is committed first, the counts a moment later: a kill in between loses the counts."""
    move = SqlFlush.move_offsets

    def move_separately(
        self: SqlFlush, parts: Sequence[PartitionProgress], lags: Mapping[Partition, Lag]
    ) -> None:
        move(self, parts, lags)
        self._db.exec_driver_sql("commit")
        self._db.exec_driver_sql("begin immediate")

    patch.setattr(SqlFlush, "move_offsets", move_separately)


def versions_from_a_sequence(patch: Patch) -> None:
    """A version that was taken by a transaction which was rolled back is missing."""
    add_version, numbers = lock_feed._add_version, itertools.count(1)

    def add_next(db: sa.Connection, changes: Sequence[Change], mark: str) -> int:
        db.execute(sa.update(feed_row).values(version=next(numbers) - 1))
        return add_version(db, changes, mark)

    patch.setattr(lock_feed, "_add_version", add_next)


def plan_compared_by_number(patch: Patch) -> None:
    """A plan of another history with the same number passes for the one in force.

    For the interleavings: few stories keep one analyzer away from a restore for as long as it takes.
    """
    patch.setattr(plans, "is_in_force", lambda *_: True)


def plan_not_checked(patch: Patch) -> None:
    """A flush counts by the plan in memory, even when another one is in force."""
    check = SqlFlush.check_plan

    def check_any(self: SqlFlush, plan: Any, version: int) -> datetime:
        row = plans.lock_active(self._db)
        found, in_force = plans.active(self._db)
        assert row.version == found
        return check(self, in_force, found)

    patch.setattr(SqlFlush, "check_plan", check_any)


def catalog_read_once(patch: Patch) -> None:
    """The numbers of meters and sums are kept when another plan comes in force; only new names are read."""
    of = CatalogCache.of

    def of_names(self: CatalogCache, db: sa.Connection, plan: Any) -> Any:
        before = self._catalog
        read = of(self, db, plan)
        self._catalog = read._replace(
            meters={**read.meters, **before.meters}, sums={**read.sums, **before.sums}
        )
        return self._catalog

    patch.setattr(CatalogCache, "of", of_names)


def poll_applied_twice(patch: Patch) -> None:
    """A record set is counted twice."""
    feed = PythonCounter.feed

    def feed_twice(self: PythonCounter, taken: Any) -> FeedResult:
        result = feed(self, taken)
        partition = self._partitions[taken.part]
        partition.next = taken.start
        feed(self, taken)
        return result

    patch.setattr(PythonCounter, "feed", feed_twice)


def revocations_ignored(patch: Patch) -> None:
    """Counts of a partition are kept in memory when another analyzer takes it over."""
    patch.setattr(Pipeline, "forget", lambda _self, _part: None)


def memory_kept_after_errors(patch: Patch) -> None:
    """Counts that were not stored are kept when the outcome of a flush is unknown."""

    def keep(self: Pipeline) -> None:
        with suppress(AnalyzerError):
            self.collect()
        self.heartbeats_s.clear()

    patch.setattr(Pipeline, "start_over", keep)


def positions_of_the_group(patch: Patch) -> None:
    """A partition continues where this process was before, not at the stored offset."""
    continue_ = AssignedPartitions._continue
    reached: dict[Any, int] = {}

    def continue_as_remembered(self: AssignedPartitions, client: Any, tp: Any, position: Any) -> None:
        at = (id(self), tp)
        continue_(self, client, tp, position._replace(next=max(position.next, reached.get(at, 0))))
        state = self._states[tp]
        reached[at] = max(reached.get(at, 0), state.next)

    patch.setattr(AssignedPartitions, "_continue", continue_as_remembered)


def windows_not_compared_with_the_time(patch: Patch) -> None:
    """Late records lock callers for windows that are over or have not begun."""
    judged = quota.judge_calendar

    def at_any_time(policy: Any, standing: Any, present: Any, at: Circumstances) -> Any:
        window = standing.total.window
        inside = min(max(at.now.timestamp(), window.start_s), window.until_s - 1)
        return judged(policy, standing, present, Circumstances(datetime.fromtimestamp(inside, at.now.tzinfo)))

    def kind_at_any_time(policy: Any) -> kinds.Kind:
        return kinds.policy_kind(policy)._replace(judge=at_any_time)

    patch.setattr(judge, "policy_kind", kind_at_any_time)


def filling_without_the_position(patch: Patch) -> None:
    """Flushes add to a sum that is being filled what the filling finds in the buckets again."""
    growth_of = flush.totals_growth

    def grow(sums: Collection[Sum], tables: Any, _filled_to: Any, *rest: Any) -> Any:
        return growth_of(sums, tables, {}, *rest)

    patch.setattr(flush, "totals_growth", grow)


def empty_resources_judged(patch: Patch) -> None:
    """Requests without a resource grow a total, whose lock is one on all resources."""
    growth, mark = judging_totals._growth, "\0"

    def grow(sum_: Any, table: CountTable, *rest: Any) -> Growth:
        marked = table._replace(resources=[resource or mark for resource in table.resources])
        grown = growth(sum_, marked, *rest)
        return grown._replace(resources=[resource.removeprefix(mark) for resource in grown.resources])

    patch.setattr(judging_totals, "_growth", grow)


def activation_without_clearing(patch: Patch) -> None:
    """Locks of policies that are gone, or were raised, stay."""
    patch.setattr(Activation, "_clear", lambda _self, _step: None)


def activation_without_judging(patch: Patch) -> None:
    """A lowered limit takes effect only when a caller is counted the next time."""
    patch.setattr(Activation, "_judge", lambda _self, _step: None)


def ended_locks_stay(patch: Patch) -> None:
    """The warden ends no lock."""
    patch.setattr(lock_feed, "due", lambda _db, _now_ms: [])


def marks_not_compared(patch: Patch) -> None:
    """A version of another history passes for the feed's of the same number."""

    def by_number(position: Any, since: Any) -> bool:
        return bool(position.pruned_to <= since.version <= position.version)

    patch.setattr(sql, "_has_changes_since", by_number)


def answers_in_any_order(patch: Patch) -> None:
    """A gate applies the answer to an earlier question."""

    def apply(view: LockView, update: Update) -> LockView:
        try:
            return lock_view.apply(view, update)
        except ViewOutOfStep:
            return lock_view._after_update(view, update)

    patch.setattr(poller, "apply", apply)


def back_off_without_end(patch: Patch) -> None:
    """After failures a gate waits for minutes before it polls again."""
    delay = poller.next_delay

    def doubled(pace_s: float, failures: int, jitter: float) -> float:
        return delay(pace_s, failures, jitter) if not failures else 60.0 * failures

    patch.setattr(poller, "next_delay", doubled)


def rows_joined_without_removing(patch: Patch) -> None:
    """Rolling up leaves the old rows where they are."""

    def read(db: sa.Connection, keys: Any) -> Any:
        return db.execute(sa.select(buckets).where(sa.tuple_(*buckets.primary_key).in_(keys))).all()

    patch.setattr(roll_up, "_take_out", read)


def rolled_up_to_another_caller(patch: Patch) -> None:
    """Rolling up adds the counts of all callers to those of one."""
    widened = roll_up._widened

    def to_one(row: Any, wide_s: int) -> Any:
        at = widened(row, wide_s)
        return (*at[:4], at[4] and "api_key:acme", at[5])

    patch.setattr(roll_up, "_widened", to_one)


def next_too_high(patch: Patch) -> None:
    """A total that was judged once is not judged again in its window."""
    patch.setattr(PlanSums, "next_judgement", lambda *_: NEVER)


def flushes_late(patch: Patch) -> None:
    """A flush begins two seconds after the one before."""
    is_due = Pipeline.is_due

    def is_due_late(self: Pipeline, lags: Mapping[Partition, Lag]) -> bool:
        waited_s = self.uptime_s() - self.flushed_s
        return is_due(self, lags) and waited_s >= 2.0

    patch.setattr(Pipeline, "is_due", is_due_late)


def totals_pruned_by_the_clock(patch: Patch) -> None:
    """Totals of windows that are over by the database's clock are deleted, against what the counts say."""
    patch.setattr(pruning, "newest_event_ms", lambda _db, _catalog, default_ms: default_ms)


def leaps_not_noticed(patch: Patch) -> None:
    """Nothing is judged again when the database's clock was ahead and is back."""
    patch.setattr(plans, "judge_again", lambda _db, **_: None)


def verdicts_believed(patch: Patch) -> None:
    """A request that its record calls denied does not count, whether a lock was in force or not."""
    patch.setattr(verdict_decisions, "disbelieved", lambda _db, _verdicts: set())


def thresholds_fired_twice(patch: Patch) -> None:
    """Each judgement raises the notices of all thresholds that are reached, once more."""
    store = stored_notices.store

    def store_again(db: sa.Connection, reached: Collection[Notice], now_ms: int) -> list[Notice]:
        for notice in reached:
            db.execute(sa.delete(notices).where(sa.tuple_(*stored_notices.KEY) == sa.tuple_(*notice.at)))
        return store(db, reached, now_ms)

    patch.setattr(stored_notices, "store", store_again)


def totals_of_maxima_added_up(patch: Patch) -> None:
    """Flushes add the values of a meter that keeps the largest."""
    added = totals.join_used("sum")
    patch.setattr(totals, "join_used", lambda _join: added)


def verdicts_of_any_policy(patch: Patch) -> None:
    """A verdict is believed by the lock of another policy than the one that it names."""
    supports = verdict_decisions._supports
    patch.setattr(
        verdict_decisions, "_supports", lambda span, verdict: supports(span, verdict._replace(policy=""))
    )


def overrides_not_judged(patch: Patch) -> None:
    """A command that changes the limit of a caller leaves its totals and locks as they are."""
    patch.setattr(changed_limits, "judge_callers", lambda *_: NOTHING)


def directory_read_once(patch: Patch) -> None:
    """A flush keeps the limits of the first directory that it has read."""
    refresh = DirectoryCache._refresh

    def refresh_once(self: DirectoryCache, db: sa.Connection, version: Any) -> None:
        if self._version == NO_DIRECTORY:
            refresh(self, db, version)

    patch.setattr(DirectoryCache, "_refresh", refresh_once)


def id_horizon_ignored(patch: Patch) -> None:
    """Ids are remembered forever."""
    patch.setattr(EventIds, "_has_past", lambda *_: False)


def ids_not_stored(patch: Patch) -> None:
    """Ids are remembered in memory alone: another process does not know them."""
    patch.setattr(counter_state, "_add_ids", lambda *_: None)


MUTATIONS: dict[str, Callable[[Patch], None]] = {
    mutation.__name__: mutation
    for mutation in (
        without_compare_and_set,
        offsets_in_a_separate_transaction,
        versions_from_a_sequence,
        plan_not_checked,
        catalog_read_once,
        poll_applied_twice,
        revocations_ignored,
        memory_kept_after_errors,
        positions_of_the_group,
        windows_not_compared_with_the_time,
        filling_without_the_position,
        empty_resources_judged,
        activation_without_clearing,
        activation_without_judging,
        ended_locks_stay,
        marks_not_compared,
        answers_in_any_order,
        locks_lost_with_the_source,
        back_off_without_end,
        rows_joined_without_removing,
        rolled_up_to_another_caller,
        next_too_high,
        flushes_late,
        totals_pruned_by_the_clock,
        leaps_not_noticed,
        verdicts_believed,
        verdicts_of_any_policy,
        overrides_not_judged,
        directory_read_once,
        thresholds_fired_twice,
        totals_of_maxima_added_up,
        id_horizon_ignored,
        ids_not_stored,
        *ROLLING_MUTATIONS,
        *MODE_MUTATIONS,
    )
}
