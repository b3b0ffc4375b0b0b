"""The jobs of the warden: one analyzer at a time does the work, and another one continues when it dies."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import NowMs, writing
from analyzer.kernel.errors import StoreAway
from analyzer.kernel.jobs.job_outcomes import job_outcomes
from analyzer.kernel.tables.schema import leases
from analyzer.maintenance.job_runner import Job, JobRunner
from analyzer.maintenance.upkeep import SqlUpkeep
from analyzer.maintenance.upkeep_jobs import lock_jobs
from gatekeeper.model import Change, Clear, Lock, Set
from tests.store.flushing import publish
from tests.support.job_runners import runner_of


@pytest.fixture
def clock() -> list[float]:
    """The uptime, moved by the test."""
    return [0.0]


@pytest.fixture
def ended() -> list[Change]:
    """The changes that were reported."""
    return []


@pytest.fixture
def wardens(
    engine: sa.Engine, marks: Callable[[], str], clock: list[float], ended: list[Change]
) -> tuple[JobRunner, JobRunner]:
    first, second = (
        runner_of(
            lock_jobs(upkeep, lambda judged, _: ended.extend(judged.changes)),
            upkeep,
            engine,
            lambda: clock[0],
        )
        for upkeep in (SqlUpkeep(engine, owner, marks) for owner in ("here", "there"))
    )
    return first, second


def an_hour_long_lock(began: datetime) -> Lock:
    return Lock("caller", "user:ann", "hourly", began, began + timedelta(hours=1))


def publish_an_ended_lock(store: SqlStore) -> Clear:
    """Returns the change that ends it."""
    lock = an_hour_long_lock(datetime(2026, 11, 21, tzinfo=UTC) - timedelta(days=1))
    with store.transaction() as tx:
        publish(tx, [Set(lock)])
    return Clear(lock.at)


def test_of_two_analyzers_one_is_the_warden(
    store: SqlStore, wardens: tuple[JobRunner, JobRunner], clock: list[float], ended: list[Change]
) -> None:
    first, second = wardens
    first.run_once()
    change = publish_an_ended_lock(store)
    clock[0] = 1.0
    second.run_once()
    assert ended == []
    first.run_once()
    assert ended == [change]


def test_the_warden_works_once_a_second(
    store: SqlStore, wardens: tuple[JobRunner, JobRunner], clock: list[float], ended: list[Change]
) -> None:
    first, _ = wardens
    assert first.run_once() == 1.0
    change = publish_an_ended_lock(store)
    clock[0] = 0.75
    assert first.run_once() == 0.25
    assert ended == []
    clock[0] = 1.0
    first.run_once()
    assert ended == [change]


def test_another_analyzer_becomes_the_warden_when_the_first_one_dies_or_stops(
    store: SqlStore,
    engine: sa.Engine,
    wardens: tuple[JobRunner, JobRunner],
    clock: list[float],
    ended: list[Change],
) -> None:
    first, second = wardens
    first.run_once()
    with writing(engine) as db:  # as if the lease had expired
        db.execute(sa.update(leases).values(until_ms=NowMs() - 1))
    change = publish_an_ended_lock(store)
    second.run_once()
    assert ended == [change]
    second.close()
    change = publish_an_ended_lock(store)
    clock[0] = 2.0
    first.run_once()
    assert ended == [change] * 2


def test_the_outcomes_of_jobs_are_stored(
    engine: sa.Engine, wardens: tuple[JobRunner, JobRunner], clock: list[float]
) -> None:
    first, _ = wardens
    first.run_once()
    assert {(found.name, found.failing_s, found.error) for found in job_outcomes(engine)} == {
        (job.name, None, "") for job in first.jobs
    }

    def fail() -> int:
        raise StoreAway("canceling statement due to statement timeout")

    first.jobs = [Job("end-locks", fail)]
    clock[0] = 100.0
    first.run_once()
    outcome = {found.name: found for found in job_outcomes(engine)}["end-locks"]
    assert outcome.failing_s == outcome.failed_s
    assert (outcome.error, outcome.owner) == ("canceling statement due to statement timeout", "here")
    assert outcome.done_s is not None
