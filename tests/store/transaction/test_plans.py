"""Activating a plan: totals and locks agree with it at once, and flushes by the old plan are refused."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

import msgspec
import pytest
import sqlalchemy as sa

from analyzer.flush.sql_store import SqlStore
from analyzer.judging.locks import lock_feed
from analyzer.kernel.database.engine import writing
from analyzer.kernel.errors import PlanChanged, SchemaBehind, StoreAway
from analyzer.kernel.tables.schema import TOTAL_MAX, locks, plans, totals
from analyzer.plan.plan import Plan, make_plan
from analyzer.plan.windows import window_at
from tests.store.flushing import (
    ACME,
    ANN,
    a_row,
    at_version,
    feed_changes,
    flush,
    locked,
    now_s,
    plan,
    quota,
    run_together,
    until,
    used,
    wait_for_waiters,
)
from tests.support.stored_counts import put_counts

NewEngine = Callable[[], sa.Engine]


def versions(engine: sa.Engine) -> list[tuple[int, int]]:
    with engine.connect() as db:
        return [(row.version, row.active) for row in db.execute(sa.select(plans).order_by(plans.c.version))]


def test_another_plan_with_the_same_number_is_not_the_one_in_force(
    store: SqlStore, engine: sa.Engine
) -> None:
    """After a dump was restored, the next plan gets a number that another one had."""
    before, other = plan(quota(5)), plan(quota(7))
    version = store.activate(before)
    with store.transaction() as tx:
        tx.check_plan(before, version)
    with writing(engine) as db:
        db.execute(sa.update(plans).values(digest=other.digest, body=other.to_json()))
    with (
        pytest.raises(PlanChanged, match="another one has its number: a dump was restored"),
        store.transaction() as tx,
    ):
        tx.check_plan(before, version)
    with store.transaction() as tx:
        tx.check_plan(other, version)


def test_before_the_first_activation_there_is_no_plan(store: SqlStore) -> None:
    with pytest.raises(LookupError, match="no plan is in force yet"):
        store.active_plan()
    with pytest.raises(PlanChanged), store.transaction() as tx:
        tx.check_plan(Plan(), 1)


def test_an_empty_plan_is_a_plan(store: SqlStore) -> None:
    version = store.activate(Plan())
    assert store.active_plan() == (version, Plan())


def test_the_same_plan_again_changes_nothing(store: SqlStore, engine: sa.Engine) -> None:
    first = store.activate(plan(quota(10)))
    flush(store, plan(quota(10)), [a_row(12, now_s(engine))])
    before = used(engine), locked(engine), feed_changes(engine), versions(engine)
    assert store.activate(plan(quota(10))) == first
    assert (used(engine), locked(engine), feed_changes(engine), versions(engine)) == before


def test_exactly_one_plan_is_in_force(store: SqlStore, engine: sa.Engine) -> None:
    for limit in (10, 20, 10):
        store.activate(plan(quota(limit)))
    assert versions(engine) == [(1, 0), (2, 0), (3, 1)]
    assert store.active_plan() == (3, plan(quota(10)))


def test_a_new_policy_starts_from_what_was_counted_in_its_window(store: SqlStore, engine: sa.Engine) -> None:
    at_s = now_s(engine)
    policy = quota(10, "day")
    today = window_at(policy.window, at_s)
    store.activate(Plan())
    flush(store, Plan(), [
        a_row(100, today.start_s - 60),  # yesterday, to the minute
        a_row(4, today.start_s),
        a_row(5, today.until_s - 60, denied=7),
        a_row(2, today.until_s),  # tomorrow, by a clock that is ahead
        a_row(0, at_s, ANN, denied=50),
    ])  # fmt: skip
    store.activate(plan(policy))
    assert used(engine) == {("day UTC", ACME, today.start_s): 9, ("day UTC", ACME, today.until_s): 2}
    assert locked(engine) == {}
    flush(store, plan(policy), [a_row(1, at_s)])
    assert locked(engine) == {(ACME, "daily"): "10 requests per day (UTC), 10 counted"}


def test_totals_of_future_windows_are_filled_as_well(store: SqlStore, engine: sa.Engine) -> None:
    """A clock may be five minutes ahead; a policy by the minute then has that many windows in the future."""
    store.activate(Plan())
    at_s = now_s(engine) // 60 * 60
    ahead = [at_s + 60 * minutes for minutes in range(7)]
    flush(store, Plan(), [a_row(1, minute_s) for minute_s in ahead])
    store.activate(plan(quota(10, "minute")))
    filled = {start_s for _, _, start_s in used(engine)}
    assert filled >= set(ahead) - {at_s}, "the first window may have ended"


def test_a_policy_by_caller_and_resource_is_filled_from_that_grouping(
    store: SqlStore, engine: sa.Engine
) -> None:
    at_s = now_s(engine)
    policy = msgspec.structs.replace(quota(5, name="export"), per="caller+resource")
    rows = [a_row(6, at_s), a_row(4, at_s, resource="/a"), a_row(6, at_s, resource="/b")]
    without_policies = make_plan(["caller+resource"], [], [])
    store.activate(without_policies)
    flush(store, without_policies, rows)
    store.activate(plan(policy))
    with engine.connect() as db:
        filled = db.execute(sa.select(totals.c.resource, totals.c.used).order_by(totals.c.resource)).all()
    assert [tuple(row) for row in filled] == [("/a", 4), ("/b", 6)]
    assert list(locked(engine)) == [(ACME, "export")]


def test_a_lowered_limit_locks_at_once_and_a_raised_one_unlocks(store: SqlStore, engine: sa.Engine) -> None:
    store.activate(plan(quota(100)))
    flush(store, plan(quota(100)), [a_row(50, now_s(engine)), a_row(20, now_s(engine), ANN)])
    assert locked(engine) == {}
    store.activate(plan(quota(50)))
    assert locked(engine) == {(ACME, "daily"): "50 requests per month (UTC), 50 counted"}
    store.activate(plan(quota(51)))
    assert locked(engine) == {}
    store.activate(plan(quota(20)))
    assert set(locked(engine)) == {(ACME, "daily"), (ANN, "daily")}
    assert feed_changes(engine) == [(1, "set", ACME), (2, "clear", ACME), (3, "set", ACME), (3, "set", ANN)]


def test_a_policy_that_is_gone_leaves_no_lock_after_the_clock_was_set_back(
    store: SqlStore, engine: sa.Engine
) -> None:
    store.activate(plan(quota(4)))
    flush(store, plan(quota(4)), [a_row(5, now_s(engine))])
    with engine.begin() as db:
        db.execute(sa.update(locks).values(began_ms=locks.c.began_ms + 60_000))
    store.activate(Plan())
    assert locked(engine) == {}


def test_a_lock_that_stays_shows_the_new_limit(store: SqlStore, engine: sa.Engine) -> None:
    store.activate(plan(quota(10)))
    flush(store, plan(quota(10)), [a_row(50, now_s(engine))])
    store.activate(plan(quota(40)))
    assert locked(engine) == {(ACME, "daily"): "40 requests per month (UTC), 50 counted"}
    assert feed_changes(engine) == [(1, "set", ACME), (2, "set", ACME)]


def test_a_shorter_window_ends_the_lock_sooner(store: SqlStore, engine: sa.Engine) -> None:
    at_s = now_s(engine)
    monthly, daily = quota(10, "month", zone="Asia/Kathmandu"), quota(10, "day", zone="Asia/Kathmandu")
    store.activate(plan(monthly))
    first = flush(store, plan(monthly), [a_row(50, at_s)])
    assert [change.lock.until for change in first if hasattr(change, "lock")] == [until(monthly, at_s)]
    store.activate(plan(daily))
    with store.transaction() as tx:
        locks = lock_feed.locked(tx._db, [change.at for change in first])
    assert [lock.until for lock in locks.values()] == [until(daily, at_s)]


def test_the_locks_of_a_removed_policy_are_cleared(store: SqlStore, engine: sa.Engine) -> None:
    both = plan(quota(10), quota(10, name="other"))
    store.activate(both)
    flush(store, both, [a_row(50, now_s(engine))])
    store.activate(plan(quota(10, name="other")))
    assert list(locked(engine)) == [(ACME, "other")]
    assert feed_changes(engine)[2:] == [(2, "clear", ACME)]


def test_a_policy_that_did_not_change_is_left_alone(store: SqlStore, engine: sa.Engine) -> None:
    store.activate(plan(quota(10)))
    flush(store, plan(quota(10)), [a_row(50, now_s(engine))])
    before = used(engine), locked(engine), feed_changes(engine)
    store.activate(plan(quota(10), quota(1000, name="other")))
    assert (used(engine), locked(engine), feed_changes(engine)) == before


def test_totals_of_a_sum_that_was_not_needed_are_computed_again(store: SqlStore, engine: sa.Engine) -> None:
    """Nothing is added to totals that no policy needs."""
    at_s = now_s(engine)
    for by_plan, value in ((plan(quota(10)), 3), (Plan(), 4), (plan(quota(10)), 2)):
        store.activate(by_plan)
        flush(store, by_plan, [a_row(value, at_s)])
    assert list(used(engine).values()) == [9]


def test_a_change_of_plan_rewrites_no_total(store: SqlStore, engine: sa.Engine) -> None:
    store.activate(plan(quota(100)))
    flush(store, plan(quota(100)), [a_row(50, now_s(engine)), a_row(20, now_s(engine), ANN)])
    statements: list[str] = []
    sa.event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    store.activate(plan(quota(50)))
    assert [text for text in statements if "totals" in text and not text.startswith("SELECT")] == []
    assert list(locked(engine)) == [(ACME, "daily")]


def test_the_fill_stops_at_the_largest_number_a_column_takes(store: SqlStore, engine: sa.Engine) -> None:
    """SQLite's sum() fails beyond 64 bits, and the analyzer could never start again."""
    at_s = now_s(engine)
    first = window_at(quota(10).window, at_s).start_s
    store.activate(Plan())
    counted = {
        "user:beyond": (TOTAL_MAX, TOTAL_MAX),
        "user:exact": (2**62, 2**62 - 1),
        "user:just below": (TOTAL_MAX - 2**32 + 1, 1),
    }
    for key, values in counted.items():
        flush(store, Plan(), [a_row(value, first + 60 * n, key) for n, value in enumerate(values)])
    store.activate(plan(quota(10)))
    assert used(engine) == {
        ("month UTC", key, first): min(sum(values), TOTAL_MAX) for key, values in counted.items()
    }
    assert len(locked(engine)) == 3


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
@pytest.mark.parametrize("before", [[], [plan(quota(1))]], ids=["fresh", "another plan in force"])
def test_analyzers_that_start_together_agree_on_one_plan(
    new_engine: NewEngine, before: list[Plan], engine: sa.Engine
) -> None:
    stores = [SqlStore(new_engine(), f"analyzer {n}") for n in range(4)]
    for earlier in before:
        stores[0].activate(earlier)
    for store in stores:
        store.positions([])  # connects, so that what follows is simultaneous
        activated = run_together(*(lambda store=store: store.activate(plan(quota(2))) for store in stores))
        assert activated == [len(before) + 1] * 4
    assert stores[0].active_plan() == (len(before) + 1, plan(quota(2)))


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_analyzers_that_start_together_with_different_plans_activate_one_after_the_other(
    new_engine: NewEngine, engine: sa.Engine
) -> None:
    stores = [SqlStore(new_engine(), f"analyzer {n}") for n in range(4)]
    for store in stores:
        store.positions([])
    acts = [lambda s=store, p=plan(quota(n)): s.activate(p) for n, store in enumerate(stores)]
    assert sorted(map(str, run_together(*acts))) == ["1", "2", "3", "4"]
    assert [active for _, active in versions(engine)] == [0, 0, 0, 1]


