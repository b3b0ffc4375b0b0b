"""The analyzer's loop: runs the pipeline and the warden, recovers from outages, stops in good order.

`run` repeats `run_once` until it has to stop; `count_and_judge` is one loop when nothing fails:

    settle gaps        record what stops a partition; resume partitions on which an operator decided
    pipeline.run_once  read, count, and store together: counts, offsets, locks
    warden.run_once    end the locks that are due

Three errors are expected. Each one drops what is in memory and continues from the stored positions:

    PartitionLost      another analyzer stored the partition's offset: read again
    PlanChanged        another plan is in force: adopt it, read again
    StoreAway          the database cannot be reached: wait with growing pauses, read again

Any other error is a bug and ends the process.
"""

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

SETTLE_GAPS_EVERY_S = 0.5  # how soon an operator's decision on a stopped partition takes effect
WARN_EVERY_S = 60.0  # for each warning that may concern many records
SAMPLE_BYTES = 80  # of a record in a log line
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 2.0  # an outage delays counting by at most this much beyond its own length


class LoopObserver(Protocol):
    """Receives the events of the loop, for /readyz and /metrics."""

    def loop_completed(self, partitions: int) -> None: ...
    def flush_committed(self, result: FlushResult) -> None: ...
    def partition_lost(self) -> None: ...
    def locks_ended(self, changes: Sequence[Change]) -> None: ...
    def dependency_failed(self, dependency: str, error: str) -> None: ...
    def dependency_recovered(self, dependency: str) -> None: ...
    def partitions_stopped(self, gaps: Mapping[Partition, Gap]) -> None: ...


class GapStore(Protocol):
    """Stores the gaps that stop partitions, and the operators' decisions on them."""

    def settle(self, stopped: Mapping[Partition, Gap]) -> Collection[Partition]:
        """Records the gaps of `stopped` and returns the partitions that may continue. Raises StoreAway."""


