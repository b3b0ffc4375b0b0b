"""Mutations of transactions, each of which at least one order shows. The order is part of the message.

Each mutation changes one statement, or the place of one, in the code as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.flush import flush
from analyzer.judging import totals as judging_totals
from analyzer.judging.caller_limits import Limits
from analyzer.judging.locks import lock_feed
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.sql import brake_rows, plans, totals
from analyzer.kernel.database.engine import NowMs
from analyzer.kernel.jobs import job_runs
from analyzer.kernel.tables.schema import feed, feed_versions, lock_changes
from analyzer.plan.sums import total_key
from tests.faults.mutations import judging_from_sums_of_buckets
from tests.interleavings.actors import Transactions
from tests.interleavings.orders import OrderFailed, Orders
from tests.interleavings.worlds import BOB, World
from tests.simulation.mutations import filling_without_the_position, plan_compared_by_number


def caught(transactions: Transactions, world: World, *names: str) -> str:
    """Returns the message of the first order that fails; fails when there is none."""
    with pytest.raises(OrderFailed) as failed:
        Orders(transactions, world, names).explore()
    transactions.abandon()
    print(failed.value)
    return str(failed.value)


def test_without_the_compare_and_set_a_zombie_counts_again(
    transactions: Transactions, world: World, rewritten: Callable[[Mapping[str, str]], None]
) -> None:
    rewritten({" AND offsets.next = %(from)s::BIGINT": ""})
    assert "partition 0: more records were seen" in caught(transactions, world, "flush", "flush-zombie")


def test_without_the_plans_row_lock_a_flush_misses_a_new_limit(
    transactions: Transactions, world: World, rewritten: Callable[[Mapping[str, str]], None]
) -> None:
    rewritten({" FOR SHARE OF plans": ""})
    assert "missing locks" in caught(transactions, world, "flush", "activate")


def test_judged_by_sums_of_buckets_two_adders_cross_unseen(
    transactions: Transactions, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The totals are added up nevertheless, but behind the judgement."""
    add_totals, apply = totals.add_totals, flush.SqlFlush.apply
    judging_from_sums_of_buckets(monkeypatch)

    def apply_and_add(self: Any, plan: Any, version: int, counted: Any, now: Any, **rest: Any) -> Any:
        changes = apply(self, plan, version, counted, now, **rest)
        catalog = self._catalogs.of(self._db, self._plan_row)
        growth = judging_totals.totals_growth(plan_sums(plan).policies_by_sum, counted.tables)
        add_totals(self._db, Limits(plan), version, growth, catalog, int(now.timestamp()))
        return changes

    monkeypatch.setattr(flush.SqlFlush, "apply", apply_and_add)
    message = caught(transactions, world, "flush", "flush-other")
    assert "missing locks: {('daily', 'api_key:acme'" in message