ACTIVATE = """\
import sys
from analyzer.plan.plan import Plan, make_plan
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.database.migrate import require_head
from analyzer.judging.locks import lock_feed
from analyzer.flush.sql_store import SqlStore
require_head(sys.argv[1])
print(SqlStore(open_engine(sys.argv[1]), "one of three").activate(Plan()))
"""


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_three_processes_start_on_an_empty_file(database_url: str) -> None:
    """Each creates the tables if needed and puts the plan in force; none of them fails."""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", ACTIVATE, database_url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    answers = [child.communicate(timeout=60) for child in children]
    assert answers == [("1\n", "")] * 3


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_an_activation_waits_for_flushes_by_the_old_plan(
    store: SqlStore, engine: sa.Engine, new_engine: NewEngine
) -> None:
    """Otherwise their counts would be missing from the totals of the new policy."""
    old = store.activate(Plan())
    other = SqlStore(new_engine(), "there")
    activating = threading.Thread(target=other.activate, args=[plan(quota(10))])
    at_s = now_s(engine)
    with store.transaction() as tx:
        tx.check_plan(Plan(), old)
        activating.start()
        wait_for_waiters(engine, 1)
        put_counts(tx._db, [a_row(12, at_s)])
    activating.join()
    assert list(used(engine).values()) == [12]
    assert list(locked(engine)) == [(ACME, "daily")]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_flush_waits_for_an_activation_and_is_then_refused(
    store: SqlStore, engine: sa.Engine, new_engine: NewEngine
) -> None:
    old = store.activate(Plan())
    other = SqlStore(new_engine(), "there")
    reached, may_commit = threading.Event(), threading.Event()

    def pause(*_: object) -> None:
        reached.set()
        assert may_commit.wait(10)

    sa.event.listen(other._engine, "commit", pause)
    activating = threading.Thread(target=other.activate, args=[plan(quota(10))])
    activating.start()
    assert reached.wait(10)
    flushing: list[object] = []
    flusher = threading.Thread(
        target=lambda: flushing.extend(run_together(lambda: flush(store, Plan(), [a_row(1, 0)], old)))
    )
    flusher.start()
    wait_for_waiters(engine, 1)
    may_commit.set()
    for thread in (activating, flusher):
        thread.join()
    assert isinstance(flushing[0], PlanChanged)
    flush(store, plan(quota(10)), [a_row(1, 0)])


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_an_activation_is_not_starved_by_busy_analyzers(new_engine: NewEngine, engine: sa.Engine) -> None:
    """Three analyzers flush without a pause: at each moment one of them has a shared lock on the plan's row.

    A row lock alone would pass from one reader to the next forever.
    """
    stores = [SqlStore(new_engine(), f"analyzer {n}") for n in range(4)]
    old = stores[0].activate(Plan())
    done = threading.Event()
    flushing = threading.Barrier(4)

    def flush_repeatedly(store: SqlStore, first_wait_s: float) -> None:
        flushing.wait()
        done.wait(first_wait_s)  # so that their transactions overlap
        with suppress(PlanChanged, StoreAway):
            while not done.is_set():
                with store.transaction() as tx:
                    tx.check_plan(Plan(), old)
                    done.wait(0.15)

    threads = [
        threading.Thread(target=flush_repeatedly, args=(store, 0.05 * n))
        for n, store in enumerate(stores[1:])
    ]
    for thread in threads:
        thread.start()
    flushing.wait()
    done.wait(0.3)
    try:
        assert stores[0].activate(plan(quota(10))) == old + 1
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_no_version_is_published_when_nothing_changes_for_a_gate(store: SqlStore, engine: sa.Engine) -> None:
    store.activate(plan(quota(10)))
    flush(store, plan(quota(10)), [a_row(3, now_s(engine))])
    store.activate(plan(quota(20)))
    assert at_version(engine) == 0


def test_a_plan_of_a_newer_version_is_an_error_with_one_clear_sentence(
    store: SqlStore, engine: sa.Engine
) -> None:
    store.activate(Plan())
    with engine.begin() as db:
        body = '[2,{"groupings":[],"meters":[],"policies":[["surge",{}]]}]'
        db.execute(sa.update(plans).values(digest="", body=body))
    for use in (store.active_plan, lambda: store.activate(make_plan([], [], []))):
        with pytest.raises(SchemaBehind, match="another version of Gatelock"):
            use()
