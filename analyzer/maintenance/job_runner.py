"""Runs of jobs: under a lease, step by step, recorded, each moment once among all analyzers.

    begin   take the lease, unless the moment is done or another analyzer does it
    step    one bounded piece of work, then a rest; again until nothing is left
    end     store the outcome, and release the lease

Which moments are due is decided in the database. So it does not matter which analyzers ask, how often, and
what they have missed. No step waits for a longer time than its statements: `JobScheduler` calls these
functions in threads, a simulation in one.

Jobs that run each second share a lease and keep it: their run does not end where nothing is left, it rests
until the next moment. That they were done is stored once a minute.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
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
KEEP_SHARED_EVERY_S = 1.0  # of a shared one, which lasts for 5 s
STORE_EVERY_S = 60.0  # that a run under a shared lease works


@dataclass(frozen=True, slots=True)
class Job:
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

    def keep(self, run: BegunRun) -> bool:
        """Extends the lease of a run; False if another process has it."""

    def keep_and_store(self, run: BegunRun, rows: int, *, is_done: bool = False) -> bool:
        """Extends the lease of a run, and stores how far it is; False if another process has it."""

    def end(
        self, run: BegunRun, outcome: RunOutcome, rows: int, error: str = "", *, keeps_lease: bool = False
    ) -> bool:
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

    job: Job
    begun: BegunRun
    is_asked: bool = False  # it ends when nothing is left
    rows: int = 0
    stored_s: float = float("-inf")  # uptime when it was last stored how far it is
    is_lost: bool = False  # another process has taken the job over


class HeldElsewhere(NamedTuple):
    """A shared lease that another process has."""

    until_s: float  # uptime of the next attempt to take it
    holder: str


@dataclass(slots=True)
class JobRunner:
    """Runs jobs of this process. Threads may share it; a job must not run twice at a time.

    Steps of jobs that take turns never overlap: on SQLite flushes would wait for all of them.
    """

    jobs: Sequence[Job]
    runs: JobRuns
    failing: FailingJobs
    uptime_s: Callable[[], float]
    disconnect: Callable[[], None] = lambda: None  # closes the connections of the jobs
    in_progress: dict[str, RunInProgress] = field(default_factory=dict)
    _kept_s: dict[str, float] = field(default_factory=dict)  # uptime of the last extension, by lease
    _elsewhere: dict[str, HeldElsewhere] = field(default_factory=dict)  # by shared lease
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def run(self, job: Job, has_to_stop: Callable[[float], bool], *, is_asked: bool = False) -> RunEnd:
        """Runs a job to its end, if its latest moment is due; with `is_asked`, also if that is done.

        `has_to_stop` waits for some seconds, and says whether the process ends. Raises nothing that a job or
        the database raises.
        """
        run = self.begin(job, is_asked=is_asked)
        while isinstance(run, RunInProgress):
            outcome = self.step(run)
            if isinstance(outcome, RunEnd):
                return outcome
            if has_to_stop(outcome):
                return self.stop(run)
        return run

    def finish(self, has_to_stop: Callable[[float], bool]) -> None:
        """Runs each job now, until nothing is left for it to do."""
        for job in self.jobs:
            self.run(job, has_to_stop, is_asked=True)

    def begin(self, job: Job, *, is_asked: bool = False) -> RunInProgress | RunEnd:
        """Begins a run, or says until when the job has to wait."""
        shared = job.schedule.shared_lease
        try:
            with self._take_turn(job):
                now_s, elsewhere = self.uptime_s(), self._elsewhere.get(shared)
                if elsewhere is not None and now_s < elsewhere.until_s:
                    return self._begun_elsewhere(job, elsewhere.until_s - now_s, elsewhere.holder)
                begun = self.runs.begin(job.name, job.schedule, is_asked=is_asked)
                if isinstance(begun, BegunRun):
                    self._elsewhere.pop(shared, None)
                    self._kept_s[begun.lease] = self.uptime_s()
                    run = self.in_progress[job.name] = RunInProgress(job, begun, is_asked)
                    return run
        except Exception as error:  # noqa: BLE001 - no error of a job may disturb counting
            return self._failed(job, error)
        if not begun.is_elsewhere:
            return RunEnd(None, begun.wait_s, holder=begun.holder)
        if shared:  # the others that share it need not ask
            self._elsewhere[shared] = HeldElsewhere(self.uptime_s() + begun.wait_s, begun.holder)
        return self._begun_elsewhere(job, begun.wait_s, begun.holder)

    def step(self, run: RunInProgress) -> float | RunEnd:
        """Does one step; returns how long to rest before the next one, or how the run has ended."""
        began_s = self.uptime_s()
        with self._take_turn(run.job):
            try:
                began_s = self.uptime_s()
                if began_s - self._kept_s[run.begun.lease] >= self._keep_every_s(run):
                    self._keep(run)
                rows = 0 if run.is_lost else run.job.step()
                run.rows += rows
                if run.is_lost or (not rows and not self._continues(run)):
                    return self._ended(run)
                if run.begun.shared_lease:
                    self._works(run, is_done=not rows)
            except Exception as error:  # noqa: BLE001 - no error of a job may disturb counting
                failed = self._failed(run.job, error)
                with suppress(AnalyzerError):  # mostly the database is away, and nothing can be stored
                    self._end(run, "failed", failed.error)
                return failed
        return max(REST_MIN_S, self.uptime_s() - began_s) if rows else float(run.job.schedule.every_s)

    def stop(self, run: RunInProgress) -> RunEnd:
        """Ends a run that is not done, so that another analyzer can continue at once."""
        # Of jobs that share a lease the last one releases it. Others do not wait for another job's long step.
        turn = self._take_turn(run.job) if run.begun.shared_lease else nullcontext()
        with turn, suppress(AnalyzerError):
            self._end(run, "stopped")
        return RunEnd("stopped", None, run.rows)

    def keep_leases(self) -> None:
        """Extends the leases of runs in progress. Call it every `KEEP_EVERY_S`: a step may be long.

        Not those that are shared: steps under them are short.
        """
        for run in list(self.in_progress.values()):
            if not run.begun.shared_lease:
                with suppress(AnalyzerError):  # it is tried again, and the lease lasts longer
                    self._keep(run)

    def _begun_elsewhere(self, job: Job, wait_s: float, holder: str) -> RunEnd:
        self.failing.forget(job.name)
        job.done_elsewhere()
        return RunEnd(None, wait_s, holder=holder)

    def _keep_every_s(self, run: RunInProgress) -> float:
        return KEEP_SHARED_EVERY_S if run.begun.shared_lease else KEEP_EVERY_S

    def _continues(self, run: RunInProgress) -> bool:
        """Whether a run that has nothing left rests until its next moment."""
        return bool(run.begun.shared_lease) and not run.is_asked

    def _keep(self, run: RunInProgress) -> None:
        if run.begun.shared_lease:
            is_kept = self.runs.keep(run.begun)
        else:
            is_kept = self.runs.keep_and_store(run.begun, run.rows)
        self._note_kept(run, is_kept=is_kept)

    def _note_kept(self, run: RunInProgress, *, is_kept: bool) -> None:
        if is_kept:
            self._kept_s[run.begun.lease] = self.uptime_s()
        elif self.in_progress.get(run.job.name) is run:
            run.is_lost = True

    def _works(self, run: RunInProgress, *, is_done: bool) -> None:
        """Reports the recovery after failures, and stores that the run works: at once, then each minute."""
        self.failing.succeeded(run.job.name)
        if self.uptime_s() - run.stored_s >= STORE_EVERY_S:
            is_kept = self.runs.keep_and_store(run.begun, run.rows, is_done=is_done)
            self._note_kept(run, is_kept=is_kept)
            run.stored_s = self.uptime_s()

    def _ended(self, run: RunInProgress) -> RunEnd:
        if run.is_lost or not self._end(run, "done"):
            self.in_progress.pop(run.job.name, None)
            log.warning(
                "job %s: another analyzer has taken it over, because this one was too slow", run.job.name
            )
            self.failing.forget(run.job.name)
            return RunEnd("lost", None, run.rows)
        self.failing.succeeded(run.job.name)
        return RunEnd("done", None, run.rows)

    def _end(self, run: RunInProgress, outcome: RunOutcome, error: str = "") -> bool:
        """Stores the end of a run; returns False if another process has taken the job over."""
        in_progress = [running for running in list(self.in_progress.values()) if running is not run]
        keeps_lease = any(running.begun.lease == run.begun.lease for running in in_progress)
        try:
            return self.runs.end(run.begun, outcome, run.rows, error, keeps_lease=keeps_lease)
        finally:
            if self.in_progress.get(run.job.name) is run:
                del self.in_progress[run.job.name]

    def _failed(self, job: Job, error: Exception) -> RunEnd:
        failure = self.failing.failed(job.name, error)
        return RunEnd("failed", failure.pause_s, error=failure.sentence)

    def _take_turn(self, job: Job) -> AbstractContextManager[object]:
        return self._turn if job.takes_turns else nullcontext()
