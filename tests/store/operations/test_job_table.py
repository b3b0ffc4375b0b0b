"""The table of jobs: an entry is all that a job needs; and the jobs of the warden, of two analyzers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from analyzer.build import job_scheduler
from analyzer.config.settings import load
from analyzer.faces.cli import app
from analyzer.faces.signals.health import Health
from analyzer.faces.signals.metrics import Measurements, Metrics
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import NowMs, writing
from analyzer.kernel.database.named_leases import Lease
from analyzer.kernel.errors import StoreAway
from analyzer.kernel.jobs import job_runs
from analyzer.kernel.jobs.job_runs import job_history, job_outcomes
from analyzer.kernel.tables.schema import leases
from analyzer.maintenance import job_table
from analyzer.maintenance.job_runner import RunEnd
from analyzer.maintenance.job_table import LOCKS, UPKEEP, JobContext, JobEntry, Lane, Work, new_jobs
from gatekeeper.model import Change, Clear, Lock, Set
from tests.store.flushing import publish
from tests.support.job_runners import JobLoop, new_runner
from tests.support.waiting import wait_until

# A new entry of the table


@dataclass
class FakeWork:
    """Does nothing, or fails as a test says."""

    calls: int = 0
    error: str = ""
    seen: list[JobContext] = field(default_factory=list)

    def __call__(self, context: JobContext) -> Work:
        self.seen.append(context)
        return Work(self._step)

    def _step(self) -> int:
        self.calls += 1
        if self.error:
            raise StoreAway(self.error)
        return self.calls % 2  # one row in each run


@pytest.fixture(params=[UPKEEP, LOCKS], ids=["upkeep", "locks"])
def lane(request: pytest.FixtureRequest) -> Lane:
    lane: Lane = request.param
    return lane


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, lane: Lane) -> FakeWork:
    """The work of a job that is an entry of the table, and known nowhere else."""
    work = FakeWork()
    monkeypatch.setattr(job_table, "JOBS", (*job_table.JOBS, JobEntry("count-stars", 1, work, lane)))
    return work


@pytest.fixture
def configuration(migrated_url: str, tmp_path: Path) -> Path:
    file = tmp_path / "gatelock.toml"
    file.write_text(f'[database]\nurl = "{migrated_url}"\n')
    return file


def gatelock(configuration: Path, *arguments: str, exit_code: int = 0) -> list[dict[str, object]]:
    result = CliRunner().invoke(app, [*arguments, "--config", str(configuration), "--json"])
    assert result.exit_code == exit_code, result.output
    return [json.loads(line) for line in result.output.splitlines()]


def listed(configuration: Path, exit_code: int = 0) -> dict[str, object]:
    jobs = gatelock(configuration, "upkeep", "jobs", "list", exit_code=exit_code)
    [job] = [job for job in jobs if job["job"] == "count-stars"]
    return job


def failing_jobs(health: Health) -> str:
    measurements = Measurements({}, None, None, (), None, None, failing_jobs=health.failing_jobs)
    text = health.metrics.exposition(measurements, "")[0].decode()
    return "\n".join(line for line in text.splitlines() if line.startswith("gatelock_failing_job{"))


def test_an_entry_is_scheduled_leased_run_and_listed_and_failing_when_it_fails(
    fake: FakeWork, lane: Lane, configuration: Path, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert listed(configuration)["last"] is None
    # The other jobs of the table have work to do on this database, and are not the subject here.
    monkeypatch.setattr(job_table, "JOBS", job_table.JOBS[-1:])
    # On a machine under load a step may come after more than five seconds.
    monkeypatch.setattr(job_runs, "SHARED", Lease(25_000, is_shared=True))
    health, stopping = Health(Metrics(version("gatelock")), lambda: 0.0), threading.Event()
    scheduler = job_scheduler(load(configuration), health)
    scheduler.start(stopping)
    wait_until(lambda: fake.calls >= 4, 60.0)
    job = listed(configuration)
    assert job["schedule"] == "every second"
    if lane == LOCKS:
        assert (job["holder"], job["last"]["outcome"]) == (fake.seen[-1].owner, "running")  # type: ignore[index]
        other = configuration.with_name("other.toml")
        other.write_text(configuration.read_text() + '[analyzer]\nname = "other"\n')
        result = CliRunner().invoke(app, ["upkeep", "jobs", "run", "count-stars", "--config", str(other)])
        assert (result.exit_code, "runs count-stars at the moment" in result.output) == (1, True)
    fake.error = "canceling statement"
    wait_until(lambda: "count-stars" in health.failing_jobs, 60.0)
    assert 'name="count-stars"' in failing_jobs(health)
    wait_until(lambda: listed_outcome(engine) == "failed", 60.0)
    scheduler.stop(30.0)
    job = listed(configuration, exit_code=1)
    assert job["last"]["error"] == "canceling statement"  # type: ignore[index]
    [failure] = [outcome for outcome in job_outcomes(engine) if outcome.name == "count-stars"]
    assert failure.failing_s is not None
    fake.error = ""
    [end] = gatelock(configuration, "upkeep", "jobs", "run", "count-stars")
    assert end["outcome"] == "done"
    [outcome] = [outcome for outcome in job_outcomes(engine) if outcome.name == "count-stars"]
    assert outcome.failing_s is None
    assert gatelock(configuration, "upkeep", "jobs", "list", "count-stars")[0]["outcome"] == "done"


def listed_outcome(engine: sa.Engine) -> str:
    """Returns the outcome of the last run that has ended, "none yet" before."""
    runs = job_history(engine, "count-stars", 0)
    return next((run.outcome for run in runs if run.outcome != "running"), "none yet")


def test_the_names_of_jobs_are_different(engine: sa.Engine) -> None:
    context = JobContext(engine, str, alerts=lambda _engine: lambda: 0)
    names = [job.name for lane in job_table.LANES for job in new_jobs(context, lane)]
    assert sorted(names) == sorted({entry.name for entry in job_table.JOBS})


def test_an_analyzer_without_destinations_leaves_alerts_to_the_others(engine: sa.Engine) -> None:
    assert new_jobs(JobContext(engine, str), job_table.ALERTS) == []


# The jobs of the warden


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
) -> tuple[JobLoop, JobLoop]:
    first, second = (
        JobLoop(
            new_runner(
                new_jobs(
                    JobContext(engine, marks, judged=lambda judged, _: ended.extend(judged.changes)), LOCKS
                ),
                engine,
                lambda: clock[0],
                owner=owner,
            )
        )
        for owner in ("here", "there")
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
    store: SqlStore, wardens: tuple[JobLoop, JobLoop], clock: list[float], ended: list[Change]
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
    store: SqlStore, wardens: tuple[JobLoop, JobLoop], clock: list[float], ended: list[Change]
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
    wardens: tuple[JobLoop, JobLoop],
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
    second.stop()
    change = publish_an_ended_lock(store)
    clock[0] = 2.0
    first.run_once()  # its runs are lost
    clock[0] = 4.0
    first.run_once()
    assert ended == [change] * 2


def test_each_job_of_the_warden_reports_what_it_judged_under_its_name(
    engine: sa.Engine, marks: Callable[[], str]
) -> None:
    reported: list[str] = []
    jobs = new_jobs(JobContext(engine, marks, judged=lambda _, name: reported.append(name)), LOCKS)
    runner = new_runner(jobs, engine, lambda: 0.0)
    ends = [runner.run(job, lambda _: False, is_asked=True) for job in jobs]
    assert ends == [RunEnd("done", None)] * len(jobs)
    assert reported == [job.name for job in jobs]
    assert {outcome.name for outcome in job_outcomes(engine)} == set(reported)
