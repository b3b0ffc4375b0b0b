"""Runs jobs under a lease, step by step, and reports those that fail.

A failing job waits with growing pauses, and nothing else waits for it: other jobs of its runner take their
turns, and counting runs in another thread on other connections. The outcome of each job is stored, so that
`gatelock doctor` sees it from anywhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from analyzer.kernel.errors import AnalyzerError
from analyzer.maintenance.failing_jobs import FailingJobs, JobObserver

# After a step that left work the job rests for as long as the step took: it takes half of the time at most,
# and leaves the database to counting for the other half.
REST_MIN_S = 0.01
LEASE_EXTEND_S = 1.0  # a lease that was extended this recently is still ours: it lasts for 5 s
LEASE_RETRY_S = 5.0  # until a runner without the lease asks for it again, at most
RECORD_EVERY_S = 60.0  # successes of a job that did not fail before


@dataclass(frozen=True, slots=True)
class Job:
    """Work in bounded steps."""

    name: str
    # Does one step, in one transaction or a few; returns the number of rows that it dealt with, 0 when
    # nothing is left to do. Safe to call twice, also while another analyzer calls it. May raise anything.
    step: Callable[[], int]
    interval_s: float = 60.0  # after a step that left nothing to do


class Leases(Protocol):
    """Leases in the database. Every method raises StoreAway."""

    def hold(self, name: str) -> bool:
        """Acquires or extends the lease `name` for some seconds; False while another analyzer holds it."""

    def release(self, name: str) -> None:
        """Releases the lease `name`, if this analyzer holds it."""


class JobOutcomes(Protocol):
    """Stores the outcomes of jobs. Every method raises StoreAway."""

    def record_success(self, job: str, *, is_done: bool) -> None:
        """Stores that a step succeeded; with `is_done`, that it left nothing to do."""

    def record_failure(self, job: str, error: str) -> None:
        """Stores that a step failed, and why."""


@dataclass(slots=True)
class JobState:
    """Progress of one job in this process."""

    next_s: float = float("-inf")  # uptime of the next step
    has_work: bool = False  # whether the last step left work
    recorded_s: float = float("-inf")  # uptime when a success was last stored


@dataclass(slots=True)
class JobRunner:
    """Runs `jobs` while this analyzer holds `lease`; runners of one process may share a lease.

    Call `run_once` again and again, in a thread or under the clock of a simulation.
    """

    name: str
    jobs: Sequence[Job]
    lease: str
    leases: Leases
    outcomes: JobOutcomes
    observer: JobObserver
    uptime_s: Callable[[], float]
    random: Random
    disconnect: Callable[[], None]  # closes the connections of the jobs
    held_s: float = float("-inf")  # uptime when the lease was last extended
    states: dict[str, JobState] = field(default_factory=dict)
    failing: FailingJobs = field(init=False)

    def __post_init__(self) -> None:
        self.failing = FailingJobs(self.observer, self.random)

    def run_once(self) -> float:
        """Runs one step of each job that is due, if this analyzer holds the lease.

        Returns how many seconds to wait before the next call. Raises nothing that a job or the database
        raises.
        """
        for job in self.jobs:
            if self.state_of(job).next_s <= self.uptime_s() and not self.try_step(job):
                break
        return max(0.0, min(self.state_of(job).next_s for job in self.jobs) - self.uptime_s())

    @property
    def has_work(self) -> bool:
        """Whether the last step of a job left work that it may do here."""
        return any(state.has_work for state in self.states.values())

    def state_of(self, job: Job) -> JobState:
        return self.states.setdefault(job.name, JobState())

    def try_step(self, job: Job) -> bool:
        """Runs one step of the job; returns False without the lease."""
        state, began_s = self.state_of(job), self.uptime_s()
        try:
            if began_s - self.held_s >= LEASE_EXTEND_S:
                if not self.leases.hold(self.lease):
                    self.wait_for_lease()
                    return False
                self.held_s = began_s
            rows = job.step()
        except Exception as error:  # noqa: BLE001 - no error of a job may disturb counting
            self.failed(job, state, error)
            return True
        now_s = self.uptime_s()
        state.has_work = rows > 0
        self.succeeded(job, state, is_done=not rows)
        state.next_s = now_s + (max(REST_MIN_S, now_s - began_s) if rows else job.interval_s)
        return True

    def wait_for_lease(self) -> None:
        """Postpones all jobs that are due: another analyzer does them."""
        pause_s = min(LEASE_RETRY_S, *(job.interval_s for job in self.jobs))
        for job in self.jobs:
            state = self.state_of(job)
            state.has_work = False
            state.next_s = max(state.next_s, self.uptime_s() + pause_s)
            self.failing.forget(job.name)

    def failed(self, job: Job, state: JobState, error: Exception) -> None:
        """Reports the failure, and postpones the job."""
        failure = self.failing.failed(job.name, error)
        state.has_work = False
        state.next_s = self.uptime_s() + failure.pause_s
        state.recorded_s = float("-inf")  # the recovery is stored at once
        with suppress(AnalyzerError):  # mostly the database is away, and nothing can be stored
            self.outcomes.record_failure(job.name, failure.sentence)

    def succeeded(self, job: Job, state: JobState, *, is_done: bool) -> None:
        """Reports the recovery after failures, and stores the success, at once then or each minute."""
        self.failing.succeeded(job.name)
        if self.uptime_s() - state.recorded_s >= RECORD_EVERY_S:
            with suppress(AnalyzerError):
                self.outcomes.record_success(job.name, is_done=is_done)
                state.recorded_s = self.uptime_s()

    def close(self) -> None:
        """Releases the lease, so that another analyzer can work at once, and closes the connections."""
        with suppress(AnalyzerError):
            self.leases.release(self.lease)
        self.held_s = float("-inf")
        self.disconnect()


class JobThread(threading.Thread):
    """Runs a runner until `stopping` is set, then closes it.

    A step that never returns ends with the process. After an error of the runner itself, which is a bug, it
    keeps the error and sets `stopping`.
    """

    def __init__(self, runner: JobRunner, stopping: threading.Event) -> None:
        super().__init__(name=runner.name, daemon=True)
        self.error: BaseException | None = None
        self._runner = runner
        self._stopping = stopping

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._stopping.wait(self._runner.run_once())
            self._runner.close()
        except BaseException as error:  # noqa: BLE001 - the thread of the loop raises it
            self.error = error
            self._stopping.set()
