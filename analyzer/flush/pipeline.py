"""One pass of the analyzer: takes records, counts them, and stores counts, offsets and locks together.

A flush runs while the next record sets are taken and counted, if the executor has a thread for it:

    loop thread     count A | drain A | count B                   | collect A | drain B | count C ...
    flush thread              store A in one transaction, commit                store B ...

One flush is in flight at a time, and the next one is drained only after its outcome was collected. So the
transactions of a partition commit in the order of its offsets, and each starts where the one before ended.
Sources and counter are used by the loop thread alone. The outcome of a flush, an error included, appears in
the loop thread, in `run_once`, `collect` or `flush`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Protocol

from analyzer.flush.flush_executors import InlineFlushes
from analyzer.flush.turn_budget import BUDGET_S_MAX, BUDGET_S_MIN, TURN_S, TurnCost, next_budget_s
from analyzer.judging.judge import Judged
from analyzer.kernel.errors import AnalyzerError
from analyzer.kernel.flush_steps import NO_STEPS, StepTimes
from analyzer.kernel.model import (
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
    Rejected,
)
from analyzer.plan.plan import Plan
from analyzer.plan.proposals import Agreement
from analyzer.sources.positions import Source

SHOWN_BYTES = 120  # of a record in a message
# While a flush is in flight the loop waits for records no longer than this before it looks whether the
# flush has ended.
FLUSH_POLL_S = 0.02
# Records are not taken any longer while a flush takes more than this: the loop waits for it, as the watchdog
# expects of a database that hangs.
FLUSH_ALONE_S = 5.0
# A proposed plan comes in force with the first flush that counted by it, or, while there is nothing to count,
# with a heartbeat this long after it was made: a crash loop must not change the plan.
PROPOSAL_IDLE_S = 10.0
# A flush is due after this share of its interval. Kafka answers at the same pace, and an answer that comes
# just before the interval is over would otherwise wait for the next one.
DUE_SHARE = 0.8
NO_COST = TurnCost(0.0, 0.0, 0.0)


class FlushTransaction(Protocol):
    """One transaction; its methods are called in this order. Each may raise StoreAway."""

    def move_offsets(self, parts: Sequence[PartitionProgress], lags: Mapping[Partition, Lag]) -> None:
        """Moves the stored offsets. Raises PartitionLost when another analyzer has moved one."""

    def check_plan(self, plan: Plan, version: int) -> datetime:
        """Returns the database's time. Raises PlanChanged when another plan is in force."""

    def put_in_force(self, agreement: Agreement) -> tuple[int, datetime]:
        """Puts the proposed plan in force, in place of `check_plan`; returns its version and the time.

        Raises PlanChanged when the plan that it was proposed to is not in force any more.
        """

    def apply(self, plan: Plan, version: int, counted: DrainedCounts, now: datetime) -> Judged:
        """Stores what was counted, judges it and publishes the locks that change; returns what was judged."""

    @property
    def disbelieved(self) -> Mapping[str, int]:
        """Requests that are logged as denied and that `apply` counted as admitted, by source.

        No lock supports their verdict.
        """

    @property
    def denied(self) -> Mapping[tuple[str, str], int]:
        """Requests that are logged as denied and were counted so by `apply`, by source and policy."""

    @property
    def steps(self) -> StepTimes:
        """The durations of the steps of the transaction, so far."""


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
    judged: Judged
    seconds: float
    in_force: Agreement | None = None  # the proposal that came in force with this transaction
    disbelieved: Mapping[str, int] = {}  # see `FlushTransaction`
    now: datetime | None = None  # the database's time in the transaction
    denied: Mapping[tuple[str, str], int] = {}  # see `FlushTransaction`
    steps: StepTimes = NO_STEPS
    cpu_s: float = 0.0  # CPU time of the thread that stored it


class FlushExecutor(Protocol):
    """Runs flushes, each after the one before. `analyzer.flush.flush_executors` has two."""

    def submit(self, flush: Callable[[], FlushResult], /) -> Future[FlushResult]:
        """Runs `flush`, now or later, in this thread or another one; the future has its result or error."""

    def cpu_s(self) -> float:
        """Returns the CPU time of the thread, in seconds; 0 without one. Any thread."""

    def close(self) -> None:
        """Ends the thread, if there is one. Nothing may be submitted afterwards."""


