"""The history of locks, by which verdicts in the log are judged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from analyzer.flush.sql_store import SqlStore
from analyzer.judging.locks import lock_feed
from analyzer.judging.locks.lock_history import HISTORY_KEPT_MS, Span, ended_locks, known_since_ms, spans
from analyzer.kernel.database.clock import clock_ms, instant, millis
from analyzer.kernel.database.engine import writing
from analyzer.kernel.tables.schema import lock_history
from gatekeeper.model import Clear, Lock, Set
from tests.support.upkeep import Upkeep

ANN = ("caller", "user:ann", "")


@pytest.fixture
def db(engine: sa.Engine, store: SqlStore) -> Iterator[sa.Connection]:
    with writing(engine) as connection:
        yield connection


def a_lock(now_ms: int, ends_in_s: float, *, key: str = "user:ann", policy: str = "daily") -> Lock:
    began = instant(now_ms)
    return Lock("caller", key, policy, began, began + timedelta(seconds=ends_in_s))


def around(db: sa.Connection, now_ms: int) -> list[Span]:
    return spans(db, {ANN}, now_ms - 1000, now_ms + 1000)


def rows(db: sa.Connection) -> list[tuple[str, bool, str]]:
    """Returns policy, whether it has ended, and the cause."""
    columns = lock_history.c
    found = db.execute(sa.select(columns.policy, columns.ended_ms, columns.cause).order_by(*columns))
    return [(row[0], row[1] is not None, row[2]) for row in found if row[0]]


def test_a_lock_is_in_the_history_with_its_stretch_of_time(db: sa.Connection) -> None:
    now_ms = clock_ms(db)
    lock = a_lock(now_ms, 3600)
    lock_feed.publish(db, [Set(lock), Set(a_lock(now_ms, 3600, key="user:bob"))], "m1")
    assert around(db, now_ms) == [Span(lock.at, now_ms, now_ms + 3_600_000)]
    assert spans(db, {ANN}, now_ms - 9000, now_ms - 1) == []
    assert spans(db, {ANN}, now_ms + 3_600_001, now_ms + 9_000_000) == []


def test_a_cleared_lock_ends_when_it_is_cleared(db: sa.Connection) -> None:
    now_ms = clock_ms(db)
    lock = a_lock(now_ms, 3600)
    lock_feed.publish(db, [Set(lock)], "m1")
    lock_feed.publish(db, [Clear(lock.at)], "m2")
    [span] = around(db, now_ms)
    assert now_ms <= span.ended_ms < now_ms + 60_000
    assert rows(db) == [("daily", True, "cleared")]


def test_a_lock_with_an_earlier_end_replaces_the_other(db: sa.Connection) -> None:
    now_ms = clock_ms(db)
    longer, shorter = a_lock(now_ms, 7200), a_lock(now_ms, 3600)
    lock_feed.publish(db, [Set(longer)], "m1")
    lock_feed.publish(db, [Set(shorter)], "m2")
    assert rows(db) == [("daily", False, ""), ("daily", True, "replaced")]
    assert max(span.ended_ms for span in around(db, now_ms)) == now_ms + 3_600_000


def test_a_lock_that_lapsed_ended_at_its_time_and_not_when_the_warden_saw_it(db: sa.Connection) -> None:
    now_ms = clock_ms(db) - 60_000
    lock = a_lock(now_ms, 1)
    lock_feed.publish(db, [Set(lock)], "m1")
    lock_feed.publish(db, [Clear(lock.at)], "m2")
    assert around(db, now_ms) == [Span(lock.at, now_ms, now_ms + 1000)]
    assert rows(db) == [("daily", True, "lapsed")]


def test_a_lock_that_is_cleared_and_set_again_is_in_force_again(db: sa.Connection) -> None:
    now_ms = clock_ms(db)
    lock = a_lock(now_ms, 3600)
    for mark in ("m1", "m3"):
        lock_feed.publish(db, [Set(lock)], mark)
        lock_feed.publish(db, [Clear(lock.at)], mark + "c")
    lock_feed.publish(db, [Set(lock)], "m5")
    assert rows(db) == [("daily", False, "")]


def test_a_new_lock_is_not_noted_where_a_longer_one_stays(db: sa.Connection) -> None:
    now_ms = clock_ms(db)
    lock_feed.publish(db, [Set(a_lock(now_ms, 7200))], "m1")
    changes = [Set(a_lock(now_ms, 3600)), Set(a_lock(now_ms, 3600, key="user:bob"))]
    assert lock_feed.publish_longer(db, changes, "m2") == changes[1:]
    assert rows(db) == [("daily", False, ""), ("daily", False, "")]


@pytest.mark.parametrize("action", ["tag", "notify"])
def test_a_lock_that_refuses_nothing_is_an_offence_and_supports_no_verdict(
    db: sa.Connection, action: str
) -> None:
    now_ms = clock_ms(db) - 60_000
    lock = replace(a_lock(now_ms, 1), action=action)
    lock_feed.publish(db, [Set(lock)], "m1")
    lock_feed.publish(db, [Clear(lock.at)], "m2")
    assert around(db, now_ms) == []
    assert rows(db) == [("daily", True, "lapsed")]
    assert ended_locks(db, [lock.at], 3600) == {lock.at: 1}


def test_the_history_is_complete_since_its_first_row(engine: sa.Engine, store: SqlStore) -> None:
    with engine.connect() as db:  # without a commit: other tests need the row
        since_ms, now_ms = known_since_ms(db), clock_ms(db)
        assert since_ms is not None
        assert now_ms - 600_000 < since_ms <= now_ms
        db.execute(sa.update(lock_history).values(began_ms=0))
        since_ms = known_since_ms(db)
        assert since_ms is not None
        assert abs(now_ms - HISTORY_KEPT_MS - since_ms) < 60_000
        db.execute(sa.delete(lock_history))
        assert known_since_ms(db) is None


def test_upkeep_deletes_what_is_older_than_a_record_may_be(
    engine: sa.Engine, store: SqlStore, upkeep: Upkeep
) -> None:
    assert timedelta(milliseconds=HISTORY_KEPT_MS) >= timedelta(days=40)
    old = datetime.now(UTC) - timedelta(milliseconds=HISTORY_KEPT_MS)
    with writing(engine) as db:
        for name, moved in (("gone", timedelta(hours=-1)), ("kept", timedelta(hours=1))):
            lock = a_lock(millis(old + moved) - 1000, 1, policy=name)
            lock_feed.publish(db, [Set(lock)], name)
            lock_feed.publish(db, [Clear(lock.at)], name + "c")
    assert upkeep.prune() >= 1
    with writing(engine) as db:
        assert rows(db) == [("kept", True, "lapsed")]
        assert known_since_ms(db) is not None
