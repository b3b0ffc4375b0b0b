"""Helpers of the store's tests: a flush, a plan, the contents of a table."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from analyzer.core.counting.meters import MINUTE_S, bucket_start_s
from analyzer.core.judging.plan import Plan, plan_of
from analyzer.core.judging.policies import Quota
from analyzer.core.judging.windows import Calendar, CalendarPeriod, window_at
from analyzer.core.model import CountRow, DrainedCounts, Partition
from analyzer.store.database.engine import NowMs
from analyzer.store.database.schema import feed, lock_changes, locks, totals
from analyzer.store.transaction import lock_feed
from analyzer.store.transaction.sql_store import SqlFlush, SqlStore
from gatekeeper.model import Change

PART = Partition("cluster", "topic-id", 0, "log", "access-log")
ACME, ANN = "api_key:acme", "user:ann"


def quota(
    limit: int, per: CalendarPeriod = "month", name: str = "daily", zone: str = "UTC", **rest: Any
) -> Quota:
    """A limit for a month, unless told otherwise: a test must not fail at midnight."""
    return Quota(name, limit, Calendar(per, zone), **rest)


def plan(*policies: Quota) -> Plan:
    return plan_of([], [], policies)


def a_row(value: int, at_s: int, key: str = ACME, *, denied: int = 0, resource: str = "") -> CountRow:
    grouping = "caller+resource" if resource else "caller"
    return CountRow(
        grouping, key, resource, "requests", MINUTE_S, bucket_start_s(at_s, MINUTE_S), value, denied
    )


def a_total(**columns: object) -> dict[str, object]:
    """A row of `totals`."""
    row: dict[str, object] = {"grouping": "caller", "meter": "requests", "period": "day UTC", "resource": ""}
    row |= {"window_s": 0, "until_s": 1 << 40, "used": 1, "next": 5, "plan": 1}
    return row | columns


def flush(
    store: SqlStore, agreed: Plan, rows: Iterable[CountRow], version: int | None = None
) -> Sequence[Change]:
    """Flushes `rows`; returns the changes of locks."""
    version = store.active_plan()[0] if version is None else version
    with store.transaction() as tx:
        now = tx.check_plan(version)
        return tx.apply(agreed, version, counts(sorted(rows)), now)


def publish(tx: SqlFlush, changes: Sequence[Change]) -> None:
    """Publishes changes of locks without a judgement, in a transaction of the store."""
    lock_feed.publish(tx._db, changes, tx._random_mark())


def counts(rows: Sequence[CountRow]) -> DrainedCounts:
    return DrainedCounts([], rows, [])


def now_s(engine: sa.Engine) -> int:
    """The database's clock; a window's end is kept away, so that a story happens within one window."""
    with engine.connect() as db:
        return int(db.execute(sa.select(NowMs())).scalar_one()) // 1000


def until(policy: Quota, at_s: int) -> datetime:
    return datetime.fromtimestamp(window_at(policy.window, at_s).until_s, UTC)


def locked(engine: sa.Engine) -> dict[tuple[str, str], str]:
    """(key, policy) of every lock, with its sentence."""
    with engine.connect() as db:
        return {(row.key, row.policy): row.detail for row in db.execute(sa.select(locks))}


def used(engine: sa.Engine) -> dict[tuple[str, str, int], int]:
    """Period, key and start of the window of every total, and its value."""
    with engine.connect() as db:
        return {(row.period, row.key, row.window_s): row.used for row in db.execute(sa.select(totals))}


def told(engine: sa.Engine) -> list[tuple[int, str, str]]:
    """What the feed tells, in its order: version, op, key."""
    statement = sa.select(lock_changes.c["version", "op", "key"])
    with engine.connect() as db:
        rows = db.execute(statement.order_by(lock_changes.c.version, lock_changes.c.number))
        return [(row.version, row.op, row.key) for row in rows]


def at_version(engine: sa.Engine) -> int:
    with engine.connect() as db:
        return int(db.execute(sa.select(feed.c.version)).scalar_one())


def together(*acts: Callable[[], object]) -> list[BaseException | object]:
    """What the acts return or raise, each begun in a thread of its own when all are ready."""
    barrier = threading.Barrier(len(acts))
    answers: list[BaseException | object] = [None] * len(acts)

    def perform(number: int, act: Callable[[], object]) -> None:
        barrier.wait()
        try:
            answers[number] = act()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            answers[number] = error

    threads = [threading.Thread(target=perform, args=each) for each in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def wait_for_waiters(engine: sa.Engine, number: int) -> None:
    """Returns when so many of this database's connections wait for a lock."""
    statement = sa.text(
        "select count(*) from pg_stat_activity"
        " where wait_event_type = 'Lock' and datname = current_database()"
    )
    pause = threading.Event()
    for _ in range(500):
        with engine.connect() as db:
            if db.execute(statement).scalar_one() >= number:
                return
        pause.wait(0.01)
    raise AssertionError("nobody waits")
