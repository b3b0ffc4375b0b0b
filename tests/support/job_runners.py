"""Job runners for tests, and an observer that records what they report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import sqlalchemy as sa

from analyzer.kernel.jobs.job_outcomes import SqlJobOutcomes
from analyzer.maintenance.failing_jobs import JobObserver
from analyzer.maintenance.job_runner import Job, JobOutcomes, JobRunner, Leases
from analyzer.maintenance.scheduled_jobs import ScheduledJob
from analyzer.maintenance.upkeep_jobs import LEASE


@dataclass
class SeenJobs:
    """A `JobObserver` that records failures and recoveries, in order."""

    seen: list[tuple[str, str]] = field(default_factory=list)

    def job_failed(self, job: str, error: str) -> None:
        self.seen.append((job, error))

    def job_recovered(self, job: str) -> None:
        self.seen.append((job, "recovered"))


def runner_of(
    jobs: Sequence[Job],
    leases: Leases,
    outcomes: JobOutcomes | sa.Engine,
    uptime_s: Callable[[], float],
    observer: JobObserver | None = None,
) -> JobRunner:
    """Returns a runner; with an engine it stores the outcomes there."""
    return JobRunner(
        name="jobs",
        jobs=jobs,
        lease=LEASE,
        leases=leases,
        outcomes=SqlJobOutcomes(outcomes, "here") if isinstance(outcomes, sa.Engine) else outcomes,
        observer=observer or SeenJobs(),
        uptime_s=uptime_s,
        random=Random(7),
        disconnect=lambda: None,
    )


def unscheduled(jobs: Sequence[ScheduledJob]) -> list[Job]:
    """Returns jobs that run as often, under the lease of their runner: nothing of their runs is stored."""
    return [Job(job.name, job.step, job.schedule.every_s) for job in jobs]
