"""Job runners for tests, and an observer that records what they report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import sqlalchemy as sa

from analyzer.kernel.jobs.job_runs import SqlJobRuns
from analyzer.maintenance.failing_jobs import FailingJobs, JobObserver
from analyzer.maintenance.job_runner import Job, JobRunner, JobRuns, RunEnd, RunInProgress


@dataclass
class SeenJobs:
    """A `JobObserver` that records failures and recoveries, in order."""

    seen: list[tuple[str, str]] = field(default_factory=list)

    def job_failed(self, job: str, error: str) -> None:
        self.seen.append((job, error))

    def job_recovered(self, job: str) -> None:
        self.seen.append((job, "recovered"))


def new_runner(
    jobs: Sequence[Job],
    runs: JobRuns | sa.Engine,
    uptime_s: Callable[[], float],
    observer: JobObserver | None = None,
    owner: str = "here",
) -> JobRunner:
    """Returns a runner; with an engine it stores its runs there."""
    stored = SqlJobRuns(runs, owner) if isinstance(runs, sa.Engine) else runs
    return JobRunner(jobs, stored, FailingJobs(observer or SeenJobs(), Random(7)), uptime_s)


class JobLoop:
    """Runs the jobs of a runner in one thread, by its clock."""

    def __init__(self, runner: JobRunner) -> None:
        self.runner = runner
        self._due_s: dict[str, float] = {}  # uptime of the next call, by job
        self._runs: dict[str, RunInProgress] = {}

    def run_once(self) -> float:
        """Does one step of each job that is due; returns how many seconds to wait before the next call."""
        for job in self.runner.jobs:
            if self._due_s.get(job.name, float("-inf")) > self.runner.uptime_s():
                continue
            run = self._runs.pop(job.name, None) or self.runner.begin(job)
            done = self.runner.step(run) if isinstance(run, RunInProgress) else run
            if isinstance(run, RunInProgress) and not isinstance(done, RunEnd):
                self._runs[job.name] = run
            wait_s = done.wait_s if isinstance(done, RunEnd) else done
            rest_s = job.schedule.every_s if wait_s is None else wait_s
            self._due_s[job.name] = self.runner.uptime_s() + rest_s
        return max(0.0, min(self._due_s.values()) - self.runner.uptime_s())

    def run_for(self, seconds: float, advance: Callable[[float], object]) -> None:
        """Runs what is due within some seconds; `advance` moves the clock."""
        end_s = self.runner.uptime_s() + seconds
        while (pause_s := self.run_once()) + self.runner.uptime_s() <= end_s:
            advance(max(pause_s, 1e-9))  # the clock has whole nanoseconds
        advance(max(0.0, end_s - self.runner.uptime_s()))

    def stop(self) -> None:
        """Ends the runs in good order, as a process does that ends."""
        for run in self._runs.values():
            self.runner.stop(run)
        self._runs.clear()
        self._due_s.clear()
