"""Records are counted while a flush is in flight: what happens to these, and to its partitions, meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

from analyzer.flush.flush_executors import FlushThread, InlineFlushes
from analyzer.flush.pipeline import FLUSH_ALONE_S, FlushExecutor, Pipeline
from analyzer.judging.judge import NOTHING, Judged
from analyzer.kernel.errors import PartitionLost, StoreAway
from analyzer.kernel.flush_steps import StepTimes
from analyzer.kernel.model import (
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
    SourceItem,
)
from analyzer.plan.plan import Plan
from analyzer.plan.proposals import Agreement
from analyzer.sources.positions import CombinedSource
from tests.support.counters import reference_counter
from tests.support.counting import PART, a_record, mapping_of, some_records
from tests.support.flush_orders import LateFlushes

OTHER = PART._replace(number=1)
BAD = b"{"
MAPPING = mapping_of(rejected_in_row_max=3)


class MemoryStore:
    """Keeps positions and the number of records counted; is also its own transaction."""

    def __init__(self) -> None:
        self.positions: dict[Partition, int] = {}
        self.commits: list[list[tuple[int, int]]] = []  # start and next of each partition in each commit
        self.counted = 0
        self.error: Exception | None = None  # of the next transaction
        self.before_commit = threading.Event()
        self.before_commit.set()
        self._moved: dict[Partition, int] = {}

    def counter_state(self, _part: Partition) -> CounterState:
        return CounterState()

    @contextmanager
    def transaction(self) -> Iterator[MemoryStore]:
        self._moved = {}
        yield self
        assert self.before_commit.wait(10.0)
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self.positions |= self._moved

    def move_offsets(self, parts: Sequence[PartitionProgress], _lags: Mapping[Partition, Lag]) -> None:
        for progress in parts:
            if self.positions.get(progress.part, 0) != progress.start:
                raise PartitionLost(progress.part, progress.start)
            self._moved[progress.part] = progress.next
        self.commits.append([(progress.start, progress.next) for progress in parts])

    @property
    def disbelieved(self) -> Mapping[str, int]:
        return {}

    @property
    def denied(self) -> Mapping[tuple[str, str], int]:
        return {}

    @property
    def steps(self) -> StepTimes:
        return StepTimes()

    def check_plan(self, _plan: Plan, _version: int) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def apply(self, _plan: Plan, _version: int, counted: DrainedCounts, _now: datetime) -> Judged:
        self.counted += sum(row.value for row in counted.rows)
        return NOTHING


class ScriptedSource:
    """Gives what a test puts into `items`, one item per call; more records are always said to come."""

    def __init__(self, store: MemoryStore, *parts: Partition) -> None:
        self.store = store
        self.items: list[SourceItem] = []
        self.next = dict.fromkeys(parts, 0)
        self.gaps: dict[Partition, Gap] = {}
        self.lag = 1
        self.rewound_at: list[dict[Partition, int]] = []  # the stored positions at each rewind

    def give(self, *values: bytes, part: Partition = PART) -> None:
        start = self.next[part]
        self.items.append(some_records(start, *values, part=part))
        self.next[part] = start + len(values)

    def revoke(self, part: Partition) -> None:
        self.items.append(PartitionRevoked(part))
        del self.next[part]

    def take(self, _timeout_s: float) -> Iterator[SourceItem]:
        if self.items:
            yield self.items.pop(0)

    def lags(self) -> Mapping[Partition, Lag]:
        return dict.fromkeys(self.next, Lag(self.lag, 0.0))

    def positions(self) -> Mapping[Partition, int]:
        return self.next | {part: self.store.positions.get(part, 0) for part in self.gaps}

    def stop(self, part: Partition, gap: Gap) -> None:
        self.gaps[part] = gap

    def stopped(self) -> Mapping[Partition, Gap]:
        return self.gaps

    def acknowledge(self, _stored: Mapping[Partition, int]) -> None: ...

    def rewind(self, _parts: Collection[Partition] | None = None) -> None:
        self.rewound_at.append(dict(self.store.positions))


class Run:
    """A pipeline of two partitions, on a clock that the test moves."""

    def __init__(self, executor: FlushExecutor, **bounds: int) -> None:
        self.uptime_s = 100.0
        self.store = MemoryStore()
        self.source = ScriptedSource(self.store, PART, OTHER)
        plan = Plan()
        counter = reference_counter({"log": MAPPING}, plan.groupings, plan.meters, **bounds)
        self.pipeline = Pipeline(
            self.source, counter, self.store, Agreement.of(1, plan), lambda: self.uptime_s, executor=executor
        )

    def step(self, seconds: float = 0.2) -> object:
        self.uptime_s += seconds
        return self.pipeline.run_once()

    def finish(self) -> None:
        """Stores everything."""
        self.source.lag = 0
        while self.source.items or self.pipeline.has_unstored:
            self.step()
            self.pipeline.collect()


@pytest.fixture
def run() -> Run:
    return Run(LateFlushes())


def test_records_are_counted_before_the_flush_in_flight_commits(run: Run) -> None:
    run.source.give(a_record())
    assert run.step() is None
    run.source.give(a_record(), a_record())
    assert run.step() is None
    assert (run.store.commits, run.pipeline.undrained) == ([], {PART})
    run.finish()
    assert run.store.commits[0] == [(0, 1), (0, 0)]
    assert (1, 3) in run.store.commits[1]
    assert run.store.counted == 3


def test_records_are_counted_while_a_thread_commits() -> None:
    run = Run(FlushThread())
    run.store.before_commit.clear()
    run.source.give(a_record())
    assert run.step() is None
    run.source.give(a_record())
    assert run.step() is None
    assert run.pipeline.undrained == {PART}, "counted, and the flush before has not committed"
    run.store.before_commit.set()
    run.finish()
    run.pipeline.executor.close()
    assert run.store.counted == 2
    assert [commit[0] for commit in run.store.commits] == [(0, 1), (1, 2)]


def test_a_caught_up_loop_waits_for_its_flush() -> None:
    """So that the result is known at once, and an idle analyzer polls no more often."""
    run = Run(LateFlushes())
    run.source.lag = 0
    run.source.give(a_record())
    assert run.step() is not None
    assert run.store.positions[PART] == 1


def test_a_full_counter_waits_for_the_flush_in_flight() -> None:
    run = Run(LateFlushes(), rows_max=2)
    run.source.give(a_record())
    assert run.step() is None
    run.source.give(a_record(key="ann"), a_record(key="bob"))
    assert run.step() is not None
    assert run.store.positions[PART] == 1
    run.finish()
    assert run.store.counted == 3


def test_a_flush_that_takes_long_is_awaited(run: Run) -> None:
    """The watchdog ends a process whose database hangs, because its loop does not complete."""
    run.source.give(a_record())
    assert run.step() is None
    assert run.step(FLUSH_ALONE_S - 0.1) is None
    assert run.step(0.2) is not None


def test_a_turn_ends_by_time_and_continues_with_what_the_source_has_kept(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow machine the records that are there may take minutes; a stop waits for a turn only."""

    feed = run.pipeline.counter.feed

    def feed_slowly(taken: RecordSet | Records) -> FeedResult:
        run.uptime_s += 0.9
        return feed(taken)

    class ManyAtOnce(ScriptedSource):
        def take(self, _timeout_s: float) -> Iterator[SourceItem]:
            while self.items:
                yield self.items.pop(0)

    run.pipeline.source = run.source = ManyAtOnce(run.store, PART, OTHER)
    monkeypatch.setattr(run.pipeline.counter, "feed", feed_slowly)
    for _ in range(10):
        run.source.give(a_record())
    left = []
    while run.source.items:
        run.step()
        left.append(len(run.source.items))
    assert left[0] == 7, "three records of 0.9 s each are more than 2 s"
    assert left == sorted(left, reverse=True)
    run.finish()
    assert run.store.counted == 10


