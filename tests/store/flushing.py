"""Flushes, plans and the contents of tables, for the tests of the store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from analyzer.flush.sql_store import SqlFlush, SqlStore
from analyzer.judging.locks import lock_feed
from analyzer.kernel.database.engine import NowMs
from analyzer.kernel.model import CountRow, DrainedCounts, Partition
from analyzer.kernel.tables.schema import feed, lock_changes, locks
from analyzer.plan.meters import MINUTE_S, bucket_start_s
from analyzer.plan.plan import Plan, make_plan
from analyzer.plan.policies import Quota
from analyzer.plan.windows import Calendar, CalendarPeriod, window_at
from gatekeeper.model import Change
from tests.support.stored_counts import stored_totals, tables_of
from tests.support.waiting import wait_until

PART = Partition("cluster", "topic-id", 0, "log", "access-log")
ACME, ANN = "api_key:acme", "user:ann"


def quota(
    limit: int,
    per: CalendarPeriod = "month",
    name: str = "daily",
    zone: str = "UTC",
    grouping: str = "caller",
    **rest: Any,
) -> Quota:
    """Returns a limit; for a month unless `per` is given, because a test must not fail at midnight."""
    return Quota(name, limit, Calendar(per, zone), per=grouping, **rest)


def plan(*policies: Quota) -> Plan:
    return make_plan([], [], policies)


def a_row(value: int, at_s: int, key: str = ACME, *, denied: int = 0, resource: str = "") -> CountRow:
    grouping = "caller+resource" if resource else "caller"
    return CountRow(
        grouping, key, resource, "requests", MINUTE_S, bucket_start_s(at_s, MINUTE_S), value, denied
    )


def a_total(**columns: object) -> dict[str, object]:
    """Returns a row of the table `totals` with these columns."""
    row: dict[str, object] = {"sum": 1, "resource": "", "window_s": 0, "used": 1, "next": 5, "plan": 1}
    return row | columns


def flush(
    store: SqlStore, by_plan: Plan, rows: Iterable[CountRow], version: int | None = None
) -> Sequence[Change]:
    """Flushes `rows`; returns the changes of locks."""
    version = store.active_plan()[0] if version is None else version
    with store.transaction() as tx:
        now = tx.check_plan(by_plan, version)
        return list(tx.apply(by_plan, version, counts(sorted(rows)), now).changes)


def publish(tx: SqlFlush, changes: Sequence[Change]) -> None:
    """Publishes changes of locks without a judgement, in a transaction of the store."""
    lock_feed.publish(tx._db, changes, tx._random_mark())


def counts(rows: Sequence[CountRow]) -> DrainedCounts:
    return DrainedCounts([], tables_of(rows), [])


def now_s(engine: sa.Engine) -> int:
    """Returns the database's time in seconds."""
    with engine.connect() as db:
        return int(db.execute(sa.select(NowMs())).scalar_one()) // 1000


def until(policy: Quota, at_s: int) -> datetime:
    return datetime.fromtimestamp(window_at(policy.window, at_s).until_s, UTC)


def locked(engine: sa.Engine) -> dict[tuple[str, str], str]:
    """Returns the detail of every lock by (key, policy)."""
    with engine.connect() as db:
        return {(row.key, row.policy): row.detail for row in db.execute(sa.select(locks))}


def used(engine: sa.Engine) -> dict[tuple[str, str, int], int]:
    """Returns the value of every total by (period, key, start of its window)."""
    with engine.connect() as db:
        return {
            (name.split(" ", 2)[2], key, window_s): value
            for (name, key, _, window_s), value in stored_totals(db).items()
        }


def feed_changes(engine: sa.Engine) -> list[tuple[int, str, str]]:
    """Returns (version, op, key) of the feed's changes, in their order."""
    statement = sa.select(lock_changes.c["version", "op", "key"])
    with engine.connect() as db:
        rows = db.execute(statement.order_by(lock_changes.c.version, lock_changes.c.number))
        return [(row.version, row.op, row.key) for row in rows]


def at_version(engine: sa.Engine) -> int:
    with engine.connect() as db:
        return int(db.execute(sa.select(feed.c.version)).scalar_one())


def run_together(*acts: Callable[[], object]) -> list[Any]:
    """Runs each act in a thread, all at the same time; returns what they return or raise."""
    barrier = threading.Barrier(len(acts))
    answers: list[Any] = [None] * len(acts)

    def perform(number: int, act: Callable[[], object]) -> None:
        barrier.wait()
        try:
            answers[number] = act()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            answers[number] = error

    threads = [threading.Thread(target=perform, args=numbered) for numbered in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def wait_for_waiters(engine: sa.Engine, number: int) -> None:
    """Returns when `number` connections of this database wait for a lock."""
    statement = sa.text(
        "select count(*) from pg_stat_activity"
        " where wait_event_type = 'Lock' and datname = current_database()"
    )

    def are_waiting() -> bool:
        with engine.connect() as db:
            return bool(db.execute(statement).scalar_one() >= number)

    wait_until(are_waiting)
