"""The runner of jobs: intervals, the lease, failures, and the thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from analyzer.kernel.errors import StoreAway
from analyzer.maintenance.failing_jobs import RETRY_MAX_S
from analyzer.maintenance.job_runner import (
    LEASE_RETRY_S,
    RECORD_EVERY_S,
    REST_MIN_S,
    Job,
    JobRunner,
    JobThread,
)
from gatekeeper.testing import ManualClock
from tests.support.job_runners import SeenJobs, runner_of
from tests.support.waiting import wait_until


@dataclass
class MemoryLeases:
    """Implements `Leases` and `JobOutcomes`; with `away` it is unreachable."""

    is_ours: bool = True
    away: bool = False
    held: int = 0
    released: bool = False
    outcomes: list[tuple[str, str]] = field(default_factory=list)

    def hold(self, _name: str) -> bool:
        self._reach()
        self.held += 1
        return self.is_ours

    def release(self, _name: str) -> None:
        self._reach()
        self.released = True

    def record_success(self, job: str, *, is_done: bool) -> None:
        self._reach()
        self.outcomes.append((job, "done" if is_done else "more"))

    def record_failure(self, job: str, error: str) -> None:
        self._reach()
        self.outcomes.append((job, error))

    def _reach(self) -> None:
        if self.away:
            raise StoreAway("the database is away")


@dataclass
class World:
    """A runner on a manual clock, with jobs whose steps a test decides."""

    clock: ManualClock = field(default_factory=ManualClock)
    store: MemoryLeases = field(default_factory=MemoryLeases)
    observer: SeenJobs = field(default_factory=SeenJobs)
    steps: list[str] = field(default_factory=list)

    def job(self, name: str, step: Callable[[], int] = lambda: 0, interval_s: float = 60.0) -> Job:
        def noted() -> int:
            self.steps.append(name)
            return step()

        return Job(name, noted, interval_s)

    def runner(self, *jobs: Job) -> JobRunner:
        return runner_of(jobs, self.store, self.store, self.clock.uptime_s, self.observer)

    def run_for(self, runner: JobRunner, seconds: float) -> None:
        """Runs the runner as its thread would, for `seconds`."""
        end_s = self.clock.uptime_s() + seconds
        while (pause_s := runner.run_once()) + self.clock.uptime_s() <= end_s:
            self.clock.advance(max(pause_s, 1e-9))  # the clock has whole nanoseconds
        self.clock.advance(max(0.0, end_s - self.clock.uptime_s()))


@pytest.fixture
def world() -> World:
    return World()


def failing(*errors: BaseException | None) -> Callable[[], int]:
    """Returns a step that raises these errors in turn, and succeeds where there is none."""
    left: Iterator[BaseException | None] = iter(errors)

    def step() -> int:
        if (error := next(left, None)) is not None:
            raise error
        return 0

    return step


def test_each_job_has_its_own_interval(world: World) -> None:
    world.run_for(world.runner(world.job("often", interval_s=1.0), world.job("rarely", interval_s=5.0)), 9.5)
    assert (world.steps.count("often"), world.steps.count("rarely")) == (10, 2)


def test_a_step_that_leaves_work_is_followed_by_a_rest_as_long_as_the_step(world: World) -> None:
    took_s = iter((3.0, 0.0))

    def step() -> int:
        seconds = next(took_s, None)
        if seconds is None:
            return 0
        world.clock.advance(seconds)
        return 10_000

    runner = world.runner(world.job("roll-up", step))
    pauses_s = []
    for _ in range(3):
        pauses_s.append(runner.run_once())
        world.clock.advance(pauses_s[-1])
    assert pauses_s == pytest.approx([3.0, REST_MIN_S, 60.0])


def test_a_runner_says_whether_its_jobs_left_work(world: World) -> None:
    left = iter((5, 5, 0, 5))
    runner = world.runner(world.job("roll-up", lambda: next(left)), world.job("prune"))
    found = []
    for _ in range(3):
        world.clock.advance(runner.run_once())
        found.append(runner.has_work)
    assert found == [True, True, False]
    world.clock.advance(60.0)
    runner.run_once()
    assert runner.has_work
    world.store.is_ours = False
    world.clock.advance(60.0)
    runner.run_once()
    assert not runner.has_work, "another analyzer does it"


def test_without_the_lease_no_job_runs_and_the_lease_is_asked_for_now_and_then(world: World) -> None:
    world.store.is_ours = False
    runner = world.runner(world.job("prune"), world.job("roll-up"))
    world.run_for(runner, 4 * LEASE_RETRY_S - 1.0)
    assert (world.steps, world.store.held) == ([], 4)
    world.store.is_ours = True
    world.run_for(runner, LEASE_RETRY_S)
    assert world.steps == ["prune", "roll-up"]


@pytest.mark.parametrize("error", [StoreAway("canceling statement"), ZeroDivisionError("a bug")])
def test_a_job_that_fails_is_tried_again_with_growing_pauses_and_stops_no_other(
    world: World, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    runner = world.runner(world.job("broken", failing(*[error] * 1_000)), world.job("sound", interval_s=10.0))
    world.run_for(runner, 3_600.0)
    assert world.steps.count("sound") == 361
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
    runner = world.runner(world.job("prune", failing(None, away, away, None, away), interval_s=1.0))
    world.run_for(runner, 10.0)
    failed, recovered = ("prune", "canceling statement"), ("prune", "recovered")
    assert world.observer.seen == [failed, failed, recovered, failed, recovered]
    done = ("prune", "done")
    assert world.store.outcomes == [done, failed, failed, done, failed, done]
    assert [line.getMessage() for line in caplog.records] == [
        "job prune failed: canceling statement; it is tried again, and counting continues",
        "job prune works again, after 2 failed attempts",
        "job prune failed: canceling statement; it is tried again, and counting continues",
        "job prune works again, after 1 failed attempts",
    ]


def test_successes_are_stored_once_a_minute(world: World) -> None:
    runner = world.runner(world.job("end-locks", interval_s=1.0), world.job("roll-up", lambda: 1))
    world.run_for(runner, 3 * RECORD_EVERY_S - 1.0)
    assert world.store.outcomes == [("end-locks", "done"), ("roll-up", "more")] * 3


def test_jobs_survive_a_database_that_is_away(world: World) -> None:
    runner = world.runner(world.job("prune", interval_s=1.0))
    world.store.away = True
    world.run_for(runner, 60.0)
    assert (world.steps, world.store.outcomes) == ([], [])
    world.store.away = False
    world.run_for(runner, 60.0)
    assert world.store.outcomes == [("prune", "done")]
    assert world.observer.seen[-1] == ("prune", "recovered")


def test_an_analyzer_that_lost_the_lease_reports_no_failure_any_longer(world: World) -> None:
    runner = world.runner(world.job("prune", failing(*[StoreAway("canceling")] * 9)))
    runner.run_once()
    world.store.is_ours = False
    world.run_for(runner, 10.0)
    assert world.observer.seen[-1] == ("prune", "recovered")
    assert world.observer.seen.count(("prune", "recovered")) == 1


def test_the_thread_runs_jobs_until_it_has_to_stop_and_releases_the_lease(world: World) -> None:
    stopping, closed = threading.Event(), []
    runner = world.runner(world.job("prune", lambda: 1))
    runner.disconnect = lambda: closed.append(True)
    thread = JobThread(runner, stopping)
    thread.start()
    wait_until(lambda: world.steps, 10.0)
    stopping.set()
    thread.join(10.0)
    assert not thread.is_alive()
    assert (world.store.released, closed, thread.error) == (True, [True], None)


def test_a_bug_of_the_runner_stops_the_analyzer(world: World) -> None:
    class Broken(Exception):
        pass

    def breaks() -> float:
        raise Broken

    stopping = threading.Event()
    runner = world.runner(world.job("prune"))
    runner.uptime_s = breaks
    thread = JobThread(runner, stopping)
    thread.start()
    thread.join(10.0)
    assert stopping.is_set()
    with suppress(Broken):
        raise thread.error or AssertionError("the error is lost")
