"""One analyzer at a time works for all, and takes up the work of one that died."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from analyzer.core.counting.meters import DAY_S, REQUESTS
from analyzer.core.judging.plan import Plan
from analyzer.store.database.engine import NowMs, writing
from analyzer.store.database.schema import buckets, leases
from analyzer.store.operations import upkeep as module
from analyzer.store.operations.upkeep import SqlUpkeep
from analyzer.store.transaction.sql_store import SqlStore
from analyzer.warden import Warden
from gatekeeper.model import Clear, Lock, Set
from tests.store.flushing import a_row, flush, now_s, publish


@pytest.fixture
def clock() -> list[float]:
    """The uptime, moved by hand."""
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


def test_of_two_wardens_exactly_one_works(
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


def test_a_warden_looks_once_a_second(
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


def test_the_work_goes_on_elsewhere_when_its_holder_dies_or_stops(
    engine: sa.Engine, wardens: tuple[Warden, Warden], clock: list[float]
) -> None:
    first, second = wardens
    assert (first.run_once([REQUESTS]), second.run_once([REQUESTS])) == ([], ())
    with writing(engine) as db:  # as if five seconds had passed
        db.execute(sa.update(leases).values(until_ms=NowMs() - 1))
    clock[0] = 1.0
    assert (second.run_once([REQUESTS]), first.run_once([REQUESTS])) == ([], ())
    second.close()
    clock[0] = 2.0
    assert (first.run_once([REQUESTS]), second.run_once([REQUESTS])) == ([], ())


def test_what_is_left_to_tidy_is_taken_up_in_the_next_second(
    store: SqlStore,
    engine: sa.Engine,
    wardens: tuple[Warden, Warden],
    clock: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Waiting a minute each time, the tables of a busy installation would grow for ever."""
    monkeypatch.setattr(module, "DELETED_MAX", 2)
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
    assert first.tidied_s == 3.0
