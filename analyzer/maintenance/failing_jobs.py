"""Jobs that fail: growing pauses, one line in the log for each outage, and the report of the recovery."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, Protocol

from analyzer.kernel.errors import AnalyzerError
from analyzer.kernel.retry_pauses import retry_pause_s

log = logging.getLogger(__name__)

RETRY_FIRST_S = 1.0
RETRY_MAX_S = 300.0


class JobObserver(Protocol):
    """Receives outcomes, for metrics. Called by the threads of jobs."""

    def job_failed(self, job: str, error: str) -> None: ...
    def job_recovered(self, job: str) -> None: ...


class JobFailure(NamedTuple):
    """A failure of a job, and the pause after it."""

    pause_s: float  # until it is tried again
    sentence: str  # why it failed


@dataclass(slots=True)
class FailingJobs:
    """The jobs of this process that fail at present."""

    observer: JobObserver
    random: Random
    failures: dict[str, int] = field(default_factory=dict)  # in a row, by job

    def failed(self, job: str, error: Exception) -> JobFailure:
        """Reports a failure; each pause is twice as long as the one before, up to a bound, with jitter."""
        failures = self.failures.get(job, 0)
        self.failures[job] = failures + 1
        sentence = str(error) if isinstance(error, AnalyzerError) else repr(error)
        self.observer.job_failed(job, sentence)
        if not failures:  # once for each outage; the metrics and `gatelock doctor` show that it lasts
            is_bug = not isinstance(error, AnalyzerError)
            log.error(
                "job %s failed: %s; it is tried again, and counting continues",
                job, sentence, exc_info=error if is_bug else None,
            )  # fmt: skip
        pause_s = retry_pause_s(failures + 1, RETRY_FIRST_S, RETRY_MAX_S, self.random.random())
        return JobFailure(pause_s, sentence)

    def succeeded(self, job: str) -> None:
        """Reports the recovery, if the job had failed."""
        if failures := self.failures.pop(job, 0):
            log.info("job %s works again, after %d failed attempts", job, failures)
            self.observer.job_recovered(job)

    def forget(self, job: str) -> None:
        """Forgets the failures of a job that another analyzer does: whether it fails, that one reports."""
        if self.failures.pop(job, 0):
            self.observer.job_recovered(job)
