"""Runs of scheduled jobs: under a lease, step by step, recorded, each moment once among all analyzers.

    begin   take the lease, unless the moment is done or another analyzer does it
    step    one bounded piece of work, then a rest; again until nothing is left
    end     store the outcome, and release the lease

Which moments are due is decided in the database. So it does not matter which analyzers ask, how often, and
what they have missed. No step waits for a longer time than its statements: `JobScheduler` calls these
functions in threads, a simulation in one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from analyzer.kernel.errors import AnalyzerError
from analyzer.kernel.jobs.job_schedules import BegunRun, NotBegun, RunOutcome, Schedule
from analyzer.maintenance.failing_jobs import FailingJobs

log = logging.getLogger(__name__)

# After a step that left work a run rests for as long as the step took: it takes half of the time at most, and
# leaves the database to counting for the other half. At least for longer than a flush on SQLite sleeps before
# it asks for the file's lock again, 25 ms at first: it must not sleep through each rest.
REST_MIN_S = 0.03
KEEP_EVERY_S = 10.0  # between two extensions of a lease, which lasts for 30 s


@dataclass(frozen=True, slots=True)
class ScheduledJob:
    """Work in bounded steps that is due at moments."""

    name: str
    # Does one step, in one transaction or a few; returns the number of rows that it dealt with, 0 when
    # nothing is left to do. Safe to call twice, also while another analyzer calls it. May raise anything.
    step: Callable[[], int]
    schedule: Schedule
    takes_turns: bool = True  # False: a step may last for minutes, in which it writes a little at a time
    done_elsewhere: Callable[[], None] = lambda: None  # called when another analyzer does it


class JobRuns(Protocol):
    """Leases and records of runs. Every method raises StoreAway."""

    def begin(self, job: str, schedule: Schedule, *, is_asked: bool = False) -> BegunRun | NotBegun:
        """Begins the run of the latest moment, unless it is done or another process does it."""

    def keep(self, run: BegunRun, rows: int) -> bool:
        """Extends the lease of a run; False if another process has it."""

    def end(self, run: BegunRun, outcome: RunOutcome, rows: int, error: str = "") -> bool:
        """Ends a run and releases its lease; False if another process has taken the job over."""


class RunEnd(NamedTuple):
    """The end of a run in this process, or that it did not begin."""

    outcome: RunOutcome | None  # None: it did not begin
    wait_s: float | None  # until the job may be due again; None: at its next moment
    rows: int = 0
    error: str = ""  # why it failed
    holder: str = ""  # the process that does it instead


@dataclass(slots=True)
class RunInProgress:
    """A run of this process."""

    job: ScheduledJob
    begun: BegunRun
    kept_s: float  # uptime when the lease was last extended
    rows: int = 0
    is_lost: bool = False  # another process has taken the job over


@dataclass(slots=True)
class ScheduledRuns:
    """Runs jobs of this process. Threads may share it; a job must not run twice at a time.

    Steps of jobs that take turns never overlap: on SQLite flushes would wait for all of them.
    """

    runs: JobRuns
    failing: FailingJobs
    uptime_s: Callable[[], float]
    in_progress: dict[str, RunInProgress] = field(default_factory=dict)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def run(
        self, job: ScheduledJob, has_to_stop: Callable[[float], bool], *, is_asked: bool = False
    ) -> RunEnd:
        """Runs a job to its end, if its latest moment is due; with `is_asked`, also if that is done.

        `has_to_stop` waits for some seconds, and says whether the process ends. Raises nothing that a job or
        the database raises.
        """
        run = self.begin(job, is_asked=is_asked)
        while isinstance(run, RunInProgress):
            done = self.step(run)
            if isinstance(done, RunEnd):
                return done
            if has_to_stop(done):
                return self.stop(run)
        return run

    def begin(self, job: ScheduledJob, *, is_asked: bool = False) -> RunInProgress | RunEnd:
        """Begins a run, or says until when the job has to wait."""
        try:
            with self._turn_of(job):
                begun = self.runs.begin(job.name, job.schedule, is_asked=is_asked)
        except Exception as error:  # noqa: BLE001 - no error of a job may disturb counting
            return self._failed(job, error)
        if isinstance(begun, NotBegun):
            if begun.is_elsewhere:
                self.failing.forget(job.name)
                job.done_elsewhere()
            return RunEnd(None, begun.wait_s, holder=begun.holder)
        run = self.in_progress[job.name] = RunInProgress(job, begun, self.uptime_s())
        return run

    def step(self, run: RunInProgress) -> float | RunEnd:
        """Does one step; returns how long to rest before the next one, or how the run has ended."""
        began_s = self.uptime_s()
        try:
            with self._turn_of(run.job):
                began_s = self.uptime_s()
                if began_s - run.kept_s >= KEEP_EVERY_S:
                    self._keep(run)
                rows = 0 if run.is_lost else run.job.step()
                run.rows += rows
                if not rows:
                    return self._ended(run)
        except Exception as error:  # noqa: BLE001 - no error of a job may disturb counting
            failed = self._failed(run.job, error)
            self.in_progress.pop(run.job.name, None)
            with suppress(AnalyzerError):  # mostly the database is away, and nothing can be stored
                self.runs.end(run.begun, "failed", run.rows, failed.error)
            return failed
        return max(REST_MIN_S, self.uptime_s() - began_s)

    def stop(self, run: RunInProgress) -> RunEnd:
        """Ends a run that is not done, so that another analyzer can continue at once."""
        self.in_progress.pop(run.job.name, None)
        with suppress(AnalyzerError):
            self.runs.end(run.begun, "stopped", run.rows)
        return RunEnd("stopped", None, run.rows)

    def keep_leases(self) -> None:
        """Extends the leases of all runs in progress. Call it every `KEEP_EVERY_S`: a step may be long."""
        for run in list(self.in_progress.values()):
            with suppress(AnalyzerError):  # it is tried again, and the lease lasts longer
                self._keep(run)

    def _keep(self, run: RunInProgress) -> None:
        if self.runs.keep(run.begun, run.rows):
            run.kept_s = self.uptime_s()
        elif self.in_progress.get(run.job.name) is run:
            run.is_lost = True

    def _ended(self, run: RunInProgress) -> RunEnd:
        is_ours = not run.is_lost and self.runs.end(run.begun, "done", run.rows)
        self.in_progress.pop(run.job.name, None)
        if not is_ours:
            log.warning(
                "job %s: another analyzer has taken it over, because this one was too slow", run.job.name
            )
            self.failing.forget(run.job.name)
            return RunEnd("lost", None, run.rows)
        self.failing.succeeded(run.job.name)
        return RunEnd("done", None, run.rows)

    def _failed(self, job: ScheduledJob, error: Exception) -> RunEnd:
        failure = self.failing.failed(job.name, error)
        return RunEnd("failed", failure.pause_s, error=failure.sentence)

    def _turn_of(self, job: ScheduledJob) -> AbstractContextManager[object]:
        return self._turn if job.takes_turns else nullcontext()
