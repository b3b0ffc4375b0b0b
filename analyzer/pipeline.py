"""One pass of the analyzer: takes records, counts them, and stores counts, offsets and locks together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Protocol

from analyzer.core.judging.plan import Plan
from analyzer.core.model import (
    Counter,
    CounterState,
    DrainedCounts,
    FeedResult,
    Gap,
    Lag,
    Partition,
    PartitionProgress,
    PartitionRevoked,
    Records,
    RecordSet,
)
from analyzer.sources import Source
from gatekeeper.model import Change

SHOWN_BYTES = 120  # of a record in a message
# A flush is due after this share of its interval. Kafka answers at the same pace, and an answer that comes
# just before the interval is over would otherwise wait for the next one.
DUE_SHARE = 0.8


class FlushTransaction(Protocol):
    """One transaction; its methods are called in this order. Each may raise StoreAway."""

    def move_offsets(self, parts: Sequence[PartitionProgress], lags: Mapping[Partition, Lag]) -> None:
        """Moves the stored offsets. Raises PartitionLost when another analyzer has moved one."""

    def check_plan(self, version: int) -> datetime:
        """Returns the database's time. Raises PlanChanged when another plan is in force."""

    def apply(self, plan: Plan, version: int, counted: DrainedCounts, now: datetime) -> Sequence[Change]:
        """Stores what was counted, judges it and publishes the locks that change; returns the changes."""


class Store(Protocol):
    """Keeps counts, offsets and locks together."""

    def transaction(self) -> AbstractContextManager[FlushTransaction]:
        """Opens a transaction, which commits at the end. After StoreAway its outcome is unknown."""

    def counter_state(self, part: Partition) -> CounterState:
        """Returns the state that counting the next record of `part` depends on. Raises StoreAway."""


@dataclass(frozen=True, slots=True)
class FlushPace:
    """Intervals of flushes. A short one makes locks prompt; a long one counts a backlog at less cost."""

    flush_every_s: float = 0.1
    flush_behind_s: float = 1.0  # while a partition is further behind than `behind_after_s`
    behind_after_s: float = 1.0
    heartbeat_every_s: float = 1.0  # of an idle partition


class FlushResult(NamedTuple):
    """Result of one committed transaction."""

    counted: DrainedCounts
    lags: Mapping[Partition, Lag]
    changes: Sequence[Change]
    seconds: float


