"""Events for alerts: written in the transaction of what happened, once."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from analyzer.flush.sql_store import SqlStore
from analyzer.judging.locks import lock_feed
from analyzer.kernel import outbox
from analyzer.kernel.database.engine import reading, writing
from analyzer.kernel.outbox import OutboxEvent
from analyzer.kernel.tables.outbox_tables import outbox as rows
from gatekeeper.model import Clear, Lock, Set
from tests.store.flushing import a_row, flush, now_s, plan, quota

BEGAN = datetime.now(UTC).replace(microsecond=0)
LOCK = Lock("caller", "api_key:acme", "daily", BEGAN, BEGAN + timedelta(days=1), detail="100 counted")


def publish(engine: sa.Engine, *changes: Set | Clear) -> None:
    with writing(engine) as db:
        lock_feed.publish(db, changes, lock_feed.new_mark())


def taken(engine: sa.Engine) -> list[tuple[str, str, str]]:
    """Returns the kind, severity and object of each event, in order, and deletes them."""
    with writing(engine) as db:
        events = db.execute(sa.select(rows.c["kind", "severity", "about"]).order_by(rows.c.id)).all()
        db.execute(sa.delete(rows))
    return [(*event,) for event in events]


def test_a_lock_is_an_event_when_it_begins_and_when_it_ends(engine: sa.Engine) -> None:
    publish(engine, Set(LOCK))
    assert taken(engine) == [("lock.set", "warning", "api_key:acme")]
    publish(engine, Set(replace(LOCK, until=LOCK.until + timedelta(days=1))))
    assert taken(engine) == [], "it lasts longer"
    publish(engine, Clear(LOCK.at))
    assert taken(engine) == [("lock.cleared", "warning", "api_key:acme")]
    publish(engine, Clear(LOCK.at))
    assert taken(engine) == [], "there was none"


def test_an_event_has_the_lock_as_the_feed_writes_it(engine: sa.Engine) -> None:
    before_s = time.time()
    publish(engine, Set(LOCK))
    with reading(engine) as db:
        [row] = db.execute(sa.select(rows)).all()
    body = json.loads(row.body)
    assert body["what"] == "api_key:acme is locked by daily: 100 counted"
    shown = [body["details"][name] for name in ("op", "scope", "key", "detail")]
    assert shown == ["set", "caller", "api_key:acme", "100 counted"]
    assert before_s - 1 <= row.at_ms / 1000 <= time.time() + 1


@pytest.mark.parametrize("action", ["notify", "shadow"])
def test_a_lock_that_no_gate_gets_is_not_an_event(engine: sa.Engine, action: str) -> None:
    in_shadow = replace(LOCK, action=action)
    publish(engine, Set(in_shadow))
    publish(engine, Clear(LOCK.at))
    assert taken(engine) == []
    publish(engine, Set(in_shadow))
    publish(engine, Set(LOCK))
    assert taken(engine) == [("lock.set", "warning", "api_key:acme")], "the policy is enforced now"
    publish(engine, Set(in_shadow))
    assert taken(engine) == [("lock.cleared", "warning", "api_key:acme")]


def test_a_threshold_is_an_event_once(engine: sa.Engine, store: SqlStore) -> None:
    by_plan = plan(quota(100, notify=(500, 1_000)))
    version = store.activate(by_plan)
    flush(store, by_plan, [a_row(60, now_s(engine), "user:ann")], version)
    assert taken(engine) == [("threshold.reached", "info", "user:ann")]
    flush(store, by_plan, [a_row(60, now_s(engine), "user:ann")], version)
    assert sorted(taken(engine)) == [
        ("lock.set", "warning", "user:ann"),
        ("threshold.reached", "warning", "user:ann"),
    ]


def test_a_rollback_leaves_no_event(engine: sa.Engine) -> None:
    with writing(engine) as db:
        lock_feed.publish(db, [Set(LOCK)], "mark")
        db.rollback()
    assert taken(engine) == []


def test_events_keep_their_order_and_any_text(engine: sa.Engine) -> None:
    names = ["\x1f\x1f1 ', \"", "ä\u202e😀" * 20, *map(str, range(500))]
    with writing(engine) as db:
        outbox.put(db, [OutboxEvent("signal.began", name, name, details={"name": name}) for name in names])
        outbox.put(db, [])
    with reading(engine) as db:
        stored = db.execute(sa.select(rows).order_by(rows.c.id)).all()
    assert [row.about for row in stored] == names
    assert [json.loads(row.body)["details"]["name"] for row in stored] == names
