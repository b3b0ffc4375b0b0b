"""Upkeep: the lease, ending locks that are due, and pruning."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
import sqlalchemy as sa

from analyzer.flush.sql_store import SqlStore
from analyzer.judging.locks import lock_feed
from analyzer.judging.plan_sums import plan_sums
from analyzer.kernel.database.clock import millis
from analyzer.kernel.database.engine import NowMs, writing
from analyzer.kernel.jobs.job_runs import SHARED, SHARED_LEASE_MS
from analyzer.kernel.kept_ages import Retention
from analyzer.kernel.model import DrainedCounts, Rejected
from analyzer.kernel.tables.schema import feed, feed_versions, leases, lock_changes, locks, rejects, totals
from analyzer.maintenance import pruning
from analyzer.maintenance.pruning import ROLLING_KEPT_S
from analyzer.plan.catalog import load, register
from analyzer.plan.plan import Plan, make_plan
from analyzer.plan.policies import Surge
from analyzer.plan.windows import Rolling
from gatekeeper.model import Clear, Lock, Set
from tests.store.flushing import PART, a_total, at_version, feed_changes, plan, publish, quota, run_together
from tests.support.small_steps import small_steps
from tests.support.upkeep import Upkeep

NewEngine = Callable[[], sa.Engine]
KEPT = Retention()
on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)


@pytest.fixture
def now(engine: sa.Engine) -> datetime:
    with engine.connect() as db:
        return datetime.fromtimestamp(db.execute(sa.select(NowMs())).scalar_one() / 1000, UTC)


def a_lock(key: str, until: datetime) -> Lock:
    return Lock("caller", key, "daily", until - timedelta(days=1), until)


def publish_in(store: SqlStore, *changes: Set | Clear) -> None:
    with store.transaction() as tx:
        publish(tx, changes)


def everything(engine: sa.Engine, table: sa.Table, *columns: str) -> list[tuple[object, ...]]:
    with engine.connect() as db:
        chosen = [table.c[name] for name in columns]
        return [tuple(row) for row in db.execute(sa.select(*chosen).order_by(*table.primary_key))]


def execute(engine: sa.Engine, *statements: sa.Executable) -> None:
    with writing(engine) as db:
        for statement in statements:
            db.execute(statement)


# The lease


def hold(engine: sa.Engine, holder: str, lease: str = "warden") -> bool:
    with writing(engine) as db:
        return SHARED.take(db, lease, holder)


def release(engine: sa.Engine, holder: str, lease: str = "warden") -> None:
    with writing(engine) as db:
        SHARED.release(db, lease, holder)


def test_one_analyzer_holds_the_lease_and_renews_it(engine: sa.Engine) -> None:
    assert [hold(engine, holder) for holder in ("here", "there", "here")] == [True, False, True]
    assert hold(engine, "there", "another work")


def test_a_lease_ends_by_the_clock_of_the_database(engine: sa.Engine, now: datetime) -> None:
    assert hold(engine, "here")
    (until_ms,) = everything(engine, leases, "until_ms")[0]
    assert 0 < until_ms - millis(now) - SHARED_LEASE_MS < 60_000
    execute(engine, sa.update(leases).values(until_ms=NowMs() + SHARED_LEASE_MS))
    assert not hold(engine, "there")
    execute(engine, sa.update(leases).values(until_ms=NowMs() - 1))
    assert hold(engine, "there")
    assert not hold(engine, "here")


def test_a_released_lease_is_free_at_once(engine: sa.Engine) -> None:
    assert hold(engine, "here")
    release(engine, "there")  # of another analyzer: no effect
    assert not hold(engine, "there")
    release(engine, "here")
    assert hold(engine, "there")


@on_postgresql
def test_one_of_four_concurrent_analyzers_gets_the_lease(new_engine: NewEngine) -> None:
    engines = [new_engine() for _ in range(4)]
    for engine in engines:
        release(engine, "nothing")  # connects, so that what follows is simultaneous
    for n in range(10):
        answers = run_together(
            *(partial(hold, engine, f"analyzer {of}", f"work {n}") for of, engine in enumerate(engines))
        )
        assert sorted(answers) == [False, False, False, True]


# Locks that are due


def test_locks_that_are_due_end_with_a_change_in_the_feed(
    store: SqlStore, upkeep: Upkeep, engine: sa.Engine, now: datetime
) -> None:
    due, later = a_lock("user:due", now), a_lock("user:later", now + timedelta(hours=1))
    publish_in(store, Set(due), Set(later))
    assert upkeep.end_locks().judged.changes == [Clear(due.at)]
    assert upkeep.end_locks().judged.changes == []
    assert everything(engine, locks, "key") == [("user:later",)]
    assert feed_changes(engine)[2:] == [(2, "clear", "user:due")]


def test_locks_end_in_bounded_steps(
    store: SqlStore, upkeep: Upkeep, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analyzer.judging.locks.lock_feed.LAPSED_MAX", 2)
    publish_in(store, *(Set(a_lock(f"user:{n}", now)) for n in range(5)))
    assert [upkeep.end_locks().rows for _ in range(4)] == [2, 2, 1, 0]


@on_postgresql
def test_a_lock_whose_row_a_flush_holds_ends_at_the_next_run(
    store: SqlStore, new_engine: NewEngine, now: datetime
) -> None:
    first, second = a_lock("user:first", now), a_lock("user:second", now)
    publish_in(store, Set(first), Set(second))
    warden = Upkeep(new_engine(), lambda: "mark")
    with store.transaction() as tx:
        assert lock_feed.locked(tx._db, [first.at]) == {first.at: first}
        assert warden.end_locks().judged.changes == [Clear(second.at)]
    assert warden.end_locks().judged.changes == [Clear(first.at)]


@on_postgresql
def test_a_lock_that_is_extended_at_the_same_moment_stays(
    store: SqlStore, new_engine: NewEngine, engine: sa.Engine, now: datetime
) -> None:
    """The warden finds the row due, and a flush gives it a later end before the row is locked."""
    lock = a_lock("user:ann", now)
    publish_in(store, Set(lock))
    warden = Upkeep(new_engine(), str)
    with store.transaction() as tx:
        publish(tx, [Set(a_lock("user:ann", now + timedelta(hours=1)))])
        assert warden.end_locks().judged.changes == []
    assert warden.end_locks().judged.changes == []
    assert len(everything(engine, locks, "key")) == 1


@on_postgresql
def test_due_locks_are_found_by_an_index(store: SqlStore, upkeep: Upkeep, engine: sa.Engine) -> None:
    """Each second the warden looks for them: it must not read 100,000 locks for the two that end."""
    plans: list[str] = []

    @sa.event.listens_for(engine, "before_cursor_execute")
    def explain(db: sa.Connection, _cursor: object, text: str, values: dict[str, object], *_: object) -> None:
        if "FROM locks" in text:
            cursor = db.connection.cursor()
            cursor.execute("set local enable_seqscan = off")  # the planner prefers to scan an empty table
            plans.extend(line for (line,) in cursor.execute(f"explain {text}", values).fetchall())

    upkeep.end_locks()
    assert any("ix_locks_until_ms" in line for line in plans)
    assert any("Index Cond: (until_ms <= " in line for line in plans)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_cleared_lock_is_found_by_its_key(store: SqlStore, engine: sa.Engine, now: datetime) -> None:
    """Without the index a hundred clears among 100,000 locks blocked other writers for seven seconds."""
    plans: list[str] = []

    @sa.event.listens_for(engine, "before_cursor_execute")
    def explain(db: sa.Connection, _cursor: object, text: str, values: object, *_: object) -> None:
        if text.startswith("DELETE FROM locks"):
            cursor = db.connection.cursor()
            plans.extend(line for *_, line in cursor.execute(f"explain query plan {text}", values).fetchall())

    publish_in(store, Clear(a_lock("user:ann", now).at))
    assert any(line.startswith("SEARCH locks USING") and "policy=?" in line for line in plans), plans


# Pruning


def test_changes_of_the_feed_are_pruned_after_an_hour(
    store: SqlStore, upkeep: Upkeep, engine: sa.Engine, now: datetime
) -> None:
    later = now + timedelta(days=1)
    for n in range(4):
        publish_in(store, Set(a_lock(f"user:{n}", later)), Set(a_lock(f"user:{n}{n}", later)))
    upkeep.prune()
    assert everything(engine, feed, "version", "pruned_to") == [(4, 0)]
    execute(engine, sa.update(feed_versions).where(feed_versions.c.version <= 2).values(
        at_ms=NowMs() - KEPT.feed_s * 1000 - 1))  # fmt: skip
    upkeep.prune()
    assert everything(engine, feed, "version", "pruned_to") == [(4, 2)]
    assert everything(engine, feed_versions, "version") == [(3,), (4,)]
    assert [version for version, *_ in feed_changes(engine)] == [3, 3, 4, 4]
    assert len(everything(engine, locks, "key")) == 8


def test_the_current_version_is_never_pruned(
    store: SqlStore, upkeep: Upkeep, engine: sa.Engine, now: datetime
) -> None:
    """After a day without changes, gates must not need a snapshot."""
    for key in ("user:ann", "user:bob"):
        publish_in(store, Set(a_lock(key, now + timedelta(days=1))))
    execute(engine, sa.update(feed_versions).values(at_ms=0))
    upkeep.prune()
    assert everything(engine, feed, "version", "pruned_to") == [(2, 1)]
    assert everything(engine, feed_versions, "version", "mark") == [(2, "a2")]
    upkeep.prune()
    assert everything(engine, feed, "pruned_to") == [(1,)]


def test_changes_are_pruned_in_bounded_steps_of_whole_versions(
    store: SqlStore, upkeep: Upkeep, engine: sa.Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_steps(monkeypatch, 4)
    for n in range(6):
        publish_in(store, *(Set(a_lock(f"user:{n}{m}", now)) for m in range(3)))
    execute(engine, sa.update(feed_versions).values(at_ms=0))
    pruned = []
    for _ in range(4):
        upkeep.prune()
        pruned.append((everything(engine, feed, "pruned_to")[0][0], len(feed_changes(engine))))
    assert pruned == [(2, 12), (4, 6), (5, 3), (5, 3)]


def test_totals_are_pruned_two_days_after_their_window(
    upkeep: Upkeep, engine: sa.Engine, now: datetime
) -> None:
    with writing(engine) as db:
        registered(db, plan(quota(5, "minute")))
    minute_s = (millis(now) // 1000 - KEPT.totals_s) // 60 * 60  # the window that ends within this minute
    begins = {
        "long ago": 0,
        "just over": minute_s - 60,
        "not yet": minute_s + 60,
        "open": millis(now) // 60_000 * 60,
    }
    execute(engine, sa.insert(totals).values(
        [a_total(key=key, window_s=window_s) for key, window_s in begins.items()]))  # fmt: skip
    while upkeep.prune():
        pass
    assert everything(engine, totals, "key") == [("not yet",), ("open",)]


@pytest.mark.parametrize("ahead", [timedelta(0), timedelta(days=3)])
def test_rolling_totals_are_pruned_by_the_time_that_the_counts_have_reached(
    upkeep: Upkeep, engine: sa.Engine, now: datetime, monkeypatch: pytest.MonkeyPatch, ahead: timedelta
) -> None:
    """A clock that is ahead for a while deletes none that is in use."""
    with writing(engine) as db:
        registered(db, make_plan([], [], [Surge("flood", 5, Rolling(60))]))
    counted_ms = millis(now - ahead)
    monkeypatch.setattr(pruning, "newest_event_ms", lambda *_: counted_ms)
    idle_s = {"in use": 0, "idle": 60 + 5 + ROLLING_KEPT_S + 60}
    rows = [a_total(key=key, touched_s=counted_ms // 1000 - since_s) for key, since_s in idle_s.items()]
    execute(engine, sa.insert(totals).values(rows))
    while upkeep.prune():
        pass
    assert everything(engine, totals, "key") == [("in use",)]


def test_totals_of_a_sum_that_no_policy_needs_are_deleted(
    store: SqlStore, upkeep: Upkeep, engine: sa.Engine, now: datetime
) -> None:
    """With their last row the sum is forgotten."""
    store.activate(plan(quota(5, "minute"), quota(5, "day", "other")))
    window_s = millis(now) // 60_000 * 60
    rows = [a_total(sum=number, key=f"{number}", window_s=window_s) for number in (1, 2)]
    execute(engine, sa.insert(totals).values(rows))
    store.activate(plan(quota(5, "minute")))
    with writing(engine) as db:
        (kept,) = load(db).sums.values()
    assert [upkeep.prune() for _ in range(3)] == [1, 0, 0]
    assert everything(engine, totals, "key") == [(f"{kept}",)]
    with writing(engine) as db:
        assert load(db).dropped_sums == {}


def test_the_newest_rejected_records_are_kept(
    store: SqlStore, upkeep: Upkeep, engine: sa.Engine, now: datetime
) -> None:
    for n in range(5):
        with store.transaction() as tx:
            rejected = [Rejected(PART, 10 - n, "bad-json", b"")]
            tx.apply(Plan(), 1, DrainedCounts([], [], rejected), now + timedelta(seconds=n))
    upkeep.prune(KEPT._replace(rejected=3))
    assert everything(engine, rejects, "offset") == [(6,), (7,), (8,)]
    upkeep.prune(KEPT._replace(rejected=3))
    assert len(everything(engine, rejects, "offset")) == 3


def registered(db: sa.Connection, plan: Plan) -> None:
    """Gives numbers to the names and the sums of a plan."""
    register(db, plan, plan_sums(plan).all_sums)


def test_totals_are_pruned_in_bounded_steps(
    upkeep: Upkeep, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_steps(monkeypatch, 2)
    with writing(engine) as db:
        registered(db, plan(quota(5, "minute")))
    execute(engine, sa.insert(totals).values([a_total(key=f"user:{n}") for n in range(5)]))
    assert [upkeep.prune() for _ in range(4)] == [2, 2, 1, 0]
    assert everything(engine, totals, "key") == []


@on_postgresql
def test_pruning_does_not_wait_for_a_flush(upkeep: Upkeep, engine: sa.Engine, new_engine: NewEngine) -> None:
    """A row that a flush has locked is pruned the next time."""
    with writing(engine) as db:
        registered(db, plan(quota(5, "minute")))
    execute(engine, sa.insert(totals).values([a_total(key=f"user:{n}") for n in range(3)]))
    with writing(new_engine()) as db:
        db.execute(sa.update(totals).where(totals.c.key == "user:1").values(used=8))
        upkeep.prune()
    assert everything(engine, totals, "key") == [("user:1",)]
    upkeep.prune()
    assert everything(engine, totals, "key") == []


def test_pruning_an_empty_database_changes_nothing(upkeep: Upkeep, engine: sa.Engine) -> None:
    assert upkeep.prune() == 0
    assert (at_version(engine), everything(engine, lock_changes, "version")) == (0, [])
