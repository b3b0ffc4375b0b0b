"""The analyzer's loop: runs the pipeline, recovers from outages, stops in good order.

`run` repeats `run_once` until it has to stop; `count_and_judge` is one loop when nothing fails:

    reload             propose a configuration that was read again, as at a start
    settle gaps        record what stops a partition; resume partitions on which an operator decided
    pipeline.run_once  read, count, and store together: counts, offsets, locks

Next to it, `run` starts one thread for each runner of jobs, and the scheduler of the others. The loop neither
waits for these nor fails with them.

Three errors are expected. Each one drops what is in memory and continues from the stored positions:

    PartitionLost      another analyzer stored the partition's offset: read again
    PlanChanged        another plan is in force: adopt it, read again; an analyzer that cannot count by it
                       releases its partitions and stands by
    StoreAway          the database cannot be reached: wait with growing pauses, read again

Any other error is a bug and ends the process.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from analyzer.flush.pipeline import FlushResult, Pipeline
from analyzer.garbage_collector import tune_garbage_collector
from analyzer.judging.judgement_log import log_judged
from analyzer.kernel.errors import (
    AnalyzerError,
    CannotCount,
    DatabaseReplaced,
    PartitionLost,
    PlanChanged,
    SchemaBehind,
    StoreAway,
)
from analyzer.kernel.model import Counter, Gap, Partition
from analyzer.maintenance.job_scheduler import JobScheduler
from analyzer.plan.plan import Plan
from analyzer.plan.proposals import Agreement
from analyzer.sources.positions import CombinedSource, Source

log = logging.getLogger(__name__)

SETTLE_GAPS_EVERY_S = 0.5  # how soon an operator's decision on a stopped partition takes effect
WARN_EVERY_S = 60.0  # for each warning that may concern many records
SAMPLE_BYTES = 80  # of a record in a log line
BEAT_EVERY_S = 5.0  # heartbeat of the analyzer, whether or not it holds partitions
STANDING_BY_S = 0.5  # a pass of the loop while there is nothing to take
AGREE_EVERY_S = 5.0  # how soon an analyzer that cannot count by the plan in force looks at it again
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 2.0  # an outage delays counting by at most this much beyond its own length
# What stopping waits for jobs. One in the middle of a longer step is left: its transaction is rolled back.
JOBS_END_S = 2.0


class LoopObserver(Protocol):
    """Receives the events of the loop, for /readyz and /metrics."""

    def loop_completed(self, partitions: int) -> None: ...
    def flush_committed(self, result: FlushResult) -> None: ...
    def partition_lost(self) -> None: ...
    def dependency_failed(self, dependency: str, error: str) -> None: ...
    def dependency_recovered(self, dependency: str) -> None: ...
    def partitions_stopped(self, gaps: Mapping[Partition, Gap]) -> None: ...


class GapStore(Protocol):
    """Stores the gaps that stop partitions, and the operators' decisions on them."""

    def settle(self, stopped: Mapping[Partition, Gap]) -> Collection[Partition]:
        """Records the gaps of `stopped` and returns the partitions that may continue. Raises StoreAway."""