@dataclass(slots=True)
class Pipeline:
    """Counts the records of a source by one plan.

    Everything in memory may be dropped at any moment: after an error call `start_over`, and counting
    continues from the stored positions.
    """

    source: Source
    counter: Counter
    store: Store
    agreement: Agreement  # the plan that is counted by, and the one in force
    uptime_s: Callable[[], float]
    pace: FlushPace = field(default_factory=FlushPace)
    executor: FlushExecutor = field(default_factory=InlineFlushes)
    in_flight: Future[FlushResult] | None = None  # the flush whose outcome is not collected yet
    flushed_s: float = float("-inf")  # uptime when the last flush began
    heartbeats_s: dict[Partition, float] = field(default_factory=dict)  # uptime of the last flush with it
    resumed: set[Partition] = field(default_factory=set)  # the counter has the state of these
    # The first of the records that stopped a partition; a message shows what the mapping misses in it.
    unreadable: dict[Partition, Rejected] = field(default_factory=dict)
    undrained: set[Partition] = field(default_factory=set)  # counted since the last flush was drained
    budget_s: float = BUDGET_S_MAX  # how long the loop may count towards one flush
    # Seconds, and CPU seconds, of counting since the last flush was drained, and of the flush in flight.
    counting: TurnCost = NO_COST
    flushing: TurnCost = NO_COST
    agreed_s: float = field(init=False)  # uptime of the agreement

    def __post_init__(self) -> None:
        self.agreed_s = self.uptime_s()

    @property
    def plan(self) -> Plan:
        """The plan that records are counted by."""
        return self.agreement.plan

    def run_once(self) -> FlushResult | None:
        """Takes the records that are there, and begins a flush if it is time; waits at most until then.

        Returns the result of a flush that has ended since the last call, or None. Raises PartitionLost,
        PlanChanged, StoreAway, and the errors of the source. Nothing is stored then, or the outcome is
        unknown.
        """
        began_s = self.uptime_s()
        for item in self.source.take(self.wait_s()):
            if isinstance(item, PartitionRevoked):
                self.forget(item.part)
                continue
            self.count(item)
            if self.is_full or self.uptime_s() - began_s > TURN_S:
                break  # the source keeps what is left
        lags = self.source.lags()
        result = self.collect(self.patience_s(lags))
        if self.in_flight is None and self.is_due(lags):
            self.begin_flush(lags)
            result = result or self.collect(self.patience_s(lags))
        return result

    @property
    def has_unstored(self) -> bool:
        """Whether something was counted of which it is not known that it is stored."""
        return self.in_flight is not None or bool(self.undrained)

    @property
    def is_full(self) -> bool:
        """Whether the next flush holds as much as it may: nothing is taken before it is drained."""
        return self.counter.full() or self.counting.loop_s >= self.budget_s

    def wait_s(self) -> float:
        """Returns how long to wait for records: until the next flush, so that it is not late for others."""
        if self.in_flight is not None:
            return FLUSH_POLL_S
        left_s = self.flushed_s + self.pace.flush_every_s - self.uptime_s()
        return left_s if left_s > 0 else self.pace.flush_every_s

    def patience_s(self, lags: Mapping[Partition, Lag]) -> float | None:
        """Returns how long to wait for the flush in flight; None: until it ends.

        While there are records to take the loop does not wait, unless the next flush is full or this one
        takes too long.
        """
        if self.is_full or self.uptime_s() - self.flushed_s > FLUSH_ALONE_S:
            return None
        return 0.0 if any(lag.records for lag in lags.values()) else self.pace.flush_every_s

    def count(self, records: RecordSet | Records) -> None:
        """Counts a record set; stops its partition where a batch or a run of records is refused."""
        if records.part not in self.resumed:
            self.counter.resume(records.part, self.store.counter_state(records.part))
            self.resumed.add(records.part)
        self.undrained.add(records.part)
        began_s, began_cpu_s = self.uptime_s(), time.thread_time()
        result = self.counter.feed(records)
        self.note_cost(began_s, began_cpu_s)
        if result.status != "ok":
            if result.first is not None:
                self.unreadable[records.part] = result.first
            self.source.stop(records.part, refused_gap(records.part, result))

    def note_cost(self, began_s: float, began_cpu_s: float) -> None:
        """Adds what the loop has computed since `began_s` to the cost of the next flush."""
        loop_s, loop_cpu_s, _ = self.counting
        self.counting = TurnCost(
            loop_s + self.uptime_s() - began_s, loop_cpu_s + time.thread_time() - began_cpu_s, 0.0
        )

    def forget(self, part: Partition) -> None:
        self.counter.forget(part)
        self.resumed.discard(part)
        self.undrained.discard(part)
        self.heartbeats_s.pop(part, None)

    def is_due(self, lags: Mapping[Partition, Lag]) -> bool:
        behind = max((lag.seconds for lag in lags.values()), default=0.0) > self.pace.behind_after_s
        every_s = self.pace.flush_behind_s if behind else self.pace.flush_every_s
        return self.is_full or self.uptime_s() - self.flushed_s >= DUE_SHARE * every_s

    def flush(self, lags: Mapping[Partition, Lag]) -> FlushResult | None:
        """Stores what was counted, and heartbeats of idle partitions; None when there is neither.

        Returns after the commit. The outcome of a flush in flight must have been collected. Raises as
        `run_once`.
        """
        self.begin_flush(lags)
        return self.collect()

    def begin_flush(self, lags: Mapping[Partition, Lag]) -> None:
        """Begins to store what was counted, and heartbeats of idle partitions, if there is either."""
        if self.in_flight is not None:
            raise RuntimeError("a flush is in flight: collect its outcome first")
        began_s, began_cpu_s = self.uptime_s(), time.thread_time()
        counted = self.counter.drain()
        self.undrained.clear()
        self.note_cost(began_s, began_cpu_s)
        self.flushing, self.counting = self.counting, NO_COST
        parts = [*counted.parts, *self.idle(counted.parts, began_s)]
        if not parts:
            return  # without moving `flushed_s`: the next records need not wait
        self.flushed_s = began_s
        self.heartbeats_s.update((progress.part, began_s) for progress in parts)
        agreement = self.agreement
        is_idle_long = began_s - self.agreed_s >= PROPOSAL_IDLE_S and not counted.parts
        is_activated = agreement.is_proposal and (
            is_idle_long or any(progress.counted for progress in counted.parts)
        )

        def store() -> FlushResult:
            flush_cpu_s = time.thread_time()
            with self.store.transaction() as transaction:
                steps = transaction.steps
                transaction.move_offsets(parts, lags)  # first: after PartitionLost nothing has been touched
                steps.ended("offsets")
                if is_activated:
                    version, now = transaction.put_in_force(agreement)
                    in_force = Agreement.of(version, agreement.plan)
                else:
                    version, in_force = agreement.version, None
                    now = transaction.check_plan(agreement.in_force, version)
                steps.ended("plan")
                plan = agreement.in_force if in_force is None else in_force.plan
                judged = transaction.apply(plan, version, counted, now)
                disbelieved, denied = transaction.disbelieved, transaction.denied
            steps.ended("commit")
            seconds = self.uptime_s() - began_s
            cpu_s = time.thread_time() - flush_cpu_s
            return FlushResult(
                counted, lags, judged, seconds, in_force, disbelieved, now, denied, steps, cpu_s
            )

        self.in_flight = self.executor.submit(store)

    def collect(self, timeout_s: float | None = None) -> FlushResult | None:
        """Returns the result of the flush in flight; None without one, or while it has not ended.

        Waits for its end at most `timeout_s` seconds, None: until then. Raises as `run_once`.
        """
        flush = self.in_flight
        if flush is None:
            return None
        try:
            result = flush.result(timeout_s)
        except TimeoutError:
            if flush.done():
                raise
            return None
        except AnalyzerError:
            if self.flushing.is_starved:  # perhaps it computed for longer than the database waits
                self.budget_s = max(BUDGET_S_MIN, min(self.budget_s, self.flushing.loop_s) / 2)
            raise
        finally:
            if flush.done():
                self.in_flight = None
        self.budget_s = next_budget_s(self.budget_s, self.flushing._replace(flush_cpu_s=result.cpu_s))
        if result.in_force is not None:
            self.agreement = result.in_force
        self.source.acknowledge({progress.part: progress.next for progress in result.counted.parts})
        # Partitions that were read to their end need no state; stopped ones may be moved by an operator. What
        # was counted of them while the flush ran has to be stored before.
        for part in self.resumed - (self.source.positions().keys() - self.source.stopped().keys()):
            if part not in self.undrained:
                self.forget(part)
        return result

    def idle(self, busy: Collection[PartitionProgress], now_s: float) -> list[PartitionProgress]:
        """Heartbeats of partitions that had no records and whose last heartbeat is due again."""
        in_flush = {progress.part for progress in busy}
        return [
            PartitionProgress(part, offset, offset)
            for part, offset in self.source.positions().items()
            if part not in in_flush
            and now_s - self.heartbeats_s.get(part, float("-inf")) >= self.pace.heartbeat_every_s
        ]

    def adopt(self, agreement: Agreement, counter: Counter) -> None:
        """Counts by another plan from here on. What is in memory must have been dropped by `start_over`."""
        self.agreement, self.counter, self.agreed_s = agreement, counter, self.uptime_s()

    def resume_stopped(self, parts: Collection[Partition]) -> None:
        """Continues stopped partitions from their stored positions, after an operator's decision."""
        for part in parts:
            self.forget(part)
        self.source.rewind(parts)

    def start_over(self) -> FlushResult | None:
        """Drops everything in memory that is not stored, and continues from the stored positions.

        Waits for the flush in flight, because it moves these positions; returns its result if it committed.
        """
        try:
            result = self.collect()
        except AnalyzerError:
            result = None  # the positions show what is stored
        for part in list(self.resumed):
            self.forget(part)
        self.counting = NO_COST
        self.heartbeats_s.clear()
        self.source.rewind()
        return result


def refused_gap(part: Partition, result: FeedResult) -> Gap:
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
            "mapping in the configuration, or reject them one by one: "
            f"gatelock upkeep sources resume '{part}' --to next --reason TEXT"
        )
    sentences = {
        "corrupt": "a batch is damaged",
        "too-large": "a batch expands beyond the bound",
        "unsupported": "a batch has an unknown format",
    }
    beyond = ""
    if result.skip_to >= 0 and result.status != "corrupt":
        beyond = f", the next one begins at {result.skip_to}"
    return f"{sentences.get(result.status, result.status)}: offset {result.bad}{beyond}"
