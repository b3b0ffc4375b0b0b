"""Activations on a large history: in bounded steps, beside flushes, with the result of one large step."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from analyzer.flush.sql_store import SqlStore
from analyzer.judging.activation_steps import ClearStep, FillStep, decode_steps, unready_policies
from analyzer.judging.kinds.compared import judged_sum
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.sql import activation, plans, slots
from analyzer.kernel.database.engine import reading, writing
from analyzer.kernel.errors import PlanChanged
from analyzer.kernel.model import CountRow
from analyzer.kernel.tables.schema import locks, postponed, totals
from analyzer.kernel.tables.schema import plans as plans_table
from analyzer.maintenance import job_table
from analyzer.plan import catalog
from analyzer.plan.meters import MINUTE_S
from analyzer.plan.plan import Plan, make_plan
from analyzer.plan.policies import LoadShare, Surge
from analyzer.plan.proposals import Agreement
from analyzer.plan.sums import sum_text
from analyzer.plan.windows import Rolling
from tests.store.flushing import (
    ACME,
    a_row,
    a_total,
    counts,
    feed_changes,
    flush,
    locked,
    now_s,
    plan,
    quota,
    used,
)
from tests.support.upkeep import Upkeep

NewEngine = Callable[[], sa.Engine]


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """An activation does nothing at once, and a step reads three rows."""
    monkeypatch.setattr(plans, "ACTIVATION_ROWS", 0)
    monkeypatch.setattr(job_table, "ACTIVATION_ROWS", 3)
    monkeypatch.setattr(activation, "LOCKS_AT_ONCE", 2)


def unready(engine: sa.Engine) -> list[str]:
    with reading(engine) as db:
        row = db.execute(sa.select(plans_table).where(plans_table.c.active == 1)).one()
        _, active = plans.active(db)
        return unready_policies(
            decode_steps(row.pending), active, plan_sums(active).numbers(catalog.load(db).sum_number)
        )


def history(now: int, callers: int = 10, minutes: int = 4) -> list[CountRow]:
    return [a_row(n + 1, now - 60 * m, f"user:{n:02}") for n in range(callers) for m in range(minutes)]


@pytest.mark.usefixtures("small_steps")
def test_a_policy_locks_only_when_its_totals_are_complete(
    store: SqlStore, upkeep: Upkeep, engine: sa.Engine
) -> None:
    now = now_s(engine)
    store.activate(Plan())
    flush(store, Plan(), history(now))
    store.activate(plan(quota(20)))
    steps = 0
    while unready(engine) == ["daily"] and upkeep.continue_activation():
        steps += 1
        filling = any(isinstance(step, FillStep) for step in pending(engine))
        assert not (filling and locked(engine)), "no policy judges a sum that is not filled"
    assert steps > 10
    assert unready(engine) == []
    assert set(used(engine).values()) == {4 * n for n in range(1, 11)}
    assert {key for key, _ in locked(engine)} == {f"user:{n:02}" for n in range(4, 10)}
    assert not upkeep.continue_activation()


def test_filled_totals_leave_out_series_with_an_empty_part(store: SqlStore, engine: sa.Engine) -> None:
    """Requests without a path have nothing in common, and a lock without a resource would be one on all."""
    now = now_s(engine)
    by_route = quota(5, per="month")
    by_route = msgspec.structs.replace(by_route, name="routes", per="caller+resource")
    before = make_plan(["caller+resource"], [], [])
    rows = [a_row(9, now, resource="/a"), a_row(9, now, resource="/a")._replace(resource="")]
    store.activate(before)
    flush(store, before, rows)
    after = plan(by_route)
    store.activate(after)
    with engine.connect() as db:
        found = {(row.key, row.resource): row.policy for row in db.execute(sa.select(locks))}
    assert found == {(ACME, "/a"): "routes"}
    flush(store, after, rows)
    with engine.connect() as db:
        assert {row.resource for row in db.execute(sa.select(totals))} == {"/a"}
        assert {row.resource for row in db.execute(sa.select(locks))} == {"/a"}


def pending(engine: sa.Engine) -> tuple[object, ...]:
    with reading(engine) as db:
        return decode_steps(
            db.execute(sa.select(plans_table.c.pending).where(plans_table.c.active == 1)).scalar_one()
        )


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("seed", range(8))
def test_flushes_between_the_steps_are_in_the_totals_once(
    store: SqlStore, upkeep: Upkeep, engine: sa.Engine, seed: int
) -> None:
    """Flushes add to minutes that the filling has passed, and to others; late ones too."""
    chance, now = random.Random(seed), now_s(engine)
    store.activate(Plan())
    truth: Counter[str] = Counter()

    def count(by_plan: Plan, rows: int) -> None:
        chosen = {
            (row.key, row.bucket_s): row
            for row in (
                a_row(chance.randint(1, 9), now - 60 * chance.randint(0, 9), f"user:{chance.randint(0, 9)}")
                for _ in range(rows)
            )
        }
        for row in chosen.values():
            truth[row.key] += row.value
        flush(store, by_plan, chosen.values())

    count(Plan(), 40)
    new = plan(quota(60), quota(90, name="second"))
    store.activate(new)
    while upkeep.continue_activation():
        count(new, chance.randint(1, 6))
    count(new, 3)
    assert {key: number for (_, key, _), number in used(engine).items()} == truth
    assert set(locked(engine)) == {
        (key, name) for key, number in truth.items() for name, limit in (("daily", 60), ("second", 90))
        if number >= limit
    }  # fmt: skip
    assert len(feed_changes(engine)) == len(locked(engine)), "each lock is set once"


def test_locks_of_the_flush_that_puts_a_plan_in_force_are_set_once(
    store: SqlStore, upkeep: Upkeep, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps must see that these locks are of the new plan: they began after it."""
    before, proposed = plan(quota(100)), plan(quota(20))
    version = store.activate(before)
    began_s = now_s(engine)
    flush(store, before, history(began_s))
    activate = plans.activate

    def slow(*given: Any, **named: Any) -> Any:
        time.sleep(0.005)
        activated = activate(*given, **named)
        time.sleep(0.005)
        return activated

    monkeypatch.setattr(plans, "activate", slow)
    with store.transaction() as tx:
        number, now = tx.put_in_force(Agreement(version, before, proposed))
        tx.apply(proposed, number, counts([a_row(20, began_s, "user:00")]), now)
    while upkeep.continue_activation():
        pass
    assert set(locked(engine)) == {(f"user:{n:02}", "daily") for n in (0, *range(4, 10))}
    assert len(feed_changes(engine)) == len(locked(engine)), "each lock is set once"


