"""The work of jobs on a database, which a test calls step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import replace

import sqlalchemy as sa

from analyzer.judging.judge import JudgedRows
from analyzer.kernel.jobs.job_runs import SqlJobRuns
from analyzer.kernel.jobs.job_schedules import BegunRun
from analyzer.kernel.kept_ages import Retention
from analyzer.maintenance import job_table
from analyzer.maintenance.job_runner import Job
from analyzer.maintenance.job_table import JOBS, LOCKS, UPKEEP, JobContext, JobStep, judge_again

DEFAULT = Retention()
# Those that delete rows of tables, not of closed days.
PRUNING = tuple(
    entry.name for entry in JOBS if entry.name.startswith("prune-") and entry.name != "prune-days"
)


OF_DAYS = ("close-days", "audit-days", "audit-deliveries", "prune-days")


def upkeep_jobs(context: JobContext) -> list[Job]:
    """Returns the jobs that keep tables small and right: none of days, none that looks for alarms."""
    rest = [entry for entry in JOBS if entry.lane == UPKEEP and not entry.name.startswith("watch-")]
    return [entry.job(context) for entry in rest if entry.name not in OF_DAYS]


class Upkeep:
    """Steps of the jobs in the table, in one process."""

    def __init__(
        self,
        engine: sa.Engine,
        new_mark: Callable[[], str],
        uptime_s: Callable[[], float] = time.monotonic,
        owner: str = "here",
    ) -> None:
        self.context = JobContext(engine, new_mark, owner, uptime_s=uptime_s)
        self._runs = SqlJobRuns(engine, owner, judge_again)
        self._run: BegunRun | None = None  # of the warden
        self._steps: dict[tuple[str, Retention], JobStep] = {}

    def step(self, job: str, kept: Retention = DEFAULT) -> int:
        """Does one step of a job; what it remembers between two steps belongs to the job and `kept`."""
        if (job, kept) not in self._steps:
            [entry] = [entry for entry in JOBS if entry.name == job]
            self._steps[job, kept] = entry.job(replace(self.context, kept=kept)).step
        return self._steps[job, kept]()

    def hold(self) -> bool:
        """Begins to be the warden, or continues; returns whether it is."""
        if self._run is not None and self._runs.keep(self._run):
            return True
        schedule = next(entry.schedule(DEFAULT) for entry in JOBS if entry.lane == LOCKS)
        begun = self._runs.begin("end-locks", schedule)
        self._run = begun if isinstance(begun, BegunRun) else None
        return self._run is not None

    def release(self) -> None:
        """Ends to be the warden, in good order."""
        assert self._run is not None
        self._runs.end(self._run, "stopped", 0)
        self._run = None

    def end_locks(self) -> JudgedRows:
        return job_table.end_locks(self.context)

    def judge_waiting(self) -> JudgedRows:
        return job_table.judge_waiting(self.context)

    def change_overrides(self) -> JudgedRows:
        return job_table.change_overrides(self.context)

    def apply_facts(self) -> JudgedRows:
        return job_table.apply_facts(self.context)

    def refill_totals(self) -> JudgedRows:
        return job_table.refill_totals(self.context)

    def apply_brakes(self) -> JudgedRows:
        return job_table.apply_brakes(self.context)

    def continue_activation(self) -> JudgedRows:
        return job_table.continue_activation(self.context)

    def prune(self, kept: Retention = DEFAULT, jobs: Collection[str] = PRUNING) -> int:
        """Does one step of each of some jobs that delete; returns the number of rows."""
        return sum(self.step(job, kept) for job in jobs)

    def roll_up(self, minutes_kept_s: int, quarters_kept_s: int) -> int:
        return self.step("roll-up", DEFAULT._replace(minutes_s=minutes_kept_s, quarters_s=quarters_kept_s))

    def fold(self, requests_max: int, minutes_kept_s: int) -> int:
        return self.step("fold", DEFAULT._replace(fold_requests=requests_max, minutes_s=minutes_kept_s))

    def empty_slots(self) -> int:
        return self.step("empty-slots")

    def repair_totals(self) -> int:
        return self.step("repair-totals")

    def prove_day(self) -> int:
        return self.step("prove-day")
