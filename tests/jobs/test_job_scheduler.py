"""The scheduler in real time: threads, its end, and bugs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from analyzer.kernel.jobs.job_schedules import BegunRun, NotBegun, RunOutcome, Schedule
from analyzer.maintenance.failing_jobs import FailingJobs
from analyzer.maintenance.job_runner import Job, JobRunner
from analyzer.maintenance.job_scheduler import JobScheduler
from tests.support.job_runners import SeenJobs
from tests.support.waiting import wait_until


@dataclass
class MemoryRuns:
    """Implements `JobRuns`: a moment is done once."""

    done: list[tuple[str, int]] = field(default_factory=list)
    ended: list[tuple[str, str]] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)  # of the next calls
    begun: int = 0

    def begin(self, job: str, schedule: Schedule, *, is_asked: bool = False) -> BegunRun | NotBegun:
        self.begun += 1
        if self.waits_s:
            return NotBegun(self.waits_s.pop())
        moment = schedule.latest_ms(int(time.time() * 1000))
        if (job, moment) in self.done and not is_asked:
            return NotBegun((schedule.next_ms(moment) - time.time() * 1000) / 1000)
        return BegunRun(job, self.begun, moment, schedule.shared_lease)

    def keep(self, run: BegunRun) -> bool:
        return True

    def keep_and_store(self, run: BegunRun, rows: int, *, is_done: bool = False) -> bool:
        return True

    def end(
        self, run: BegunRun, outcome: RunOutcome, rows: int, error: str = "", *, keeps_lease: bool = False
    ) -> bool:
        self.ended.append((run.job, outcome))
        if outcome == "done":
            self.done.append((run.job, run.scheduled_ms))
        return True


class Scheduled:
    """A scheduler, and what its process sees of it."""

    def __init__(self) -> None:
        self.store = MemoryRuns()
        self.stopping = threading.Event()
        self.closed: list[bool] = []
        self.scheduler: JobScheduler | None = None

    def runner(self, jobs: Sequence[Job]) -> JobRunner:
        failing = FailingJobs(SeenJobs(), Random(7))
        return JobRunner(jobs, self.store, failing, time.monotonic, lambda: self.closed.append(True))

    def start(self, *jobs: Job) -> JobScheduler:
        self.scheduler = JobScheduler([self.runner(jobs)])
        self.scheduler.start(self.stopping)
        return self.scheduler


@pytest.fixture
def scheduled() -> Scheduled:
    return Scheduled()


def job(name: str, step: Callable[[], int], every_s: int = 3_600) -> Job:
    return Job(name, step, Schedule(every_s))


def test_every_job_runs_at_the_start_and_then_at_its_moments(scheduled: Scheduled) -> None:
    scheduler = scheduled.start(job("daily", lambda: 0, 86_400), job("often", lambda: 0, 1))
    wait_until(lambda: scheduled.store.ended.count(("often", "done")) >= 3, 30.0)
    scheduler.stop(5.0)
    assert scheduled.store.ended.count(("daily", "done")) == 1
    assert scheduled.closed == [True]


def test_after_the_run_at_the_start_a_job_is_due_at_its_next_moment(scheduled: Scheduled) -> None:
    at_midnight_and_later = Schedule(86_400, 11_400)
    scheduler = scheduled.start(Job("daily", lambda: 0, at_midnight_and_later))

    def next_ms() -> int:
        return round(scheduler._scheduler.get_job("daily").next_run_time.timestamp() * 1000)

    wait_until(lambda: scheduled.store.ended and next_ms() % 86_400_000 == 11_400_000, 30.0)
    assert next_ms() == at_midnight_and_later.next_ms(int(time.time() * 1000))
    scheduler.stop(5.0)


def test_a_job_that_is_done_elsewhere_is_asked_for_again_before_its_next_moment(scheduled: Scheduled) -> None:
    scheduled.store.waits_s = [0.2, 0.2]
    scheduler = scheduled.start(job("daily", lambda: 0, 86_400))
    wait_until(lambda: scheduled.store.ended == [("daily", "done")], 30.0)
    scheduler.stop(5.0)
    assert scheduled.store.begun == 3


def test_a_long_run_holds_no_other_job_up_and_ends_between_two_steps(scheduled: Scheduled) -> None:
    scheduler = scheduled.start(job("long", lambda: 1), job("short", lambda: 0))
    wait_until(lambda: ("short", "done") in scheduled.store.ended, 30.0)
    scheduler.stop(30.0)
    assert scheduled.stopping.is_set()
    assert scheduled.store.ended[-1] == ("long", "stopped")
    assert scheduled.closed == [True]


def test_a_job_that_keeps_its_lease_continues_in_one_run_until_the_end(scheduled: Scheduled) -> None:
    calls: list[int] = []

    def step() -> int:
        calls.append(1)
        return 0

    scheduler = scheduled.start(Job("each second", step, Schedule(1, shared_lease="warden")))
    wait_until(lambda: len(calls) >= 3, 30.0)
    scheduler.stop(30.0)
    assert (scheduled.store.begun, scheduled.store.ended) == (1, [("each second", "stopped")])


def test_an_operator_runs_one_job_without_the_others(scheduled: Scheduled) -> None:
    left = [0, 3]
    others: list[int] = []
    scheduler = JobScheduler(
        [
            scheduled.runner([job("other", lambda: others.append(1) or 0)]),
            scheduled.runner([Job("asked", left.pop, Schedule(1, shared_lease="warden"))]),
        ]
    )
    assert scheduler.job_names == ["other", "asked"]
    end = scheduler.run_now("asked")
    assert (end.outcome, end.rows, others, scheduled.closed) == ("done", 3, [], [True, True])


def test_a_step_that_hangs_does_not_keep_the_process_from_ending(scheduled: Scheduled) -> None:
    hanging = threading.Event()
    scheduler = scheduled.start(job("hanging", lambda: int(hanging.wait(60.0))))
    wait_until(lambda: scheduled.store.begun, 30.0)
    began_s = time.monotonic()
    scheduler.stop(0.1)
    assert time.monotonic() - began_s < 10.0
    hanging.set()


def test_a_bug_of_the_scheduler_stops_the_analyzer(
    scheduled: Scheduled, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Exception):
        pass

    def breaks(*_: object, **__: object) -> Any:
        raise Broken

    monkeypatch.setattr(JobRunner, "run", breaks)
    scheduler = JobScheduler([scheduled.runner([job("any", lambda: 0)])])
    scheduler.start(scheduled.stopping)
    assert scheduled.stopping.wait(30.0)
    with pytest.raises(Broken):
        scheduler.stop(0.1)