@pytest.mark.usefixtures("small_steps")
def test_another_plan_in_the_middle_of_the_filling_continues_it(
    store: SqlStore, upkeep: Upkeep, engine: sa.Engine
) -> None:
    """A sum that both plans need is not filled twice; one that the second does not need is forgotten."""
    now = now_s(engine)
    store.activate(Plan())
    flush(store, Plan(), history(now))
    store.activate(plan(quota(20), quota(20, "day", "other")))
    for _ in range(4):
        upkeep.continue_activation()
    store.activate(plan(quota(24)))
    assert unready(engine) == ["daily"]
    while upkeep.continue_activation():
        pass
    assert set(used(engine).values()) == {4 * n for n in range(1, 11)}
    assert set(locked(engine)) == {(f"user:{n:02}", "daily") for n in range(5, 10)}


@pytest.mark.usefixtures("small_steps")
def test_a_raised_limit_unlocks_and_a_lowered_one_locks_in_steps(
    store: SqlStore, upkeep: Upkeep, engine: sa.Engine
) -> None:
    now = now_s(engine)
    for limit in (12, 30, 1, 25):
        store.activate(plan(quota(limit)))
        while upkeep.continue_activation():
            pass
        if limit == 12:
            flush(store, plan(quota(12)), history(now))
        expected = {(f"user:{n - 1:02}", "daily") for n in range(1, 11) if 4 * n >= limit}
        assert set(locked(engine)) == expected
        assert all(text.startswith(f"{limit} requests") for text in locked(engine).values())
    store.activate(Plan())
    while upkeep.continue_activation():
        pass
    assert locked(engine) == {}