def test_sources_take_turns_when_a_turn_ends_before_all_of_them(run: Run) -> None:
    sources = [ScriptedSource(run.store, part) for part in (PART, OTHER)]
    combined = CombinedSource(sources)
    for source, part in zip(sources, (PART, OTHER), strict=True):
        for _ in range(2):
            source.give(a_record(), part=part)
    assert [next(iter(combined.take(0.0))).part for _ in range(4)] == [PART, OTHER, PART, OTHER]


def test_of_a_partition_that_is_revoked_what_is_in_flight_is_stored_and_the_rest_dropped(run: Run) -> None:
    run.source.give(a_record())
    run.step()
    run.source.give(a_record(), a_record())
    run.step()
    run.source.revoke(PART)
    run.step()
    run.finish()
    assert (run.store.positions[PART], run.store.counted) == (1, 1)
    run.source.next[PART] = run.store.positions[PART]  # assigned again
    run.source.give(a_record(), a_record())
    run.finish()
    assert (run.store.positions[PART], run.store.counted) == (3, 3)


def test_a_partition_assigned_again_at_the_position_before_the_flush_fails_at_the_compare_and_set(
    run: Run,
) -> None:
    run.source.give(a_record())
    run.step()
    run.source.revoke(PART)
    run.step()
    run.source.next[PART] = 0  # read before the flush committed
    run.source.give(a_record())
    run.step()
    with pytest.raises(PartitionLost):
        run.finish()
    assert run.store.counted == 1


