"""Runs the pipeline again and again: gets over what passes, and stops in good order when told."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from analyzer.core.judging.plan import Plan
from analyzer.core.model import Counter, Gap, Partition
from analyzer.errors import AnalyzerError, PartitionLost, PlanChanged, StoreAway
from analyzer.pipeline import FlushResult, Pipeline
from analyzer.warden import Warden
from gatekeeper.model import Change, Set

log = logging.getLogger(__name__)

SETTLE_GAPS_EVERY_S = 0.5  # whether somebody let a stopped partition go on
WARN_EVERY_S = 60.0  # of each thing that may be wrong with many records
SHOWN_BYTES = 80  # of a record in a line of the log
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 2.0  # so that an outage costs no more than this beyond its own length


class LoopObserver(Protocol):
    """Who is told how it goes, for /readyz and /metrics."""

    def loop_completed(self, holding: int) -> None: ...
    def flush_committed(self, flushed: FlushResult) -> None: ...
    def partition_lost(self) -> None: ...
    def locks_ended(self, changes: Sequence[Change]) -> None: ...
    def dependency_failed(self, what: str, sentence: str) -> None: ...
    def dependency_recovered(self, what: str) -> None: ...
    def partitions_stopped(self, gaps: Mapping[Partition, Gap]) -> None: ...


class GapStore(Protocol):
    """Where it is written down what waits for a person."""

    def settle(self, stopped: Mapping[Partition, Gap]) -> Collection[Partition]:
        """Write down what stopped these; those that may go on. Raises StoreAway."""


@dataclass(slots=True)
class Daemon:
    """The analyzer's loop, in one thread."""

    pipeline: Pipeline
    warden: Warden
    active_plan: Callable[[], tuple[int, Plan]]  # the plan in force; raises StoreAway
    counter_for: Callable[[Plan], Counter]
    observer: LoopObserver
    random: Random
    gaps: GapStore
    retries: int = 0
    gaps_settled_s: float = float("-inf")  # uptime when the stopped partitions were last looked at
    last_warning_s: dict[str, float] = field(default_factory=dict)  # ... and when each warning was last given

    def run(self, stopping: threading.Event) -> bool:
        """Work until `stopping` is set, then store what is counted and let the partitions go; whether the
        database was there for that."""
        tune_garbage_collector()
        while not stopping.is_set():
            stopping.wait(self.run_once())
        return self.close()

    def run_once(self) -> float:
        """One turn of the loop; how many seconds to wait before the next one."""
        try:
            self.count_and_judge()
        except StoreAway as away:
            # While the database is away nothing is read: what we hold could not be stored, and whether the
            # last flush was is not known. The stored positions will tell.
            self.pipeline.start_over()
            # An analyzer without partitions asks the database nothing but this. The next turn is to ask it
            # whatever else happens: that a turn went well would not mean that the database is back.
            self.warden.skip_wait()
            return self.back_off("database", away)
        finally:
            self.observer.loop_completed(len(self.pipeline.source.positions()))
        if self.retries:
            self.retries = 0
            self.observer.dependency_recovered("database")
            log.info("the database is back; going on from the stored positions")
        return 0.0

    def count_and_judge(self) -> None:
        """Count and store once, and end the locks that are due. Raises StoreAway."""
        self.settle_gaps()
        try:
            flushed = self.pipeline.run_once()
        except PartitionLost as lost:
            log.warning("%s", lost)
            self.observer.partition_lost()
            self.pipeline.start_over()
            return
        except PlanChanged as changed:
            log.info("%s", changed)
            self.adopt_active_plan()
            return
        if flushed is not None:
            self.observer.flush_committed(flushed)
            self.log_flush(flushed)
        changes = self.warden.run_once(self.pipeline.plan.meters)
        self.observer.locks_ended(changes)
        for change in changes:
            log.info("unlocked %s: the window of %s is over", change.at.key, change.at.policy)

    def settle_gaps(self, every_s: float = SETTLE_GAPS_EVERY_S) -> None:
        """Write down what waits for a person, and go on with what somebody decided on. Raises StoreAway."""
        stopped = self.pipeline.source.stopped()
        self.observer.partitions_stopped(stopped)
        if not stopped or self.pipeline.uptime_s() - self.gaps_settled_s < every_s:
            return
        self.gaps_settled_s = self.pipeline.uptime_s()
        # Not before all that was counted up to there is stored: the decision moves what is stored.
        stand = self.pipeline.source.positions()
        there = {part: gap for part, gap in stopped.items() if stand.get(part) == gap.position}
        if there and (free := self.gaps.settle(there)):
            log.info("going on with %s: somebody decided where", ", ".join(map(str, sorted(free))))
            self.pipeline.resume_stopped(free)

    def log_flush(self, flushed: FlushResult) -> None:
        """Log who was locked, and, once a minute, that there are records which cannot be read, or callers
        which are not counted by name."""
        for change in flushed.changes:
            if isinstance(change, Set):
                log.info("locked %s until %s: %s", change.lock.key, change.lock.until, change.lock.detail)
        counted = flushed.counted
        overflow = sum(progress.overflow for progress in counted.parts)
        if overflow:
            self.warn_rarely(
                "%d of %d records are in overflow: more callers came in this hour than are counted by name",
                overflow,
                sum(progress.counted for progress in counted.parts),
            )
        if counted.rejected:
            seen, first = sum(progress.seen for progress in counted.parts), counted.rejected[0]
            self.warn_rarely(
                "%d of %d records cannot be read (gatelock rejects list); the first is %s@%d: %s: %r",
                len(counted.rejected), seen,
                first.part, first.offset, first.reason, first.sample[:SHOWN_BYTES],
            )  # fmt: skip

    def warn_rarely(self, sentence: str, *about: object) -> None:
        """Log this, of each sentence once a minute, whatever it is about."""
        now_s = self.pipeline.uptime_s()
        if now_s - self.last_warning_s.get(sentence, float("-inf")) >= WARN_EVERY_S:
            self.last_warning_s[sentence] = now_s
            log.warning(sentence, *about)

    def adopt_active_plan(self) -> None:
        """Count under the plan that is in force now; what was counted under ours is read again."""
        self.pipeline.start_over()
        self.pipeline.version, self.pipeline.plan = self.active_plan()
        self.pipeline.counter = self.counter_for(self.pipeline.plan)

    def back_off(self, what: str, error: AnalyzerError) -> float:
        delay_s = min(RETRY_MAX_S, RETRY_FIRST_S * 2.0 ** min(self.retries, 10))
        self.retries += 1
        self.observer.dependency_failed(what, str(error))
        if self.retries == 1:  # once per outage; /readyz and the metrics show that it lasts
            log.warning("%s: %s; reading stops until it is back", what, error)
        return delay_s * self.random.uniform(0.5, 1.0)

    def close(self) -> bool:
        """Store what is counted, if that is possible without waiting for anybody, and let everything go;
        whether the database was there for that."""
        try:
            self.pipeline.flush(self.pipeline.source.lags())
            self.settle_gaps(every_s=0.0)
            self.warden.close()
        except StoreAway as away:
            log.warning("%s; what was not stored is read again by the next analyzer", away)
            return False
        except AnalyzerError as error:
            log.warning("stopped without a last flush, the next analyzer reads it again: %s", error)
        finally:
            self.pipeline.source.close()
        return True


def tune_garbage_collector() -> None:
    """Let the cyclic garbage collector look less often: a flush makes a hundred thousand tuples that live for
    a second and are in no cycle, and each look at them costs more than making them did."""
    gc.collect()
    gc.freeze()  # modules and settings stay; nobody need look at them again
    gc.set_threshold(100_000, 50, 100)