def test_a_total_that_reaches_a_raised_limit_after_the_judge_step_gets_the_new_lock(
    store: SqlStore, upkeep: Upkeep, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush finds the old lock, which lasts long enough; only the clear step looks at it again."""
    old, new, now = plan(quota(4, action="tag")), plan(quota(12)), now_s(engine)
    store.activate(old)
    flush(store, old, [a_row(5, now)])
    monkeypatch.setattr(plans, "ACTIVATION_ROWS", 0)
    monkeypatch.setattr(job_table, "ACTIVATION_ROWS", 1)
    store.activate(new)
    while not all(isinstance(step, ClearStep) for step in pending(engine)):
        upkeep.continue_activation()
    assert flush(store, new, [a_row(9, now)]) == []
    while pending(engine):
        upkeep.continue_activation()
    with engine.connect() as db:
        lock = db.execute(sa.select(locks)).one()
    assert (lock.action, lock.detail) == ("deny", "12 requests per month (UTC), 14 counted")
    assert [op for _, op, _ in feed_changes(engine)] == ["set", "set"]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_filling_beside_busy_analyzers_gives_the_exact_totals(
    new_engine: NewEngine, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "ACTIVATION_ROWS", 0)
    monkeypatch.setattr(job_table, "ACTIVATION_ROWS", 20)
    stores = [SqlStore(new_engine(), f"analyzer {n}") for n in range(3)]
    now = now_s(engine)
    stores[0].activate(Plan())
    flush(stores[0], Plan(), [a_row(1, now - 60 * m, f"user:{n:02}") for n in range(30) for m in range(20)])
    truth = Counter({f"user:{n:02}": 20 for n in range(30)})
    mutex, done, errors = threading.Lock(), threading.Event(), []

    def work(store: SqlStore, seed: int) -> None:
        chance = random.Random(seed)
        version, by_plan = store.active_plan()
        while not done.is_set():
            keys = chance.sample(range(30), 4)
            rows = [a_row(1, now - 60 * chance.randint(0, 19), f"user:{n:02}") for n in keys]
            try:
                flush(store, by_plan, rows, version)
            except PlanChanged:
                version, by_plan = store.active_plan()
                continue
            except BaseException as error:
                errors.append(error)
                raise
            with mutex:
                truth.update(row.key for row in rows)

    threads = [threading.Thread(target=work, args=(store, n)) for n, store in enumerate(stores)]
    for thread in threads:
        thread.start()
    upkeep = Upkeep(new_engine(), str)
    SqlStore(new_engine(), "operator").activate(plan(quota(10**6)))
    while upkeep.continue_activation():
        pass
    done.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert {key: number for (_, key, _), number in used(engine).items()} == truth
    assert MINUTE_S == 60


def test_rolling_sums_are_judged_again_after_a_clock_that_was_ahead(
    store: SqlStore, upkeep: Upkeep, engine: sa.Engine
) -> None:
    """Their `next` is by slots that were far away; series above the floor of a share wait for the warden."""
    surge = Surge("flood", 100, Rolling(60))
    share = LoadShare("neighbour", 400_000, 5, Rolling(60))
    version, at_s = store.activate(make_plan([], [], [surge, share])), now_s(engine)
    with writing(engine) as db:
        numbers = {name: number for name, number in catalog.load(db).sums.items() if "whole" not in name}
        rows = [
            a_total(sum=number, key=ACME, used=9, next=500, plan=version, touched_s=at_s)
            for number in numbers.values()
        ]
        db.execute(sa.insert(totals).values(rows))
        slot = {"key": ACME, "resource": "", "slot_s": at_s - at_s % 5, "value": 9}
        db.execute(
            sa.insert(slots.table_at(at_s)).values([{"sum": number} | slot for number in numbers.values()])
        )
        plans.judge_again(db, clock_was_ahead=True)
    while upkeep.continue_activation():
        pass
    with engine.connect() as db:
        assert set(db.execute(sa.select(totals.c.plan)).scalars()) == {0}
        assert db.execute(sa.select(postponed.c.sum)).scalars().all() == [
            numbers[sum_text(judged_sum(share))]
        ]