def test_with_versions_from_a_sequence_a_gate_misses_a_change(
    transactions: Transactions, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version is taken, another one is published and polled, and only then the first one is."""
    with world.engine.begin() as db:
        db.exec_driver_sql("create sequence versions")
    world.also_reset = ["select setval('versions', 3)"]

    def add_version(db: sa.Connection, changes: Any, mark: str) -> int:
        version = db.execute(sa.text("select nextval('versions')")).scalar_one()
        db.execute(sa.insert(feed_versions).values(version=version, mark=mark, at_ms=NowMs()))
        rows = [
            {"version": version, "number": n} | lock_feed._columns(change) for n, change in enumerate(changes)
        ]
        db.execute(sa.insert(lock_changes), rows)
        is_older = feed.c.version < version
        db.execute(sa.update(feed).where(is_older).values(version=version, mark=mark))
        return int(version)

    monkeypatch.setattr(lock_feed, "_add_version", add_version)
    late = (
        ("end-locks", "insert into feed_versions"),
        ("suspend", None),
        ("poll", None),
        ("end-locks", None),
    )
    try:
        with pytest.raises(OrderFailed, match="a gate missed a change") as failed:
            Orders(transactions, world, ["end-locks", "suspend", "poll"]).run(*late)
        assert "versions by" in caught(transactions, world, "end-locks", "suspend"), (
            "the reader is not needed"
        )
    finally:
        world.also_reset = []
        with world.engine.begin() as db:
            db.exec_driver_sql("drop sequence versions")
    print(failed.value)


def test_totals_in_an_order_that_depends_on_the_data_deadlock(
    transactions: Transactions, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sorted_growth = flush.totals_growth

    def growth_of(sums: Any, tables: Any, *rest: Any) -> Any:
        growth = sorted_growth(sums, tables, *rest)
        has_bob = any(BOB in table.keys for table in tables)
        return dict(reversed(growth.items())) if has_bob else growth

    monkeypatch.setattr(flush, "totals_growth", growth_of)
    assert "deadlock detected" in caught(transactions, world, "flush", "flush-other")


@pytest.mark.parametrize("world", ["filling"], indirect=True)
def test_without_the_activations_table_lock_a_filled_total_misses_a_flush(
    transactions: Transactions, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "block_flushes", lambda _db: None)
    message = caught(transactions, world, "flush-new", "activation-step")
    assert "totals of caller requests hour" in message


@pytest.mark.parametrize("world", ["filling_begun"], indirect=True)
def test_without_the_activations_table_lock_a_filled_total_misses_a_crossing(
    transactions: Transactions, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush adds to a total that is still being filled, and so judges nothing. The activation judges it
    before the flush commits.
    """
    monkeypatch.setattr(plans, "block_flushes", lambda _db: None)
    message = caught(transactions, world, "flush-new", "activation-step")
    assert "missing locks: {('hourly', 'api_key:acme'" in message


@pytest.mark.parametrize("world", ["one_sum"], indirect=True)
def test_without_the_activations_table_lock_an_override_misses_a_first_total(
    transactions: Transactions, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush inserts the total with the `next` of before; the override cannot see it yet."""
    monkeypatch.setattr(plans, "block_flushes", lambda _db: None)
    message = caught(transactions, world, "flush-first", "override-first")
    assert "missing locks: {('daily', 'api_key:bob'" in message


@pytest.mark.parametrize("world", ["stated"], indirect=True)
def test_without_the_activations_table_lock_an_applied_fact_misses_a_first_total(
    transactions: Transactions, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warden applies a plan that records have stated, while a flush inserts the first total."""
    monkeypatch.setattr(plans, "block_flushes", lambda _db: None)
    message = caught(transactions, world, "flush-stated", "apply-facts")
    assert "missing locks: {('daily', 'api_key:bob'" in message


@pytest.mark.parametrize("world", ["filling"], indirect=True)
def test_a_flush_that_ignores_how_far_a_sum_is_filled_counts_twice(
    transactions: Transactions, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    filling_without_the_position(monkeypatch)
    message = caught(transactions, world, "flush-new", "activation-step")
    assert "totals of caller requests hour" in message


@pytest.mark.parametrize("world", ["restored"], indirect=True)
def test_a_plan_compared_by_its_number_alone_misses_a_limit(
    transactions: Transactions, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_compared_by_number(monkeypatch)
    message = caught(transactions, world, "flush-one", "end-locks")
    assert "missing locks: {('daily', 'api_key:acme'" in message


@pytest.mark.parametrize("world", ["one_sum"], indirect=True)
def test_a_flush_that_replaces_longer_locks_loses_the_lock_of_the_new_day(
    transactions: Transactions, world: World, rewritten: Callable[[Mapping[str, str]], None]
) -> None:
    rewritten({" WHERE locks.until_ms < excluded.until_ms": ""})
    message = caught(transactions, world, "flush-evening", "flush-tomorrow", "midnight")
    assert "missing locks: {('daily', 'api_key:acme'" in message


def test_a_pruning_that_sets_the_feeds_bound_back_promises_deleted_changes(
    transactions: Transactions, world: World, rewritten: Callable[[Mapping[str, str]], None]
) -> None:
    rewritten({" WHERE feed.pruned_to < %(pruned_to_1)s::BIGINT": ""})
    assert "changes are missing" in caught(transactions, world, "prune", "prune", "hours")


def test_a_job_that_does_not_look_again_under_its_lease_is_done_twice(
    transactions: Transactions, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another analyzer has done it between the first look and the lease."""
    early = job_runs.SqlJobRuns._early
    looks: Counter[int] = Counter()

    def first_look(self: Any, db: Any, job: str, schedule: Any) -> Any:
        looks[id(self)] += 1
        return early(self, db, job, schedule) if looks[id(self)] == 1 else None

    monkeypatch.setattr(job_runs.SqlJobRuns, "_early", first_look)
    assert "('done', 7, 'job'), ('done', 7, 'job1')" in caught(transactions, world, "job", "job")


def test_a_job_without_a_lease_is_done_by_two_analyzers_at_once(
    transactions: Transactions, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another analyzer begins it while the first is in the middle of a step."""
    monkeypatch.setattr(job_runs.RUNNING, "is_free", sa.true())
    assert "('lost', " in caught(transactions, world, "job", "job")


@pytest.mark.parametrize("world", ["flooded"], indirect=True)
def test_without_the_row_of_its_total_a_rolling_sum_is_crossed_unseen(
    transactions: Transactions, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    judging_from_sums_of_buckets(monkeypatch)
    message = caught(transactions, world, "flush-burst", "flush-burst-other")
    assert "missing locks: {('flood', 'api_key:max'" in message
    assert "unearned locks: set()" in message


@pytest.mark.parametrize("world", ["waiting"], indirect=True)
def test_totals_held_in_another_order_than_flushes_deadlock(
    transactions: Transactions, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warden holds shared totals before those of callers, by the order of their names alone."""

    def by_name(total: Any) -> tuple[Any, ...]:
        return *total_key(total.sum), total.window.start_s, total.key, total.resource

    monkeypatch.setattr(totals, "_sort_key", by_name)
    assert "deadlock detected" in caught(transactions, world, "judge-waiting", "flush-noisy")


@pytest.mark.parametrize("world", ["paced"], indirect=True)
def test_without_the_row_lock_of_a_brake_two_flushes_lock_more_than_its_bound(
    transactions: Transactions, world: World, rewritten: Callable[[Mapping[str, str]], None]
) -> None:
    rewritten({" ORDER BY brakes.policy FOR UPDATE": " ORDER BY brakes.policy"})
    assert "2 locks began, 1 are counted" in caught(transactions, world, "flush-paced", "flush-paced-other")


@pytest.mark.parametrize("world", ["young"], indirect=True)
def test_a_brake_that_forgets_to_clear_leaves_a_policy_in_force(
    transactions: Transactions, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush that finds its policy beyond the bound says nothing of the locks of others."""
    store = brake_rows._store
    monkeypatch.setattr(brake_rows, "_store", lambda *at, is_clearing: store(*at, is_clearing=False))
    message = caught(transactions, world, "flush-young", "flush-young-other")
    assert "'deny')" in message


@pytest.mark.parametrize("world", ["due"], indirect=True)
def test_without_the_activations_table_lock_a_cut_misses_a_flush(
    transactions: Transactions, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush has seen no cut, and commits when the snapshot has begun: its counts are nowhere."""
    monkeypatch.setattr(plans, "try_block_flushes", lambda _db, _wait_ms: True)
    message = caught(transactions, world, "flush-yesterday", "close-day")
    assert "frozen and adjusted" in message


@pytest.mark.parametrize("world", ["closed"], indirect=True)
def test_a_flush_that_does_not_look_for_cut_days_books_no_adjustment(
    transactions: Transactions, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush, "add_adjustments", lambda *_arguments: 0)
    assert "frozen and adjusted" in caught(transactions, world, "flush-yesterday", "correct")
