"""The runner of jobs that keep a lease between their moments, and failures, on a manual clock."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from analyzer.kernel.errors import StoreAway
from analyzer.kernel.jobs.job_schedules import BegunRun, NotBegun, RunOutcome, Schedule
from analyzer.maintenance.failing_jobs import RETRY_MAX_S
from analyzer.maintenance.job_runner import REST_MIN_S, STORE_EVERY_S, Job
from gatekeeper.testing import ManualClock
from tests.support.job_runners import JobLoop, SeenJobs, new_runner

EACH_SECOND = Schedule(1, shared_lease="warden")


@dataclass
class MemoryRuns:
    """Implements `JobRuns`; with `away` it is unreachable."""

    is_ours: bool = True
    away: bool = False
    asked: int = 0  # for the lease, by runs that begin
    kept: int = 0
    stored: list[tuple[str, int | str]] = field(default_factory=list)  # rows so far, or the error
    released: bool = False

    def begin(self, job: str, schedule: Schedule, *, is_asked: bool = False) -> BegunRun | NotBegun:
        self._reach()
        self.asked += 1
        if not self.is_ours:
            return NotBegun(5.0, "another", is_elsewhere=True)
        return BegunRun(job, self.asked, 0, schedule.shared_lease)

    def keep(self, _run: BegunRun) -> bool:
        self._reach()
        self.kept += 1
        return self.is_ours

    def keep_and_store(self, run: BegunRun, rows: int, *, is_done: bool = False) -> bool:
        self._reach()
        self.stored.append((run.job, "done" if is_done else rows))
        return self.is_ours

    def end(
        self, run: BegunRun, outcome: RunOutcome, rows: int, error: str = "", *, keeps_lease: bool = False
    ) -> bool:
        self._reach()
        self.stored.append((run.job, error or outcome))
        self.released = not keeps_lease
        return self.is_ours

    def _reach(self) -> None:
        if self.away:
            raise StoreAway("the database is away")


@dataclass
class World:
    """A runner on a manual clock, with jobs whose steps a test decides."""

    clock: ManualClock = field(default_factory=ManualClock)
    store: MemoryRuns = field(default_factory=MemoryRuns)
    observer: SeenJobs = field(default_factory=SeenJobs)
    steps: list[str] = field(default_factory=list)

    def job(self, name: str, step: Callable[[], int] = lambda: 0, schedule: Schedule = EACH_SECOND) -> Job:
        def noted() -> int:
            self.steps.append(name)
            return step()

        return Job(name, noted, schedule)

    def loop(self, *jobs: Job) -> JobLoop:
        return JobLoop(new_runner(jobs, self.store, self.clock.uptime_s, self.observer))

    def run_for(self, loop: JobLoop, seconds: float) -> None:
        loop.run_for(seconds, self.clock.advance)


@pytest.fixture
def world() -> World:
    return World()


def failing(*errors: Exception | None) -> Callable[[], int]:
    """Returns a step that raises these errors in turn, and succeeds where there is none."""
    left: Iterator[Exception | None] = iter(errors)

    def step() -> int:
        if (error := next(left, None)) is not None:
            raise error
        return 0

    return step


def test_jobs_that_share_a_lease_keep_it_once_a_second_together(world: World) -> None:
    world.run_for(world.loop(world.job("end-locks"), world.job("judge-waiting")), 9.5)
    assert (world.steps.count("end-locks"), world.steps.count("judge-waiting")) == (10, 10)
    assert (world.store.asked, world.store.kept) == (2, 9)


def test_a_step_that_leaves_work_is_followed_by_a_rest_as_long_as_the_step(world: World) -> None:
    took_s = iter((3.0, 0.0))

    def step() -> int:
        seconds = next(took_s, None)
        if seconds is None:
            return 0
        world.clock.advance(seconds)
        return 10_000

    loop = world.loop(world.job("roll-up", step))
    pauses_s = []
    for _ in range(3):
        pauses_s.append(loop.run_once())
        world.clock.advance(pauses_s[-1])
    assert pauses_s == pytest.approx([3.0, REST_MIN_S, 1.0])


def test_without_the_lease_no_job_runs_and_one_of_them_asks_for_it(world: World) -> None:
    world.store.is_ours = False
    loop = world.loop(world.job("end-locks"), world.job("judge-waiting"))
    world.run_for(loop, 19.0)
    assert (world.steps, world.store.asked) == ([], 4)
    world.store.is_ours = True
    world.run_for(loop, 2.0)
    assert world.steps[:2] == ["end-locks", "judge-waiting"]


@pytest.mark.parametrize("error", [StoreAway("canceling statement"), ZeroDivisionError("a bug")])
@pytest.mark.parametrize("schedule", [EACH_SECOND, Schedule(60)])
def test_a_job_that_fails_is_tried_again_with_growing_pauses_and_stops_no_other(
    world: World, error: Exception, schedule: Schedule, caplog: pytest.LogCaptureFixture
) -> None:
    broken = world.job("broken", failing(*[error] * 1_000), schedule)
    world.run_for(world.loop(broken, world.job("sound")), 3_600.0)
    assert world.steps.count("sound") == 3_601
    # 1, 2, 4, ... 256, then 300 s, each with up to half of it taken off.
    assert 9 + 3_089 / RETRY_MAX_S <= world.steps.count("broken") <= 10 + 2 * 3_345 / RETRY_MAX_S
    lines = [line for line in caplog.records if line.levelno >= logging.WARNING]
    assert len(lines) == 1, "once for each outage"
    assert lines[0].getMessage().startswith("job broken failed: ")
    assert (lines[0].exc_info is not None) == isinstance(error, ZeroDivisionError), "a bug shows its place"


def test_failures_and_the_recovery_are_observed_and_stored(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    away = StoreAway("canceling statement")
    loop = world.loop(world.job("end-locks", failing(None, away, away, None, away)))
    world.run_for(loop, 10.0)
    failed, recovered = ("end-locks", "canceling statement"), ("end-locks", "recovered")
    assert world.observer.seen == [failed, failed, recovered, failed, recovered]
    done = ("end-locks", "done")
    assert world.store.stored == [done, failed, failed, done, failed, done]
    assert [line.getMessage() for line in caplog.records] == [
        "job end-locks failed: canceling statement; it is tried again, and counting continues",
        "job end-locks works again, after 2 failed attempts",
        "job end-locks failed: canceling statement; it is tried again, and counting continues",
        "job end-locks works again, after 1 failed attempts",
    ]


def test_a_run_that_works_is_stored_once_a_minute(world: World) -> None:
    world.run_for(world.loop(world.job("end-locks")), 3 * STORE_EVERY_S - 1.0)
    assert world.store.stored == [("end-locks", "done")] * 3


def test_jobs_survive_a_database_that_is_away(world: World) -> None:
    loop = world.loop(world.job("end-locks"))
    world.store.away = True
    world.run_for(loop, 60.0)
    assert (world.steps, world.store.stored) == ([], [])
    world.store.away = False
    world.run_for(loop, 60.0)
    assert world.store.stored == [("end-locks", "done")]
    assert world.observer.seen[-1] == ("end-locks", "recovered")


def test_an_analyzer_that_lost_the_lease_reports_no_failure_any_longer(world: World) -> None:
    loop = world.loop(world.job("end-locks", failing(*[StoreAway("canceling")] * 9)))
    loop.run_once()
    world.store.is_ours = False
    world.run_for(loop, 10.0)
    assert world.observer.seen[-1] == ("end-locks", "recovered")
    assert world.observer.seen.count(("end-locks", "recovered")) == 1


def test_the_last_run_that_ends_releases_the_lease(world: World) -> None:
    loop = world.loop(world.job("end-locks"), world.job("judge-waiting", failing(None, StoreAway("away"))))
    world.run_for(loop, 1.0)
    assert world.store.stored[-1] == ("judge-waiting", "away")
    assert not world.store.released, "the other one continues"
    loop.stop()
    assert world.store.stored[-1] == ("end-locks", "stopped")
    assert world.store.released


def test_asked_for_it_a_job_ends_when_nothing_is_left(world: World) -> None:
    left = [0, 4]
    loop = world.loop(world.job("end-locks", left.pop))
    loop.runner.finish(lambda _: False)
    assert world.store.stored[-1] == ("end-locks", "done")
    assert world.store.released
