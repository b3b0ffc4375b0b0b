"""The whole analyzer on one screen: take, count, and store together what must agree."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Protocol

from analyzer.core.counting.meters import Meter
from analyzer.core.judging.judge import JudgedSeries, Standing, changes, lock_key, totals_of
from analyzer.core.judging.plan import Plan
from analyzer.core.model import (
    Counter,
    CounterState,
    CountRow,
    DrainedCounts,
    FeedResult,
    Gap,
    Lag,
    Partition,
    PartitionProgress,
    PartitionRevoked,
    Records,
    RecordSet,
    Rejected,
)
from analyzer.sources import Source
from gatekeeper.model import Change, Lock, LockKey

SHOWN_BYTES = 120  # of a record in a sentence
# Of the time between flushes. Kafka answers at the same pace, and what came with an answer a moment too early
# would wait for the next one.
SOON = 0.8


class FlushTransaction(Protocol):
    """One transaction; its methods are called in this order. Raises StoreAway anywhere."""

    def move_offsets(self, parts: Sequence[PartitionProgress], lags: Mapping[Partition, Lag]) -> None: ...
    def agree_with(self, version: int) -> datetime: ...
    def add_totals(self, grown: Mapping[JudgedSeries, int], limits: Mapping[str, int]) -> list[Standing]:
        """The series that have reached the limit of their policy, this flush included."""

    def add_counts(self, rows: Sequence[CountRow], meters: Collection[Meter]) -> None: ...
    def set_aside(self, rejected: Sequence[Rejected], now: datetime) -> None: ...
    def locks(self, keys: Collection[LockKey]) -> dict[LockKey, Lock]: ...
    def publish(self, changes: Sequence[Change]) -> int | None: ...


class Store(Protocol):
    """Where counts, offsets and locks are kept together."""

    def transaction(self) -> AbstractContextManager[FlushTransaction]:
        """All or nothing. When it raises StoreAway it is not known which."""

    def carried(self, part: Partition) -> CounterState:
        """What counting the next record of `part` depends on. Raises StoreAway."""


@dataclass(frozen=True, slots=True)
class FlushPace:
    """How often to flush. A lock lags its request by one flush; a backlog is cheaper in larger ones."""

    flush_every_s: float = 0.1
    flush_behind_s: float = 1.0  # ... when some partition is further behind than this
    heartbeat_every_s: float = 1.0  # an idle partition says this often that somebody follows it


class FlushResult(NamedTuple):
    """What one transaction stored."""

    counted: DrainedCounts
    lags: Mapping[Partition, Lag]
    changes: Sequence[Change]
    seconds: float


@dataclass(slots=True)
class Pipeline:
    """Counts what a source gives under one agreed plan. Everything it holds in memory may be dropped at any
    moment: after an error call `start_over`, and the stored positions say where to go on."""

    source: Source
    counter: Counter
    store: Store
    plan: Plan
    version: int  # the plan's
    uptime_s: Callable[[], float]
    pace: FlushPace = field(default_factory=FlushPace)
    flushed_s: float = float("-inf")  # uptime when the last flush began
    heartbeats_s: dict[Partition, float] = field(default_factory=dict)  # ... the last that named it
    resumed: set[Partition] = field(default_factory=set)  # of which the counter has what is carried on

    def run_once(self) -> FlushResult | None:
        """Take what is there, waiting at most until the next flush is due, and store it if one is. Raises
        PartitionLost, PlanChanged, StoreAway, and what the source raises; nothing is stored then, or it is
        not known."""
        for taken in self.source.take(self.left_s()):
            if isinstance(taken, PartitionRevoked):
                self.forget(taken.part)
            else:
                self.count(taken)
        lags = self.source.lags()
        return self.flush(lags) if self.due(lags) else None

    def left_s(self) -> float:
        """Until the next flush: what comes just before it must not wait for more to come."""
        left_s = self.flushed_s + self.pace.flush_every_s - self.uptime_s()
        return left_s if left_s > 0 else self.pace.flush_every_s

    def count(self, taken: RecordSet | Records) -> None:
        """Count what was taken; stop its partition where that must not go on. Raises StoreAway."""
        if taken.part not in self.resumed:
            self.counter.resume(taken.part, self.store.carried(taken.part))
            self.resumed.add(taken.part)
        fed = self.counter.feed(taken)
        if fed.status != "ok":
            self.source.stop(taken.part, gap_of(taken.part, fed))

    def forget(self, part: Partition) -> None:
        self.counter.forget(part)
        self.resumed.discard(part)
        self.heartbeats_s.pop(part, None)

    def due(self, lags: Mapping[Partition, Lag]) -> bool:
        behind = max((lag.seconds for lag in lags.values()), default=0.0) > self.pace.flush_behind_s
        every_s = self.pace.flush_behind_s if behind else self.pace.flush_every_s
        return self.counter.full() or self.uptime_s() - self.flushed_s >= SOON * every_s

    def flush(self, lags: Mapping[Partition, Lag]) -> FlushResult | None:
        """Store what was counted, and that we live; None when there is nothing to say."""
        began_s = self.uptime_s()
        counted = self.counter.drain()
        parts = [*counted.parts, *self.idle(counted.parts, began_s)]
        if not parts:
            return None  # and what comes now need not wait
        self.flushed_s = began_s
        with self.store.transaction() as tx:
            tx.move_offsets(parts, lags)  # first: raises PartitionLost, nothing touched
            now = tx.agree_with(self.version)
            reached = tx.add_totals(totals_of(self.plan, counted.rows), self.plan.limits)
            tx.add_counts(counted.rows, self.plan.meters)
            tx.set_aside(counted.rejected, now)
            locks = tx.locks([lock_key(standing.series) for standing in reached])
            changed = changes(self.plan, reached, locks, now)
            tx.publish(changed)
        self.heartbeats_s.update((progress.part, began_s) for progress in parts)
        self.source.acknowledge({progress.part: progress.next for progress in counted.parts})
        # Of what was read to its end nothing need be known; what waits for a person may go on elsewhere.
        for part in self.resumed - (self.source.positions().keys() - self.source.stopped().keys()):
            self.forget(part)
        return FlushResult(counted, lags, changed, self.uptime_s() - began_s)

    def idle(self, busy: Collection[PartitionProgress], now_s: float) -> list[PartitionProgress]:
        """Partitions that gave nothing, and of which nobody has heard for a while."""
        said = {progress.part for progress in busy}
        return [
            PartitionProgress(part, offset, offset)
            for part, offset in self.source.positions().items()
            if part not in said
            and now_s - self.heartbeats_s.get(part, float("-inf")) >= self.pace.heartbeat_every_s
        ]

    def go_on(self, parts: Collection[Partition]) -> None:
        """Somebody let these go on: from the stored positions."""
        for part in parts:
            self.forget(part)
        self.source.rewind(parts)

    def start_over(self) -> None:
        """Forget all that is in memory and not stored, and go on from the stored positions."""
        for part in list(self.resumed):
            self.forget(part)
        self.heartbeats_s.clear()
        self.source.rewind()


def gap_of(part: Partition, fed: FeedResult) -> Gap:
    """What a record set that was refused in part leaves."""
    if fed.status == "ok":
        raise ValueError("nothing was refused")
    # What a damaged batch says of its own end is not to be believed: the source finds out.
    known = fed.status != "corrupt" and fed.skip_to > fed.next
    return Gap(fed.status, fed.next, fed.skip_to if known else None, refusal(part, fed))


def refusal(part: Partition, fed: FeedResult) -> str:
    if fed.first is not None:
        return (
            f"too many records in a row cannot be read, up to offset {fed.skip_to}; the first, at offset "
            f"{fed.bad}: {fed.first.reason}: {fed.first.sample[:SHOWN_BYTES]!r}; mend the mapping and start "
            f"the analyzer again, or set them aside: gatelock gaps accept '{part}' --to next --reason TEXT"
        )
    what = {
        "corrupt": "a batch is damaged",
        "too-large": "a batch expands beyond the bound",
        "unsupported": "a batch is of an unknown format",
    }
    beyond = f", the next begins at {fed.skip_to}" if fed.skip_to >= 0 and fed.status != "corrupt" else ""
    return f"{what.get(fed.status, fed.status)}: offset {fed.bad}{beyond}"