@dataclass(slots=True)
class Daemon:
    """The analyzer's loop, in one thread."""

    pipeline: Pipeline
    warden: Warden
    active_plan: Callable[[], tuple[int, Plan]]  # version and plan in force; raises StoreAway
    counter_for: Callable[[Plan], Counter]
    observer: LoopObserver
    random: Random
    gaps: GapStore
    retries: int = 0  # in the current outage of the database
    gaps_settled_s: float = float("-inf")  # uptime when stopped partitions were last settled
    last_warning_s: dict[str, float] = field(default_factory=dict)  # uptime of the last one, by its text

    def run(self, stopping: threading.Event) -> bool:
        """Works until `stopping` is set, then stores what is counted and releases the partitions.

        Returns whether the database could be reached for that.
        """
        tune_garbage_collector()
        while not stopping.is_set():
            stopping.wait(self.run_once())
        return self.close()

    def run_once(self) -> float:
        """Runs one loop and returns how many seconds to wait before the next one."""
        try:
            self.count_and_judge()
        except StoreAway as error:
            # While the database cannot be reached nothing is read: it could not be stored, and whether the
            # last flush was stored is unknown. The stored positions show it.
            self.pipeline.start_over()
            # An analyzer that holds no partition reaches the database only through the warden. Without this
            # the next loop might ask nothing, succeed, and report a recovery that did not happen.
            self.warden.skip_wait()
            return self.back_off("database", error)
        finally:
            self.observer.loop_completed(len(self.pipeline.source.positions()))
        if self.retries:
            self.retries = 0
            self.observer.dependency_recovered("database")
            log.info("the database can be reached again; continuing from the stored positions")
        return 0.0

    def count_and_judge(self) -> None:
        """Counts and stores once, and ends the locks that are due. Raises StoreAway."""
        self.settle_gaps()
        try:
            result = self.pipeline.run_once()
        except PartitionLost as lost:
            log.warning("%s", lost)
            self.observer.partition_lost()
            self.pipeline.start_over()
            return
        except PlanChanged as changed:
            log.info("%s", changed)
            self.adopt_active_plan()
            return
        if result is not None:
            self.observer.flush_committed(result)
            self.log_flush(result)
        changes = self.warden.run_once(self.pipeline.plan.meters)
        self.observer.locks_ended(changes)
        for change in changes:
            log.info("unlocked %s: its lock by %s has ended", change.at.key or "everyone", change.at.policy)

    def settle_gaps(self, interval_s: float = SETTLE_GAPS_EVERY_S) -> None:
        """Stores the gaps of stopped partitions and resumes those on which an operator decided.

        Raises StoreAway.
        """
        stopped = self.pipeline.source.stopped()
        self.observer.partitions_stopped(stopped)
        if not stopped or self.pipeline.uptime_s() - self.gaps_settled_s < interval_s:
            return
        self.gaps_settled_s = self.pipeline.uptime_s()
        # A decision moves the stored offset, so everything up to the gap has to be stored before.
        positions = self.pipeline.source.positions()
        reached = {part: gap for part, gap in stopped.items() if positions.get(part) == gap.position}
        if reached and (resumed := self.gaps.settle(reached)):
            names = ", ".join(map(str, sorted(resumed)))
            log.info("resuming %s: an operator decided where to continue", names)
            self.pipeline.resume_stopped(resumed)

    def adopt_active_plan(self) -> None:
        """Switches to the plan in force; what was counted under the old one is read again."""
        self.pipeline.start_over()
        self.pipeline.version, self.pipeline.plan = self.active_plan()
        self.pipeline.counter = self.counter_for(self.pipeline.plan)

    def back_off(self, dependency: str, error: AnalyzerError) -> float:
        """Returns the pause before the next attempt: doubled each time up to a bound, with jitter."""
        pause_s = min(RETRY_MAX_S, RETRY_FIRST_S * 2.0 ** min(self.retries, 10))
        self.retries += 1
        self.observer.dependency_failed(dependency, str(error))
        if self.retries == 1:  # once for each outage; /readyz and the metrics show that it lasts
            log.warning("%s: %s; reading is paused until it can be reached again", dependency, error)
        return pause_s * self.random.uniform(0.5, 1.0)

    def log_flush(self, result: FlushResult) -> None:
        """Logs new locks, and at most once a minute rejected records and callers in overflow."""
        for change in result.changes:
            if isinstance(change, Set):
                log.info("locked %s until %s: %s", change.lock.key, change.lock.until, change.lock.detail)
        counted = result.counted
        overflow = sum(progress.overflow for progress in counted.parts)
        if overflow:
            self.warn_rarely(
                "%d of %d records are counted in overflow: more callers in this hour than are named",
                overflow,
                sum(progress.counted for progress in counted.parts),
            )
        if counted.rejected:
            seen, first = sum(progress.seen for progress in counted.parts), counted.rejected[0]
            self.warn_rarely(
                "%d of %d records were rejected (gatelock rejects list); the first is %s@%d: %s: %r",
                len(counted.rejected), seen,
                first.part, first.offset, first.reason, first.sample[:SAMPLE_BYTES],
            )  # fmt: skip

    def warn_rarely(self, message: str, *values: object) -> None:
        """Logs a warning, at most once a minute for each `message`, with any values."""
        now_s = self.pipeline.uptime_s()
        if now_s - self.last_warning_s.get(message, float("-inf")) >= WARN_EVERY_S:
            self.last_warning_s[message] = now_s
            log.warning(message, *values)

    def close(self) -> bool:
        """Stores what is counted, as far as that needs no waiting, and releases the partitions and the lease.

        Returns whether the database could be reached for that.
        """
        try:
            self.pipeline.flush(self.pipeline.source.lags())
            self.settle_gaps(interval_s=0.0)
            self.warden.close()
        except StoreAway as error:
            log.warning("%s; the next analyzer reads again what was not stored", error)
            return False
        except AnalyzerError as error:
            log.warning("stopped without a last flush; the next analyzer reads again: %s", error)
        finally:
            self.pipeline.source.close()
        return True


def tune_garbage_collector() -> None:
    """Makes cyclic garbage collection rare.

    A flush creates a hundred thousand tuples that live for a second and are part of no cycle. With the
    default thresholds, scanning them costs more than creating them.
    """
    gc.collect()
    gc.freeze()  # modules and settings live as long as the process: never scan them again
    gc.set_threshold(100_000, 50, 100)
