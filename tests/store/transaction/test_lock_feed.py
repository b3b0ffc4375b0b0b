"""The feed with many writers: versions become visible in order, and no transactions deadlock."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from analyzer.flush.sql_store import SqlStore
from analyzer.judging.judge import Judged
from analyzer.judging.locks import lock_feed
from analyzer.judging.locks.lock_feed import publish as publish_last
from analyzer.kernel.database.engine import reading, writing
from analyzer.kernel.errors import PlanChanged
from analyzer.kernel.tables.schema import feed, lock_changes, locks
from analyzer.plan.plan import Plan
from gatekeeper.model import Clear, Cursor, Lock, Set
from tests.store.flushing import (
    a_row,
    flush,
    locked,
    now_s,
    plan,
    publish,
    quota,
    run_together,
    used,
    wait_for_waiters,
)
from tests.support.upkeep import Upkeep

NewEngine = Callable[[], sa.Engine]
on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)

BEGAN = datetime(2026, 11, 21, 10, tzinfo=UTC)
WRITERS, VERSIONS = 4, 25  # each


def a_lock(key: str) -> Lock:
    return Lock("caller", key, "daily", BEGAN, BEGAN + timedelta(days=1))


def write(store: SqlStore, number: int, pause: threading.Event) -> None:
    """Publishes versions of one to three changes at random moments."""
    chance = random.Random(number)
    for n in range(VERSIONS):
        keys = [f"user:{number}-{n}-{m}" for m in range(chance.randint(1, 3))]
        with store.transaction() as tx:
            publish(tx, [Set(a_lock(key)) for key in keys])
            pause.wait(
                chance.random() * 0.004
            )  # between the version and its commit, where order could be lost


@on_postgresql
def test_a_reader_of_the_changes_after_its_version_misses_none(
    new_engine: NewEngine, engine: sa.Engine
) -> None:
    pause = threading.Event()
    stores = [SqlStore(new_engine(), f"analyzer {n}") for n in range(WRITERS)]
    writers = [threading.Thread(target=write, args=(store, n, pause)) for n, store in enumerate(stores)]
    for writer in writers:
        writer.start()
    version, polls, seen = 0, 0, []
    while version < WRITERS * VERSIONS:
        assert any(writer.is_alive() for writer in writers) or polls < 10_000
        with reading(engine) as db:
            latest = db.execute(sa.select(feed.c.version)).scalar_one()
            rows = db.execute(sa.select(lock_changes).where(lock_changes.c.version > version)).all()
        seen += [(row.version, row.number, row.key) for row in rows]
        assert {row.version for row in rows} == set(range(version + 1, latest + 1))
        version, polls = latest, polls + 1
    for writer in writers:
        writer.join()
    with reading(engine) as db:
        written = db.execute(sa.select(lock_changes.c.version, lock_changes.c.number, lock_changes.c.key))
        assert sorted(seen) == sorted(tuple(row) for row in written)
    assert polls > WRITERS, "the reader polled while versions were written"


@on_postgresql
def test_lock_rows_are_locked_in_one_order_by_every_query_plan(
    new_engine: NewEngine, engine: sa.Engine
) -> None:
    """Otherwise two flushes that judge the same callers could wait for each other."""
    first, second = a_lock("user:1"), a_lock("user:2")
    with writing(engine) as db:
        publish_last(db, [Set(second), Set(first)], "mark")  # in this order they are in the table
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
def test_flushes_activations_and_the_warden_never_deadlock(new_engine: NewEngine, engine: sa.Engine) -> None:
    """PostgreSQL would report a deadlock after a second. At the end locks and totals agree."""
    stores = [SqlStore(new_engine(), f"analyzer {n}") for n in range(4)]
    wardens = [Upkeep(new_engine(), str) for n in range(2)]
    stores[0].activate(both_at(20))
    at_s = now_s(engine)
    done = threading.Event()

    def flush_repeatedly(store: SqlStore, number: int) -> None:
        chance = random.Random(number)
        version, by_plan = store.active_plan()
        for _ in range(50):
            keys = chance.sample(range(12), 6)
            rows = [a_row(chance.randint(1, 3), at_s - 60 * chance.randint(0, 2), f"user:{n}") for n in keys]
            try:
                flush(store, by_plan, {row.key: row for row in rows}.values(), version)
            except PlanChanged:
                version, by_plan = store.active_plan()

    def clean_up_repeatedly(warden: Upkeep) -> None:
        while not done.is_set():
            with writing(engine) as db:  # ends some locks, as if time had passed
                ending = lock_feed.locked(db, [a_lock(f"user:{n}").at for n in range(0, 12, 5)])
                match = sa.tuple_(locks.c.key, locks.c.policy).in_([(at.key, at.policy) for at in ending])
                db.execute(sa.update(locks).where(match).values(until_ms=1))
            warden.end_locks()
            warden.prune()
            warden.roll_up(60, 3600)

    cleaned: list[object] = []

    def clean_up_in_thread(warden: Upkeep) -> None:
        cleaned.extend(run_together(lambda: clean_up_repeatedly(warden)))

    cleaning = [threading.Thread(target=clean_up_in_thread, args=[warden]) for warden in wardens]
    for thread in cleaning:
        thread.start()
    flushing = [lambda s=store, n=n: flush_repeatedly(s, n) for n, store in enumerate(stores[1:])]
    answers = run_together(lambda: activate_repeatedly(stores[0]), *flushing)
    done.set()
    for thread in cleaning:
        thread.join()
    assert [*answers, *cleaned] == [None] * 6
    stores[0].activate(both_at(40))
    reached = {key for (_, key, _), number in used(engine).items() if number >= 40}
    policies = [policy.name for policy in both_at(40).policies]
    assert set(locked(engine)) == {(key, policy) for key in reached for policy in policies}
    assert len(locked(engine)) > 10


def both_at(limit: int) -> Plan:
    return plan(quota(limit), quota(limit, name="another"))


def activate_repeatedly(store: SqlStore) -> None:
    for limit in range(20, 35):
        store.activate(both_at(limit))


def test_a_lock_is_extended_and_never_shortened(engine: sa.Engine) -> None:
    """A flush that was judged before midnight may come behind one that was judged after it."""

    def lock(key: str, days: int) -> Set:
        return Set(replace(a_lock(key), until=BEGAN + timedelta(days=days)))

    with writing(engine) as db:
        assert lock_feed.publish_longer(db, [lock("user:ann", 2), lock("user:bob", 1)], "m1")
        changes = [lock("user:ann", 1), lock("user:bob", 2), lock("user:eve", 1)]
        assert lock_feed.publish_longer(db, changes, "m2") == changes[1:]
        assert lock_feed.publish_longer(db, changes, "m3") == []
        assert db.execute(sa.select(feed.c.version, feed.c.mark)).one() == (2, "m2"), (
            "no version without a change"
        )
        stored = db.execute(sa.select(locks.c.key, locks.c.until_ms)).all()
    days = {key: round((time_ms / 1000 - BEGAN.timestamp()) / 86_400) for key, time_ms in stored}
    assert days == {"user:ann": 2, "user:bob": 2, "user:eve": 1}


def test_published_changes_have_their_version_and_locks_in_shadow_are_apart(store: SqlStore) -> None:
    ann, bob = a_lock("user:ann"), a_lock("user:bob")
    shadow = replace(bob, action="shadow")
    silent = replace(a_lock("user:cid"), action="notify")
    with writing(store._engine) as db:
        judged = lock_feed.publish_judged(db, Judged([Set(ann), Set(shadow), Set(silent)]), "m1")
        assert judged.at == lock_feed_at(db)
    assert (judged.changes, judged.in_shadow) == ([Set(ann)], [Set(shadow)])
    with writing(store._engine) as db:
        judged = lock_feed.publish_judged(db, Judged([Clear(shadow.at), Clear(silent.at)]), "m2")
        assert lock_feed_at(db).mark == "m1"
    assert (judged.at, judged.changes, judged.in_shadow) == (None, [], [Clear(shadow.at)])


def lock_feed_at(db: sa.Connection) -> Cursor:
    return Cursor(*db.execute(sa.select(feed.c.version, feed.c.mark)).one())
