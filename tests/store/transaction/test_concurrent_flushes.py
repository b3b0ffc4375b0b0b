"""Two analyzers that reach a limit at the same time: exactly one publishes the lock."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime

import pytest
import sqlalchemy as sa

from analyzer.flush.sql_store import SqlFlush, SqlStore
from analyzer.judging.circumstances import Circumstances
from analyzer.judging.judge import judge as judge_standings
from analyzer.judging.judge import lock_keys
from analyzer.judging.locks import lock_feed
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.sql.totals import StoredTotal, held
from analyzer.judging.totals import Standing, TotalKey
from analyzer.kernel.model import CountRow, Partition
from analyzer.kernel.tables.schema import buckets
from analyzer.plan.catalog import load
from analyzer.plan.meters import MINUTE_S
from analyzer.plan.windows import window_at
from gatekeeper.model import Change
from tests.store.flushing import (
    a_row,
    counts,
    feed_changes,
    flush,
    now_s,
    plan,
    quota,
    run_together,
    wait_for_waiters,
)
from tests.support.stored_counts import put_counts

pytestmark = pytest.mark.parametrize("database", ["postgresql"], indirect=True)

Judge = Callable[[SqlFlush, Sequence[CountRow], datetime], object]
NewEngine = Callable[[], sa.Engine]
TRIES = 200
PLAN = plan(quota(100))
HALF = 60  # what each of the two adds: neither reaches the limit alone


def by_totals(tx: SqlFlush, rows: Sequence[CountRow], now: datetime) -> None:
    tx.apply(PLAN, 1, counts(rows), now)


def by_sums_of_buckets(tx: SqlFlush, rows: Sequence[CountRow], now: datetime) -> Sequence[Change]:
    """Judges by the sum of the buckets, without a row that both must lock."""
    of_minute = Partition("cluster", "topic-id", rows[0].bucket_s // MINUTE_S, "log", "access-log")
    put_counts(tx._db, rows, parts=[of_minute])  # each analyzer has its own
    (policy,) = PLAN.policies
    window = window_at(policy.window, rows[0].bucket_s)
    used = sa.select(sa.func.sum(buckets.c.value_0)).where(buckets.c.key == rows[0].key)
    (sum_,) = plan_sums(PLAN).policies_by_sum
    standing = Standing(TotalKey(sum_, rows[0].key, "", window), int(tx._db.execute(used).scalar_one()))
    locks = lock_feed.locked(tx._db, lock_keys(PLAN, [standing]))
    changes = judge_standings(PLAN, [standing], locks, Circumstances(now)).changes
    if changes:
        lock_feed.publish(tx._db, changes, lock_feed.new_mark())
    return changes


def race(new_engine: NewEngine, judge: Judge, tries: int) -> Counter[str]:
    """Returns the number of changes in the feed by caller.

    Both analyzers have begun their transactions before either counts; they add to different buckets, as when
    two partitions are at different minutes.
    """
    engines = [new_engine(), new_engine()]
    stores = [SqlStore(engine, f"analyzer {n}") for n, engine in enumerate(engines)]
    version = stores[0].activate(PLAN)
    at_s = now_s(engines[0])
    both_began = threading.Barrier(2)

    def add(number: int, store: SqlStore) -> None:
        for attempt in range(tries):
            row = a_row(HALF, at_s - MINUTE_S * number, f"user:{attempt:03}")
            with store.transaction() as tx:
                now = tx.check_plan(PLAN, version)
                both_began.wait(10)
                judge(tx, [row], now)

    errors = run_together(*(lambda n=n, s=store: add(n, s) for n, store in enumerate(stores)))
    assert errors == [None, None]
    return Counter(key for _, _, key in feed_changes(engines[0]))


def test_two_analyzers_that_reach_a_limit_together_publish_one_lock(new_engine: NewEngine) -> None:
    seen = race(new_engine, by_totals, TRIES)
    assert seen == {f"user:{attempt:03}": 1 for attempt in range(TRIES)}


def test_a_warden_and_a_flush_lock_totals_in_one_order(new_engine: NewEngine) -> None:
    """A flush holds a caller's total, and then takes that of an address, whose name comes first."""
    engine, other = new_engine(), new_engine()
    judged = plan(quota(100), quota(100, name="of an address", grouping="address"))
    version = SqlStore(engine, "analyzer").activate(judged)
    at_s = now_s(engine)
    rows = [a_row(1, at_s), a_row(1, at_s, "192.0.2.1")._replace(grouping="address")]
    flush(SqlStore(engine, "analyzer"), judged, rows, version)
    with engine.begin() as db:
        catalog = load(db)
    wanted = [
        TotalKey(sum_, row.key, "", window_at(sum_.window, at_s))
        for sum_ in plan_sums(judged).policies_by_sum
        for row in rows
        if row.grouping == sum_.grouping
    ]
    caller, address = sorted(wanted, key=lambda total: total.sum.grouping, reverse=True)
    held_by_warden: list[StoredTotal] = []

    def judge_both() -> None:
        with other.begin() as db:
            held_by_warden.extend(held(db, wanted, catalog))

    with engine.begin() as db:
        assert held(db, [caller], catalog)
        warden = threading.Thread(target=judge_both)
        warden.start()
        wait_for_waiters(other, 1)
        assert held(db, [address], catalog), "the warden waits for the caller's total, and holds nothing yet"
    warden.join()
    assert [one.standing.total for one in held_by_warden] == [caller, address]


def test_without_a_row_that_both_lock_neither_sees_the_limit(new_engine: NewEngine) -> None:
    """A mutation of the test above: the race judged by sums of buckets misses the limit."""

    def both_read_before_either_commits(tx: SqlFlush, rows: Sequence[CountRow], now: datetime) -> None:
        by_sums_of_buckets(tx, rows, now)
        both_judged.wait(10)

    both_judged = threading.Barrier(2)
    assert race(new_engine, both_read_before_either_commits, 5) == {}


def test_without_a_row_that_both_lock_the_limit_is_missed_at_least_once(new_engine: NewEngine) -> None:
    seen = race(new_engine, by_sums_of_buckets, 50)
    assert sum(seen.values()) < 50
