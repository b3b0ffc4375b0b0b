"""Scheduled jobs on a database: leases, moments that are done once, catching up, the history."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from random import Random

import pytest
import sqlalchemy as sa

from analyzer.kernel.database.engine import NowMs, writing
from analyzer.kernel.errors import StoreAway
from analyzer.kernel.jobs.job_runs import (
    LEASE_MS,
    PRECEDENCE_MS,
    SHARED_LEASE_MS,
    SqlJobRuns,
    job_history,
    job_outcomes,
    job_states,
)
from analyzer.kernel.jobs.job_schedules import BegunRun, NotBegun, Schedule
from analyzer.kernel.tables.job_tables import job_runs, leases
from analyzer.maintenance.failing_jobs import FailingJobs
from analyzer.maintenance.job_runner import KEEP_EVERY_S, Job, JobRunner, RunEnd, RunInProgress
from tests.support.job_runners import JobLoop, SeenJobs, new_runner

NAME, HOUR_S = "roll-up", 3_600
HOURLY = Schedule(HOUR_S)


@dataclass
class Process:
    """An analyzer with one job, whose steps return what a test says, and which a test may kill."""

    engine: sa.Engine
    name: str
    steps: list[int | Exception] = field(default_factory=list)
    calls: int = 0
    uptime_s: float = 0.0
    seen: SeenJobs = field(default_factory=SeenJobs)
    elsewhere: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        failing = FailingJobs(self.seen, Random(7))
        self.job = Job(NAME, self._step, HOURLY, done_elsewhere=lambda: self.elsewhere.append(NAME))
        runs = SqlJobRuns(self.engine, self.name)
        self.runs = JobRunner([self.job], runs, failing, lambda: self.uptime_s)

    def _step(self) -> int:
        self.calls += 1
        found = self.steps.pop(0) if self.steps else 0
        if isinstance(found, Exception):
            raise found
        return found

    def run(self, *, is_asked: bool = False) -> RunEnd:
        return self.runs.run(self.job, lambda _: False, is_asked=is_asked)


@pytest.fixture
def one(engine: sa.Engine) -> Process:
    return Process(engine, "one:1")


@pytest.fixture
def other(engine: sa.Engine) -> Process:
    return Process(engine, "other:2")


def outcomes(engine: sa.Engine) -> list[tuple[str, str, int]]:
    """Returns the process, the outcome and the rows of each run, the first one first."""
    return [(run.owner, run.outcome, run.rows) for run in reversed(list(job_history(engine, NAME, 0)))]


def pass_ms(engine: sa.Engine, ms: int) -> None:
    """Has the stored runs and leases be older."""
    with writing(engine) as db:
        for column in (job_runs.c.scheduled_ms, job_runs.c.began_ms, leases.c.until_ms):
            db.execute(sa.update(column.table).values({column: column - ms}))


def test_a_moment_is_done_once_by_one_of_two_analyzers(
    one: Process, other: Process, engine: sa.Engine
) -> None:
    one.steps = [5, 2]
    assert one.run() == RunEnd("done", None, 7)
    for process in (one, other):
        end = process.run()
        assert end.outcome is None
        assert end.wait_s is not None
        assert 0 < end.wait_s <= HOUR_S
    assert (one.calls, other.calls) == (3, 0)
    assert (one.elsewhere, other.elsewhere) == ([], [NAME]), "only the other one learns it"
    assert outcomes(engine) == [("one:1", "done", 7)]


def test_while_one_runs_it_the_other_learns_who(one: Process, other: Process, engine: sa.Engine) -> None:
    run = one.runs.begin(one.job)
    assert isinstance(run, RunInProgress)
    for is_asked in (False, True):
        end = other.run(is_asked=is_asked)
        assert (end.outcome, end.holder, other.calls) == (None, "one:1", 0)
    assert job_states(engine, {NAME: HOURLY})[1][NAME].holder == "one:1"
    assert one.runs.stop(run).outcome == "stopped"
    assert job_states(engine, {NAME: HOURLY})[1][NAME].holder == ""
    assert other.run().outcome == "done", "at once: the moment is not done"


def test_a_run_whose_process_was_killed_is_begun_again_when_its_lease_ends(
    one: Process, other: Process, engine: sa.Engine
) -> None:
    one.steps = [5]
    run = one.runs.begin(one.job)
    assert isinstance(run, RunInProgress)
    one.runs.step(run)  # and is killed in the middle
    pass_ms(engine, LEASE_MS - 5_000)
    assert other.run().holder == "one:1"
    pass_ms(engine, 6_000)
    other.steps = [3]
    assert other.run() == RunEnd("done", None, 3)
    assert outcomes(engine) == [("one:1", "lost", 0), ("other:2", "done", 3)]
    assert one.runs.step(run) == RunEnd("lost", None, 5), "it was frozen, not killed"
    assert outcomes(engine) == [("one:1", "lost", 0), ("other:2", "done", 3)]


def test_the_lease_of_a_long_run_is_extended(one: Process, other: Process, engine: sa.Engine) -> None:
    one.steps = [5, 6, 7]
    run = one.runs.begin(one.job)
    assert isinstance(run, RunInProgress)
    one.runs.step(run)
    for extend in (one.runs.keep_leases, lambda: one.runs.step(run)):
        pass_ms(engine, LEASE_MS - 1_000)
        one.uptime_s += KEEP_EVERY_S
        extend()
        pass_ms(engine, 2_000)
        assert other.run().holder == "one:1"
    assert outcomes(engine) == [("one:1", "running", 5)]


def test_missed_moments_are_made_up_for_by_one_run(one: Process, engine: sa.Engine) -> None:
    one.steps = [1, 0, 2]
    one.run()
    pass_ms(engine, 5 * HOUR_S * 1000)
    one.run()
    assert one.run().outcome is None
    assert outcomes(engine) == [("one:1", "done", 1), ("one:1", "done", 2)]


def test_the_analyzer_of_the_last_run_has_precedence(one: Process, other: Process, engine: sa.Engine) -> None:
    """Jobs that remember something stay where they are, also when the clocks of the machines differ."""
    one.run()
    [run] = job_history(engine, NAME, 0)
    late_ms = run.scheduled_ms
    with engine.connect() as db:
        now_ms = db.execute(sa.select(NowMs())).scalar_one()
    pass_ms(engine, HOUR_S * 1000)
    end = other.run()
    if now_ms - late_ms < PRECEDENCE_MS:  # in the first seconds of an hour
        assert end.outcome is None
    else:
        assert end.outcome == "done", "the last analyzer is late: perhaps it is gone"


def test_a_job_that_fails_is_repeated_by_any_analyzer_until_it_works(
    one: Process, other: Process, engine: sa.Engine
) -> None:
    one.steps = [4, StoreAway("canceling statement")]
    failed = one.run()
    assert (failed.outcome, failed.error) == ("failed", "canceling statement")
    assert failed.wait_s is not None
    assert failed.wait_s <= 1.0
    [state] = job_outcomes(engine)
    assert (state.name, state.error, state.owner) == (NAME, "canceling statement", "one:1")
    assert state.failing_s is not None
    assert other.run().outcome == "done"
    [state] = job_outcomes(engine)
    assert (state.failing_s, state.owner) == (None, "other:2")
    one.run()
    assert one.seen.seen == [(NAME, "canceling statement"), (NAME, "recovered")]
    assert outcomes(engine) == [("one:1", "failed", 4), ("other:2", "done", 0)]


def test_of_runs_that_found_nothing_the_last_one_is_kept(one: Process, engine: sa.Engine) -> None:
    one.steps = [0, 0, 3, 0, 0, 0]
    for _ in range(6):
        one.run()
        pass_ms(engine, HOUR_S * 1000)
    assert [rows for _, _, rows in outcomes(engine)] == [0, 3, 0]


def test_an_operator_runs_a_job_again(one: Process, other: Process, engine: sa.Engine) -> None:
    one.run()
    other.steps = [2]
    assert other.run(is_asked=True) == RunEnd("done", None, 2)
    assert one.run().outcome is None


def test_a_clock_that_was_ahead_keeps_no_job_from_running(one: Process, engine: sa.Engine) -> None:
    one.steps = [1, 0, 1]
    one.run()
    pass_ms(engine, -50 * HOUR_S * 1000)
    with writing(engine) as db:
        lease = {"name": f"job {NAME}", "holder": "other:2", "until_ms": NowMs() + 50 * HOUR_S * 1000}
        db.execute(sa.insert(leases).values(lease))
    assert one.run().outcome == "done"


def test_nothing_is_raised_while_the_database_is_away(one: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> BegunRun | NotBegun:
        raise StoreAway("no connection")

    monkeypatch.setattr(one.runs.runs, "begin", fail)
    assert one.run().outcome == "failed"
    assert one.seen.seen == [(NAME, "no connection")]


# Jobs that run each second, under one lease that is kept

EACH_SECOND = Schedule(1, shared_lease="warden")
SECOND_NAMES = ("end-locks", "activation")


@dataclass
class Warden:
    """An analyzer with two jobs that share a lease."""

    engine: sa.Engine
    name: str
    steps: dict[str, list[int | Exception]] = field(default_factory=dict)
    uptime_s: float = 0.0
    seen: SeenJobs = field(default_factory=SeenJobs)

    def __post_init__(self) -> None:
        jobs = [Job(name, partial(self._step, name), EACH_SECOND) for name in SECOND_NAMES]
        self.runner = new_runner(jobs, self.engine, lambda: self.uptime_s, self.seen, self.name)
        self.loop = JobLoop(self.runner)

    def _step(self, name: str) -> int:
        steps = self.steps.get(name, [])
        result = steps.pop(0) if steps else 0
        if isinstance(result, Exception):
            raise result
        return result

    def work(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.uptime_s += 1.0
            self.loop.run_once()


@pytest.fixture
def warden(engine: sa.Engine) -> Warden:
    return Warden(engine, "one:1")


@pytest.fixture
def standby(engine: sa.Engine) -> Warden:
    return Warden(engine, "other:2")


def runs_of_all(engine: sa.Engine) -> list[tuple[str, str, str, int]]:
    runs = sorted(job_history(engine, None, 0), key=lambda run: (run.job, run.number))
    return [(run.job, run.owner, run.outcome, run.rows) for run in runs]


def test_one_run_continues_over_many_moments_and_only_its_analyzer_works(
    warden: Warden, standby: Warden, engine: sa.Engine
) -> None:
    warden.steps = {"end-locks": [0, 2, 0, 3]}
    standby.steps = {"end-locks": [9]}
    for _ in range(70):
        warden.work(1.0)
        standby.work(1.0)
    assert runs_of_all(engine) == [
        ("activation", "one:1", "running", 0),
        ("end-locks", "one:1", "running", 5),
    ]
    states = job_states(engine, dict.fromkeys(SECOND_NAMES, EACH_SECOND))[1]
    assert {name: state.holder for name, state in states.items()} == dict.fromkeys(SECOND_NAMES, "one:1")
    assert [outcome.done_s is not None for outcome in job_outcomes(engine)] == [True, True]


def test_a_warden_that_stops_is_followed_at_once_and_one_that_dies_when_its_lease_has_ended(
    warden: Warden, standby: Warden, engine: sa.Engine
) -> None:
    warden.work(2.0)
    standby.work(1.0)
    warden.loop.stop()
    standby.work(2.0)
    assert runs_of_all(engine) == [
        ("activation", "one:1", "stopped", 0),
        ("activation", "other:2", "running", 0),
        ("end-locks", "one:1", "stopped", 0),
        ("end-locks", "other:2", "running", 0),
    ]
    pass_ms(engine, SHARED_LEASE_MS - 2_000)  # it has died
    warden.work(2.0)
    assert {owner for _, owner, outcome, _ in runs_of_all(engine) if outcome == "running"} == {"other:2"}
    pass_ms(engine, 3_000)
    warden.work(2.0)
    assert [run[1:3] for run in runs_of_all(engine)][-2:] == [("other:2", "lost"), ("one:1", "running")]
    standby.work(2.0)  # it was frozen
    assert [run[1:3] for run in runs_of_all(engine)][-2:] == [("other:2", "lost"), ("one:1", "running")]


def test_a_job_that_fails_ends_its_run_and_not_the_lease_of_the_others(
    warden: Warden, standby: Warden, engine: sa.Engine
) -> None:
    warden.steps = {"end-locks": [4, StoreAway("canceling statement")]}
    for _ in range(2):
        warden.work(1.0)
        standby.work(1.0)
    assert runs_of_all(engine) == [
        ("activation", "one:1", "running", 0),
        ("end-locks", "one:1", "failed", 4),
    ]
    _, failing = job_outcomes(engine)
    assert (failing.error, failing.failing_s is not None) == ("canceling statement", True)
    warden.work(2.0)
    assert runs_of_all(engine)[-1] == ("end-locks", "one:1", "running", 0)
    assert [outcome.failing_s for outcome in job_outcomes(engine)] == [None, None], "stored at once"
    assert warden.seen.seen == [("end-locks", "canceling statement"), ("end-locks", "recovered")]


def test_a_process_that_takes_or_keeps_a_lease_from_the_future_learns_that_the_clock_was_ahead(
    engine: sa.Engine,
) -> None:
    noticed: list[str] = []
    runs = SqlJobRuns(engine, "one:1", lambda _: noticed.append("ahead"))
    run = runs.begin("end-locks", EACH_SECOND)
    assert isinstance(run, BegunRun)
    assert noticed == []
    pass_ms(engine, -3_600_000)
    assert runs.keep(run)
    assert runs.keep(run)
    assert noticed == ["ahead"], "once"
    pass_ms(engine, -3_600_000)
    other = SqlJobRuns(engine, "other:2", lambda _: noticed.append("elsewhere"))
    assert isinstance(other.begin("end-locks", EACH_SECOND), BegunRun)
    assert noticed == ["ahead", "elsewhere"]
    assert not runs.keep(run)