def test_counts_of_a_partition_that_stops_are_stored(run: Run) -> None:
    """Also if an earlier flush with it commits in between."""
    fieldless = a_record(key=None)  # once another record was read, nothing stops the partition
    run.source.give(fieldless)
    run.step()
    run.source.give(fieldless, fieldless, *[BAD] * 5)
    run.step()
    assert run.source.gaps[PART].start == 3
    run.finish()
    assert (run.store.positions[PART], run.store.counted) == (3, 3)
    assert PART not in run.pipeline.resumed, "an operator may move its position"


@pytest.mark.parametrize("error", [StoreAway("gone"), PartitionLost(OTHER, 0)])
def test_a_flush_that_fails_drops_what_was_counted_meanwhile(run: Run, error: Exception) -> None:
    run.source.give(a_record())
    run.step()
    run.source.give(a_record())
    run.step()
    run.store.error = error
    with pytest.raises(type(error)):
        run.pipeline.collect()
    assert run.pipeline.start_over() is None
    assert (run.pipeline.has_unstored, run.source.rewound_at) == (False, [{}])
    run.store.counted = 0  # rolled back
    run.source.next[PART] = 0
    run.source.give(a_record(), a_record())
    run.finish()
    assert (run.store.positions[PART], run.store.counted) == (2, 2)


def test_starting_over_waits_for_the_flush_in_flight_and_returns_its_result(run: Run) -> None:
    """Otherwise it would continue from a position that is about to move."""
    run.source.give(a_record())
    run.step()
    result = run.pipeline.start_over()
    assert result is not None
    assert result.counted.parts[0].next == 1
    assert run.source.rewound_at == [{PART: 1, OTHER: 0}]


def test_no_flush_begins_while_another_one_is_in_flight(run: Run) -> None:
    run.source.give(a_record())
    run.step()
    with pytest.raises(RuntimeError, match="collect its outcome first"):
        run.pipeline.flush({})


@pytest.mark.parametrize("executor", [InlineFlushes, FlushThread])
def test_executors_give_the_result_or_the_error(executor: type[FlushThread]) -> None:
    flushes = executor()
    assert flushes.submit(lambda: 7).result() == 7
    with pytest.raises(StoreAway):
        flushes.submit(fail).result()
    flushes.close()


def fail() -> None:
    raise StoreAway("gone")


def test_waiting_for_the_flush_thread_ends_with_the_flush_or_after_a_while() -> None:
    flushes, released = FlushThread(), threading.Event()
    flushes.wait()
    future = flushes.submit(released.wait)
    flushes.wait(0.05)
    waiting = threading.Thread(target=flushes.wait)
    waiting.start()
    waiting.join(0.1)
    assert (waiting.is_alive(), future.done()) == (True, False)
    released.set()
    waiting.join(10.0)
    assert not waiting.is_alive()
    assert future.result(10.0)
    flushes.close()