@dataclass(slots=True)
class Daemon:
    """The analyzer's loop.

    `run` uses threads; a simulation calls `run_once` in one.
    """

    pipeline: Pipeline
    agree: Callable[[], Agreement]  # on the plan to count by; raises StoreAway, SchemaBehind
    counter_for: Callable[[Plan], Counter]
    observer: LoopObserver
    random: Random
    gaps: GapStore
    jobs: JobScheduler | None = None
    beat: Callable[[], None] = lambda: None  # stores that this analyzer lives; raises StoreAway
    # Returns a new source, after this one was closed; None: it never stands by, see `adopt_plan`.
    open_source: Callable[[], Source] | None = None
    # Takes a configuration that was read again; returns whether `agree` may have another answer. No I/O.
    take_configuration: Callable[[], bool] = lambda: False
    has_to_agree: bool = False  # on a configuration that was taken
    retries: int = 0  # in the current outage of the database
    gaps_settled_s: float = float("-inf")  # uptime when stopped partitions were last settled
    beaten_s: float = float("-inf")  # uptime of the last heartbeat
    # It has released its partitions, because it cannot count by the plan in force.
    is_standing_by: bool = False
    agreed_s: float = float("-inf")  # uptime of the last attempt to agree, while it stands by
    last_warning_s: dict[str, float] = field(default_factory=dict)  # uptime of the last one, by its text

    def run(self, stopping: threading.Event) -> bool:
        """Works until `stopping` is set, then stores what is counted and releases the partitions.

        Returns whether the database could be reached for that.
        """
        tune_garbage_collector()
        if self.jobs is not None:
            self.jobs.start(stopping)
        try:
            while not stopping.is_set():
                stopping.wait(self.run_once())
        finally:
            stopping.set()
        is_stored = self.close()
        if self.jobs is not None:
            self.jobs.stop(JOBS_END_S)
        return is_stored

    def run_once(self) -> float:
        """Runs one loop and returns how many seconds to wait before the next one."""
        try:
            is_reached = self.count_and_judge()
        except DatabaseReplaced:
            raise  # it does not come back: what is written would go to a deleted file
        except StoreAway as error:
            # While the database cannot be reached nothing is read: it could not be stored, and whether the
            # last flush was stored is unknown. The stored positions show it.
            self.start_over()
            return self.back_off("database", error)
        finally:
            self.observer.loop_completed(len(self.pipeline.source.positions()))
        if self.retries and is_reached:
            self.retries = 0
            self.observer.dependency_recovered("database")
            log.info("the database can be reached again; continuing from the stored positions")
        return STANDING_BY_S if self.is_standing_by else 0.0

    def count_and_judge(self) -> bool:
        """Counts, and begins to store or has stored.

        Returns whether that shows a working database: a flush has committed, or nothing is left to store.
        Raises StoreAway.
        """
        try:
            self.send_heartbeat()
            self.reload()
            if self.is_standing_by and not self.try_to_agree():
                return True
            self.settle_gaps()
            result = self.pipeline.run_once()
        except PartitionLost as lost:
            log.warning("%s", lost)
            self.observer.partition_lost()
            self.start_over()
            return True
        except PlanChanged as changed:
            log.info("%s", changed)
            self.start_over()
            self.adopt_plan()
            return True
        self.report(result)
        return result is not None or not self.pipeline.has_unstored

    def send_heartbeat(self) -> None:
        """Stores every few seconds that this analyzer lives, and after a failure at once. Raises StoreAway.

        A database that was away may be reached again and take no write, as a standby does.

        A flush in flight stores it for its partitions, and may hold the file of a SQLite database for longer
        than another writer waits.
        """
        now_s = self.pipeline.uptime_s()
        is_due = self.retries > 0 or now_s - self.beaten_s >= BEAT_EVERY_S
        if self.pipeline.in_flight is None and is_due:
            self.beat()
            self.beaten_s = now_s
            if self.pipeline.agreement.is_waiting:
                self.propose_again()

    def propose_again(self) -> None:
        """Proposes a configuration that waited, if it need not wait any longer. Raises StoreAway."""
        try:
            is_waiting = self.agree().is_waiting
        except SchemaBehind:
            return  # another plan came in force: the next flush finds it, too
        if not is_waiting:
            self.start_over()
            self.adopt_plan()

    def reload(self) -> None:
        """Counts by a configuration that was read again. Raises StoreAway: then the next call tries it again.

        What was counted by the one before and is not stored is read again.
        """
        self.has_to_agree |= self.take_configuration()
        if not self.has_to_agree:
            return
        if self.is_standing_by:
            self.agreed_s = float("-inf")  # perhaps it can count by this one: `try_to_agree` finds out now
        else:
            self.start_over()
            self.adopt_plan()
        self.has_to_agree = False

    def report(self, result: FlushResult | None) -> None:
        """Reports a committed flush, if there is one."""
        if result is not None:
            self.observer.flush_committed(result)
            self.log_flush(result)

    def start_over(self) -> None:
        """Drops what is in memory; reports the flush that was in flight, if it has committed."""
        self.report(self.pipeline.start_over())

    def settle_gaps(self, interval_s: float = SETTLE_GAPS_EVERY_S) -> None:
        """Stores the gaps of stopped partitions and resumes those on which an operator decided.

        Raises StoreAway, and the errors of a flush in flight.
        """
        stopped = self.pipeline.source.stopped()
        self.observer.partitions_stopped(stopped)
        if not stopped or self.pipeline.uptime_s() - self.gaps_settled_s < interval_s:
            return
        self.gaps_settled_s = self.pipeline.uptime_s()
        # A decision moves the stored offset, so everything up to the gap has to be stored before.
        positions = self.pipeline.source.positions()
        reached = {part: gap for part, gap in stopped.items() if positions.get(part) == gap.position}
        if not reached:
            return
        self.report(self.pipeline.collect())  # on SQLite two writers would wait for each other
        if resumed := self.gaps.settle(reached):
            names = ", ".join(map(str, sorted(resumed)))
            log.info("resuming %s: an operator decided where to continue", names)
            self.pipeline.resume_stopped(resumed)

    def adopt_plan(self) -> bool:
        """Agrees on the plan to count by, and returns whether this analyzer can; else it stands by.

        Raises StoreAway, and without `open_source` SchemaBehind and CannotCount: an import ends.
        """
        try:
            agreement = self.agree()
            self.pipeline.adopt(agreement, self.counter_for(agreement.plan))
        except (SchemaBehind, CannotCount) as error:
            if self.open_source is None:
                raise
            self.stand_by(error)
            return False
        log_notes(agreement)
        return True

    def stand_by(self, error: AnalyzerError) -> None:
        """Releases all partitions until this analyzer can count by the plan in force."""
        if not self.is_standing_by:
            log.error("%s; this analyzer has released its partitions", error)
            self.is_standing_by = True
            self.pipeline.source.close()
            self.pipeline.source = CombinedSource([])
        self.observer.dependency_failed("plan", str(error))
        self.agreed_s = self.pipeline.uptime_s()

    def try_to_agree(self) -> bool:
        """Tries every few seconds to count again; returns whether it does. Raises StoreAway."""
        is_due = self.pipeline.uptime_s() - self.agreed_s >= AGREE_EVERY_S
        if self.open_source is None or not is_due or not self.adopt_plan():
            return False
        self.pipeline.source = self.open_source()
        self.is_standing_by = False
        self.observer.dependency_recovered("plan")
        log.info("this analyzer can count by the plan in force again")
        return True

    def back_off(self, dependency: str, error: AnalyzerError) -> float:
        """Returns the pause before the next attempt: doubled each time up to a bound, with jitter."""
        pause_s = min(RETRY_MAX_S, RETRY_FIRST_S * 2.0 ** min(self.retries, 10))
        self.retries += 1
        self.observer.dependency_failed(dependency, str(error))
        if self.retries == 1:  # once for each outage; /readyz and the metrics show that it lasts
            log.warning("%s: %s; reading is paused until it can be reached again", dependency, error)
        return pause_s * self.random.uniform(0.5, 1.0)

    def log_flush(self, result: FlushResult) -> None:
        """Logs what was judged, and at most once a minute rejected records and callers in overflow."""
        log_judged(result.judged)
        counted = result.counted
        overflow = sum(progress.overflow for progress in counted.parts)
        if overflow:
            self.warn_rarely(
                "%d of %d records are counted in overflow: more callers in this hour than are named",
                overflow,
                sum(progress.counted for progress in counted.parts),
            )
        if counted.rejected:
            records, first = sum(progress.seen for progress in counted.parts), counted.rejected[0]
            self.warn_rarely(
                "%d of %d records were rejected (gatelock upkeep rejects list); the first is %s@%d: %s: %r",
                len(counted.rejected), records,
                first.part, first.offset, first.reason, first.sample[:SAMPLE_BYTES],
            )  # fmt: skip

    def warn_rarely(self, message: str, *values: object) -> None:
        """Logs a warning, at most once a minute for each `message`, with any values."""
        now_s = self.pipeline.uptime_s()
        if now_s - self.last_warning_s.get(message, float("-inf")) >= WARN_EVERY_S:
            self.last_warning_s[message] = now_s
            log.warning(message, *values)

    def close(self) -> bool:
        """Stores what is counted, as far as that needs no waiting, and releases the partitions.

        Returns whether the database could be reached for that.
        """
        try:
            self.report(self.pipeline.collect())
            self.report(self.pipeline.flush(self.pipeline.source.lags()))
            self.settle_gaps(interval_s=0.0)
        except StoreAway as error:
            log.warning("%s; the next analyzer reads again what was not stored", error)
            return False
        except AnalyzerError as error:
            log.warning("stopped without a last flush; the next analyzer reads again: %s", error)
        finally:
            self.pipeline.source.close()
            self.pipeline.executor.close()
        return True


def log_notes(agreement: Agreement) -> None:
    """Logs in what the configuration differs from the plan, and what happens to it."""
    for note in agreement.notes:
        log.warning("%s", note)
