"""The warden: one analyzer at a time does the work, and another one continues when it dies."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from analyzer.core.counting.meters import DAY_S, REQUESTS
from analyzer.core.judging.plan import Plan
from analyzer.store.database.engine import NowMs, writing
from analyzer.store.database.schema import buckets, leases
from analyzer.store.operations import roll_up
from analyzer.store.operations.upkeep import SqlUpkeep
from analyzer.store.transaction.sql_store import SqlStore
from analyzer.warden import Warden
from gatekeeper.model import Clear, Lock, Set
from tests.store.flushing import a_row, flush, now_s, publish


@pytest.fixture
def clock() -> list[float]:
    """The uptime, moved by the test."""
    return [0.0]


@pytest.fixture
def wardens(engine: sa.Engine, marks: Callable[[], str], clock: list[float]) -> tuple[Warden, Warden]:
    first, second = (
        Warden(
            SqlUpkeep(engine, owner, marks),
            lambda: clock[0],
            minutes_kept_s=2 * DAY_S,
            quarters_kept_s=40 * DAY_S,
        )
        for owner in ("here", "there")
    )
    return first, second


def an_hour_long_lock(began: datetime) -> Lock:
    return Lock("caller", "user:ann", "hourly", began, began + timedelta(hours=1))


def test_of_two_analyzers_one_is_the_warden(
    store: SqlStore, wardens: tuple[Warden, Warden], clock: list[float]
) -> None:
    first, second = wardens
    lock = an_hour_long_lock(datetime(2026, 11, 21, tzinfo=UTC) - timedelta(days=1))
    assert first.run_once([REQUESTS]) == []
    with store.transaction() as tx:
        publish(tx, [Set(lock)])
    clock[0] = 1.0
    assert second.run_once([REQUESTS]) == ()
    assert first.run_once([REQUESTS]) == [Clear(lock.at)]


def test_the_warden_works_once_a_second(
    store: SqlStore, wardens: tuple[Warden, Warden], clock: list[float]
) -> None:
    first, _ = wardens
    lock = an_hour_long_lock(datetime(2026, 11, 21, tzinfo=UTC) - timedelta(days=1))
    first.run_once([REQUESTS])
    with store.transaction() as tx:
        publish(tx, [Set(lock)])
    clock[0] = 0.9
    assert first.run_once([REQUESTS]) == ()
    clock[0] = 1.0
    assert first.run_once([REQUESTS]) == [Clear(lock.at)]


def test_another_analyzer_becomes_the_warden_when_the_first_one_dies_or_stops(
    engine: sa.Engine, wardens: tuple[Warden, Warden], clock: list[float]
) -> None:
    first, second = wardens
    assert (first.run_once([REQUESTS]), second.run_once([REQUESTS])) == ([], ())
    with writing(engine) as db:  # as if the lease had expired
        db.execute(sa.update(leases).values(until_ms=NowMs() - 1))
    clock[0] = 1.0
    assert (second.run_once([REQUESTS]), first.run_once([REQUESTS])) == ([], ())
    second.close()
    clock[0] = 2.0
    assert (first.run_once([REQUESTS]), second.run_once([REQUESTS])) == ([], ())


def test_a_cleanup_that_is_not_finished_continues_in_the_next_second(
    store: SqlStore,
    engine: sa.Engine,
    wardens: tuple[Warden, Warden],
    clock: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a minute between bounded steps, the tables of a busy installation would grow forever."""
    monkeypatch.setattr(roll_up, "ROWS_AT_ONCE", 2)
    store.activate(Plan())
    old_s = now_s(engine) // DAY_S * DAY_S - 50 * DAY_S
    flush(store, Plan(), [a_row(1, old_s + 60 * n) for n in range(5)])
    first, _ = wardens
    left = []
    for clock[0] in (0.0, 1.0, 2.0, 3.0):
        first.run_once([REQUESTS])
        with engine.connect() as db:
            left.append(list(db.scalars(sa.select(buckets.c.width_s).order_by(buckets.c.width_s))))
    assert left == [[60, 60, 60, 86_400], [60, 86_400], [86_400], [86_400]]
    assert first.last_cleanup_s == 3.0
