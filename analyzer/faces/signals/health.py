"""State of the analyzer's loop: the loop reports events, the web application reads the state."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from analyzer.alerts.message_rows import MessageCounts
from analyzer.counting.measured_delays import MeasuredDelays, RecentDelays
from analyzer.counting.records.reading_doubts import ReadingQuestions
from analyzer.faces.signals.metrics import BY_RECORDS, Measurements, Metrics, RememberedIds
from analyzer.faces.signals.signal_kinds import Signal
from analyzer.faces.signals.status import InstallationStatus
from analyzer.flush.pipeline import FlushResult
from analyzer.gates.fleet_summary import FleetSummary
from analyzer.judging.judge import Judged
from analyzer.kernel.model import Gap, Lag, Partition

log = logging.getLogger(__name__)

# One loop takes a flush at most, and the time-outs of the database bound a flush, a lost connection included.
LOOP_MAX_S = 30.0
# A held partition is flushed at least once a second, if only by a heartbeat. Without any flush for this long
# the analyzer holds no partition, or it cannot store.
FLUSH_OVERDUE_S = 15.0
# Now and then another analyzer takes over a partition. So many losses within so many seconds mean that two
# analyzers read the same partitions.
LOSSES_MAX, LOSSES_WITHIN_S = 5, 30.0
MEASURE_EVERY_S = 1.0  # between two summaries of what flushes have measured


@dataclass(slots=True)
class Health:
    """State of the loop and of the jobs, written by their threads and read by that of the web application.

    Each attribute is replaced as a whole and never changed in place: a reader may see a value that is a
    moment old, never a part of one. Only `failing_jobs` is written by several threads. Times are uptimes in
    seconds; None means "not yet".
    """

    metrics: Metrics
    uptime_s: Callable[[], float]
    # The assignment of partitions may take this long. 0 where no consumer group assigns them.
    assignment_grace_s: float = FLUSH_OVERDUE_S
    started_s: float = field(init=False)
    loop_completed_s: float | None = None
    flush_committed_s: float | None = None
    lags: Mapping[Partition, Lag] = field(default_factory=dict)
    holding_s: tuple[float, float] | None = None  # first and last time of the current stretch with partitions
    losses_s: tuple[float, ...] = ()  # the latest losses of partitions to another analyzer
    gaps: Mapping[Partition, Gap] = field(default_factory=dict)  # partitions that wait for an operator
    failures: Mapping[str, str] = field(default_factory=dict)  # the latest error of each failed dependency
    failing_jobs: Mapping[str, str] = field(default_factory=dict)  # the latest error of each job that fails
    recent_delays: RecentDelays = field(default_factory=RecentDelays)  # changed by the loop alone
    questions: ReadingQuestions = field(default_factory=ReadingQuestions)  # changed by the loop alone
    measured: MeasuredDelays = field(default_factory=MeasuredDelays)
    measured_s: float = float("-inf")
    remembered: Mapping[Partition, RememberedIds] = field(default_factory=dict)  # by flushes
    on_feed_change: Callable[[], None] = lambda: None  # wakes the gates that wait for changes
    on_flush: Callable[[FlushResult], None] = lambda _result: None  # for traces; must not wait
    _jobs_mutex: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.started_s = self.uptime_s()

    # Events, reported by the loop (`analyzer.daemon.LoopObserver`)

    def loop_completed(self, partitions: int = 0) -> None:
        """Records the end of one loop, successful or not; `partitions` is how many are held."""
        self.loop_completed_s = now_s = self.uptime_s()
        if partitions:
            # Each failure releases the partitions for a moment, which does not end the stretch.
            first_s, last_s = self.holding_s or (now_s, now_s)
            self.holding_s = (first_s if now_s - last_s < FLUSH_OVERDUE_S else now_s, now_s)

    def flush_committed(self, result: FlushResult) -> None:
        """Records a committed transaction and wakes the waiting gates if it changed a lock."""
        self.lags = result.lags
        self.flush_committed_s = self.uptime_s()
        self.metrics.record_flush(result)
        self._measure(result, self.flush_committed_s)
        if question := self.questions.note(result.counted):
            log.warning("%s", question)
        new = {
            progress.part: RememberedIds(ids.held, ids.kept_ms)
            for progress in result.counted.parts
            if progress.state is not None and (ids := progress.state.ids) is not None
            if ids.kept_ms is not None
        }
        if new:
            self.remembered = {**self.remembered, **new}
        self.judged(result.judged, BY_RECORDS)
        self.on_flush(result)

    def measurements(
        self,
        problems: Collection[str],
        status: InstallationStatus | None,
        signals: Sequence[Signal],
        unmet_locks: int | None,
        fleet: FleetSummary | None,
        alerts: MessageCounts | None,
        *,
        has_paths: bool,
    ) -> Measurements:
        """Returns the values of gauges, with what is read from the database; None: it is away."""
        return Measurements(
            lags=self.current_lags,
            gaps=self.gaps,
            failing_jobs=self.failing_jobs.keys(),
            signals=signals,
            measured=self.measured,
            remembered=self.current_ids,
            since_flush_s=self.since_flush_s,
            since_loop_s=self.since_loop_s,
            problems=problems,
            active_locks=None if status is None else status.active_locks,
            unmet_locks=unmet_locks,
            fleet=fleet,
            alerts=alerts,
            braked=() if status is None else status.braked.keys(),
            feed_version=None if status is None else status.feed_version,
            waiting_judgements=None if status is None else status.waiting_judgements,
            differing_days=None if status is None else status.differing_days,
            suspended=None if status is None else status.suspended_until is not None,
            has_paths=has_paths,
        )

    def _measure(self, result: FlushResult, now_s: float) -> None:
        recent, lag_s = self.recent_delays, max((lag.seconds for lag in result.lags.values()), default=0.0)
        recent.add_flush(result.seconds, lag_s, now_s)
        for progress in result.counted.parts:
            if progress.delays is not None and result.now is not None:
                place = progress.part.source, str(progress.part)
                recent.add(place, progress.delays, int(result.now.timestamp() * 1000), now_s)
        if now_s - self.measured_s >= MEASURE_EVERY_S:
            self.measured, self.measured_s = recent.measured(now_s), now_s

    def partition_lost(self) -> None:
        """Records that another analyzer has stored what this one counted."""
        self.losses_s = (*self.losses_s, self.uptime_s())[-LOSSES_MAX:]
        self.metrics.record_failure("partition")

    def dependency_failed(self, dependency: str, error: str) -> None:
        """Records that `dependency` ("database", ...) cannot be reached; the loop tries it again."""
        self.failures = {**self.failures, dependency: error}
        self.metrics.record_failure(dependency)

    def dependency_recovered(self, dependency: str) -> None:
        """Forgets the failure of `dependency`."""
        self.failures = {name: error for name, error in self.failures.items() if name != dependency}

    def partitions_stopped(self, gaps: Mapping[Partition, Gap]) -> None:
        """Records the partitions that wait for an operator, each with its gap."""
        self.gaps = gaps

    # Events, reported by the threads of the jobs (`analyzer.maintenance`)

    def judged(self, judged: Judged, cause: str) -> None:
        """Records locks that were set and cleared, and notices; wakes the waiting gates if a lock changed.

        `cause` is `BY_RECORDS`, or the job that judged.
        """
        self.metrics.record_judged(judged, cause)
        if judged.changes:
            self.on_feed_change()

    def job_failed(self, job: str, error: str) -> None:
        """Records that a job failed; its runner tries it again. That does not disturb counting."""
        with self._jobs_mutex:
            self.failing_jobs = {**self.failing_jobs, job: error}
        self.metrics.record_failure(job)

    def job_recovered(self, job: str) -> None:
        """Forgets the failure of a job."""
        with self._jobs_mutex:
            self.failing_jobs = {name: error for name, error in self.failing_jobs.items() if name != job}

    # Events, reported by the thread that reads the configuration again (`analyzer.config.reload`)

    def configuration_accepted(self) -> None:
        """Records that the file was read again and is valid."""
        self.metrics.record_reload(is_successful=True)

    def configuration_refused(self, _sentence: str) -> None:
        """Records that the file was read and is refused: the configuration before it stays in force.

        Its sentence reaches `/readyz` with the heartbeat, as a signal.
        """
        self.metrics.record_reload(is_successful=False)

    # State, read by the web application

    @property
    def is_alive(self) -> bool:
        """Whether a loop was completed within `LOOP_MAX_S`; for the first one, since the start."""
        return self.stalled_s < LOOP_MAX_S

    @property
    def current_lags(self) -> Mapping[Partition, Lag]:
        """Lag of each partition that this analyzer holds; empty when the last flush is too old to tell."""
        return self.lags if self.since_flush_s is not None and self.since_flush_s < FLUSH_OVERDUE_S else {}

    @property
    def is_assignment_settled(self) -> bool:
        """Whether partitions are held, or the time that an assignment may take is over."""
        return bool(self.current_lags) or self.uptime_s() - self.started_s >= self.assignment_grace_s

    @property
    def problems(self) -> dict[str, str]:
        """Problems of the loop: a sentence for each, by its name."""
        problems = dict(self.failures)
        if not self.is_alive:
            problems["loop"] = f"the loop has not completed for {self.stalled_s:.0f} s"
        if not self.is_assignment_settled:
            problems["partitions"] = "no partition is assigned yet"
        if self.unflushed_s >= FLUSH_OVERDUE_S and not self.failures:
            problems["flush"] = (
                f"this analyzer holds partitions, but has stored nothing for {self.unflushed_s:.0f} s"
            )
        if len(self.losses_s) == LOSSES_MAX and self.uptime_s() - self.losses_s[0] < LOSSES_WITHIN_S:
            problems["contention"] = (
                f"another analyzer stored what this one had counted, {LOSSES_MAX} times within "
                f"{LOSSES_WITHIN_S:.0f} s: two analyzers read the same partitions. Nothing is counted twice; "
                'stop one of the two: look for another analyzer with assign = "all", or with the same '
                "group_instance_id"
            )
        return problems

    @property
    def current_ids(self) -> Mapping[Partition, RememberedIds]:
        """The ids that each partition remembers which this analyzer holds."""
        lags = self.current_lags
        return {part: ids for part, ids in self.remembered.items() if part in lags}

    @property
    def stalled_s(self) -> float:
        """Seconds since a loop was completed, or since the start while none was."""
        last_s = self.started_s if self.loop_completed_s is None else self.loop_completed_s
        return self.uptime_s() - last_s

    @property
    def unflushed_s(self) -> float:
        """Seconds for which partitions have been held and nothing was stored; 0.0 when none is held."""
        now_s = self.uptime_s()
        if self.holding_s is None or now_s - self.holding_s[1] >= FLUSH_OVERDUE_S:
            return 0.0
        return now_s - max(self.holding_s[0], self.flush_committed_s or float("-inf"))

    @property
    def since_flush_s(self) -> float | None:
        return None if self.flush_committed_s is None else self.uptime_s() - self.flush_committed_s

    @property
    def since_loop_s(self) -> float | None:
        return None if self.loop_completed_s is None else self.uptime_s() - self.loop_completed_s