@dataclass(slots=True)
class Pipeline:
    """Counts the records of a source by one plan.

    Everything in memory may be dropped at any moment: after an error call `start_over`, and counting
    continues from the stored positions.
    """

    source: Source
    counter: Counter
    store: Store
    plan: Plan
    version: int  # the plan's
    uptime_s: Callable[[], float]
    pace: FlushPace = field(default_factory=FlushPace)
    flushed_s: float = float("-inf")  # uptime when the last flush began
    heartbeats_s: dict[Partition, float] = field(default_factory=dict)  # uptime of the last flush with it
    resumed: set[Partition] = field(default_factory=set)  # the counter has the state of these

    def run_once(self) -> FlushResult | None:
        """Takes the records that are there, and flushes if it is time; waits at most until the next flush.

        Raises PartitionLost, PlanChanged, StoreAway, and the errors of the source. Nothing is stored then, or
        the outcome is unknown.
        """
        for taken in self.source.take(self.wait_s()):
            if isinstance(taken, PartitionRevoked):
                self.forget(taken.part)
            else:
                self.count(taken)
        lags = self.source.lags()
        return self.flush(lags) if self.is_due(lags) else None

    def wait_s(self) -> float:
        """Time until the next flush: records that come just before it must not wait for others."""
        left_s = self.flushed_s + self.pace.flush_every_s - self.uptime_s()
        return left_s if left_s > 0 else self.pace.flush_every_s

    def count(self, taken: RecordSet | Records) -> None:
        """Counts a record set; stops its partition where a batch or a run of records is refused."""
        if taken.part not in self.resumed:
            self.counter.resume(taken.part, self.store.counter_state(taken.part))
            self.resumed.add(taken.part)
        result = self.counter.feed(taken)
        if result.status != "ok":
            self.source.stop(taken.part, gap_of(taken.part, result))

    def forget(self, part: Partition) -> None:
        self.counter.forget(part)
        self.resumed.discard(part)
        self.heartbeats_s.pop(part, None)

    def is_due(self, lags: Mapping[Partition, Lag]) -> bool:
        behind = max((lag.seconds for lag in lags.values()), default=0.0) > self.pace.behind_after_s
        every_s = self.pace.flush_behind_s if behind else self.pace.flush_every_s
        return self.counter.full() or self.uptime_s() - self.flushed_s >= DUE_SHARE * every_s

    def flush(self, lags: Mapping[Partition, Lag]) -> FlushResult | None:
        """Stores what was counted, and heartbeats of idle partitions; None when there is neither."""
        began_s = self.uptime_s()
        counted = self.counter.drain()
        parts = [*counted.parts, *self.idle(counted.parts, began_s)]
        if not parts:
            return None  # without moving `flushed_s`: the next records need not wait
        self.flushed_s = began_s
        with self.store.transaction() as transaction:
            transaction.move_offsets(parts, lags)  # first: after PartitionLost nothing has been touched
            now = transaction.check_plan(self.version)
            changes = transaction.apply(self.plan, self.version, counted, now)
        self.heartbeats_s.update((progress.part, began_s) for progress in parts)
        self.source.acknowledge({progress.part: progress.next for progress in counted.parts})
        # Partitions that were read to their end need no state; stopped ones may be moved by an operator.
        for part in self.resumed - (self.source.positions().keys() - self.source.stopped().keys()):
            self.forget(part)
        return FlushResult(counted, lags, changes, self.uptime_s() - began_s)

    def idle(self, busy: Collection[PartitionProgress], now_s: float) -> list[PartitionProgress]:
        """Heartbeats of partitions that had no records and whose last heartbeat is due again."""
        in_flush = {progress.part for progress in busy}
        return [
            PartitionProgress(part, offset, offset)
            for part, offset in self.source.positions().items()
            if part not in in_flush
            and now_s - self.heartbeats_s.get(part, float("-inf")) >= self.pace.heartbeat_every_s
        ]

    def resume_stopped(self, parts: Collection[Partition]) -> None:
        """Continues stopped partitions from their stored positions, after an operator's decision."""
        for part in parts:
            self.forget(part)
        self.source.rewind(parts)

    def start_over(self) -> None:
        """Drops everything in memory that is not stored, and continues from the stored positions."""
        for part in list(self.resumed):
            self.forget(part)
        self.heartbeats_s.clear()
        self.source.rewind()


def gap_of(part: Partition, result: FeedResult) -> Gap:
    """Returns the gap that a partly refused record set leaves. Raises ValueError when nothing was refused."""
    if result.status == "ok":
        raise ValueError("nothing was refused")
    # A damaged batch is not trusted about its own end: the source finds out.
    is_end_known = result.status != "corrupt" and result.skip_to > result.next
    return Gap(result.status, result.next, result.skip_to if is_end_known else None, refusal(part, result))


def refusal(part: Partition, result: FeedResult) -> str:
    """Returns the sentence for the operator: what was refused, where, and what to do."""
    if result.first is not None:
        return (
            f"too many records in a row cannot be read, up to offset {result.skip_to}; the first, at offset "
            f"{result.bad}: {result.first.reason}: {result.first.sample[:SHOWN_BYTES]!r}; correct the "
            "mapping and restart the analyzer, or reject them one by one: "
            f"gatelock gaps accept '{part}' --to next --reason TEXT"
        )
    what = {
        "corrupt": "a batch is damaged",
        "too-large": "a batch expands beyond the bound",
        "unsupported": "a batch has an unknown format",
    }
    beyond = ""
    if result.skip_to >= 0 and result.status != "corrupt":
        beyond = f", the next one begins at {result.skip_to}"
    return f"{what.get(result.status, result.status)}: offset {result.bad}{beyond}"
