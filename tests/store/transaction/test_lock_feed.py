"""The feed under many writers: versions are seen in order, and nobody waits for anybody in a circle."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from analyzer.core.counting.meters import REQUESTS
from analyzer.core.judging.plan import Plan
from analyzer.errors import PlanChanged
from analyzer.store.database.engine import reading, writing
from analyzer.store.database.schema import feed, lock_changes, locks
from analyzer.store.operations.upkeep import SqlUpkeep
from analyzer.store.transaction import lock_feed
from analyzer.store.transaction.lock_feed import publish as publish_last
from analyzer.store.transaction.sql_store import SqlStore
from gatekeeper.model import Lock, Set
from tests.store.flushing import (
    a_row,
    flush,
    locked,
    now_s,
    plan,
    publish,
    quota,
    together,
    used,
    wait_for_waiters,
)

NewEngine = Callable[[], sa.Engine]
on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)

BEGAN = datetime(2026, 11, 21, 10, tzinfo=UTC)
WRITERS, VERSIONS = 4, 25  # each


def a_lock(key: str) -> Lock:
    return Lock("caller", key, "daily", BEGAN, BEGAN + timedelta(days=1))


def write(store: SqlStore, number: int, pause: threading.Event) -> None:
    """Versions of one to three changes, at a pace of its own."""
    chance = random.Random(number)
    for n in range(VERSIONS):
        keys = [f"user:{number}-{n}-{m}" for m in range(chance.randint(1, 3))]
        with store.transaction() as tx:
            publish(tx, [Set(a_lock(key)) for key in keys])
            pause.wait(chance.random() * 0.004)  # between the version and its commit: here order is lost


@on_postgresql
def test_a_reader_that_asks_for_what_came_after_its_version_misses_nothing(
    new_engine: NewEngine, engine: sa.Engine
) -> None:
    pause = threading.Event()
    stores = [SqlStore(new_engine(), f"analyzer {n}") for n in range(WRITERS)]
    writers = [threading.Thread(target=write, args=(store, n, pause)) for n, store in enumerate(stores)]
    for writer in writers:
        writer.start()
    version, polls, heard = 0, 0, []
    while version < WRITERS * VERSIONS:
        assert any(writer.is_alive() for writer in writers) or polls < 10_000
        with reading(engine) as db:
            latest = db.execute(sa.select(feed.c.version)).scalar_one()
            rows = db.execute(sa.select(lock_changes).where(lock_changes.c.version > version)).all()
        heard += [(row.version, row.number, row.key) for row in rows]
        assert {row.version for row in rows} == set(range(version + 1, latest + 1))
        version, polls = latest, polls + 1
    for writer in writers:
        writer.join()
    with reading(engine) as db:
        written = db.execute(sa.select(lock_changes.c.version, lock_changes.c.number, lock_changes.c.key))
        assert sorted(heard) == sorted(tuple(row) for row in written)
    assert polls > WRITERS  # it did ask in between


@on_postgresql
def test_lock_rows_are_taken_in_one_order_whatever_the_plan(new_engine: NewEngine, engine: sa.Engine) -> None:
    """Two flushes that judge the same callers would otherwise each hold what the other one waits for."""
    first, second = a_lock("user:1"), a_lock("user:2")
    with writing(engine) as db:
        publish_last(db, [Set(second), Set(first)], "mark")  # so they lie in the table
    flush = new_engine()
    done: list[object] = []

    def take_both() -> None:
        with writing(flush) as db:
            done.append(list(lock_feed.locked(db, [second.at, first.at])))

    row = sa.select(locks.c.key)
    with writing(engine) as db:
        db.execute(row.where(locks.c.key == "user:1").with_for_update())
        taking = threading.Thread(target=take_both)
        taking.start()
        wait_for_waiters(new_engine(), 1)
        free = db.execute(row.where(locks.c.key == "user:2").with_for_update(skip_locked=True))
        assert free.scalars().all() == ["user:2"]
    taking.join()
    assert done == [[first.at, second.at]]


@on_postgresql
def test_flushes_activations_and_the_warden_never_wait_in_a_circle(
    new_engine: NewEngine, engine: sa.Engine
) -> None:
    """PostgreSQL would say deadlock after a second. In the end locks and totals agree."""
    stores = [SqlStore(new_engine(), f"analyzer {n}") for n in range(4)]
    wardens = [SqlUpkeep(new_engine(), f"analyzer {n}", str) for n in range(2)]
    stores[0].activate(both_at(20))
    at_s = now_s(engine)
    done = threading.Event()

    def flush_on(store: SqlStore, number: int) -> None:
        chance = random.Random(number)
        version, agreed = store.active_plan()
        for _ in range(50):
            keys = chance.sample(range(12), 6)
            rows = [a_row(chance.randint(1, 3), at_s - 60 * chance.randint(0, 2), f"user:{n}") for n in keys]
            try:
                flush(store, agreed, {row.key: row for row in rows}.values(), version)
            except PlanChanged:
                version, agreed = store.active_plan()

    def activate_on(store: SqlStore) -> None:
        for limit in range(20, 35):
            store.activate(both_at(limit))

    def tidy_on(warden: SqlUpkeep) -> None:
        while not done.is_set():
            with writing(warden._engine) as db:  # as if time had passed
                some = lock_feed.locked(db, [a_lock(f"user:{n}").at for n in range(0, 12, 5)])
                match = sa.tuple_(locks.c.key, locks.c.policy).in_([(at.key, at.policy) for at in some])
                db.execute(sa.update(locks).where(match).values(until_ms=1))
            warden.end_locks()
            warden.prune()
            warden.roll_up([REQUESTS], 60, 3600)

    tidying = [threading.Thread(target=lambda w=warden: tidied.extend(together(lambda: tidy_on(w))))
               for warden in wardens]  # fmt: skip
    tidied: list[object] = []
    for thread in tidying:
        thread.start()
    flushing = [lambda s=store, n=n: flush_on(s, n) for n, store in enumerate(stores[1:])]
    answers = together(lambda: activate_on(stores[0]), *flushing)
    done.set()
    for thread in tidying:
        thread.join()
    assert [*answers, *tidied] == [None] * 6
    stores[0].activate(both_at(40))
    reached = {key for (_, key, _), number in used(engine).items() if number >= 40}
    policies = [policy.name for policy in both_at(40).policies]
    assert set(locked(engine)) == {(key, policy) for key in reached for policy in policies}
    assert len(locked(engine)) > 10


def both_at(limit: int) -> Plan:
    return plan(quota(limit), quota(limit, name="another"))
