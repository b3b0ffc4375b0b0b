"""Two analyzers share partitions under one seeded scheduler, with flushes in flight at every moment.

The scheduler decides which analyzer takes its next step, when a flush in flight commits, when partitions
move (announced, or unnoticed as after a pause of the process), and where a process is killed or its database
cut off. The counts equal those of a single undisturbed analyzer. A seed repeats its run exactly.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from random import Random

import pytest
import sqlalchemy as sa

from analyzer.flush import flush as module
from analyzer.flush.pipeline import Pipeline
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.errors import AnalyzerError, PartitionLost
from analyzer.kernel.model import NO_HOUR, Partition, PartitionRevoked, Records, SourceItem
from analyzer.kernel.tables.schema import offsets
from tests.store.flushing import now_s
from tests.store.simulated_analyzers import (
    PARTS,
    Analyzer,
    FaultAt,
    Log,
    LogSource,
    empty_tables,
    log_of,
    state,
)
from tests.store.transaction.test_crash_at_every_step import without_comparing
from tests.support.depth import deeper
from tests.support.flush_orders import LateFlushes, SeededFlushes
from tests.support.step_faults import Killed, cut_off

NewEngine = Callable[[], sa.Engine]
SEEDS = range(deeper(12))
STEPS = 60  # with disturbances; then the analyzers finish
AT_ONCE_MAX = 3
EXACT = ("buckets", "offsets and ledger", "rejects")  # what must not depend on how records were grouped


class SharedSource(LogSource):
    """A source of the partitions that are assigned to it."""

    def __init__(self, store: SqlStore, log: Log, random: Random) -> None:
        super().__init__(store, log)
        self.random = random
        self.assigned: set[Partition] = set()
        self.revoked: list[Partition] = []

    def take(self, timeout_s: float) -> Iterator[SourceItem]:
        while self.revoked:
            yield PartitionRevoked(self.revoked.pop())
        if new := self.assigned - self.at.keys():
            stored = self.store.positions(new)
            self.at |= {part: (stored.get(part) or self.begun(part)).next for part in sorted(new)}
        for part in sorted(self.at):
            start, count = self.at[part], self.random.randrange(AT_ONCE_MAX + 1)
            items = [record for record in self.log[part] if record.offset >= start][:count]
            if items:
                self.at[part] = items[-1].offset + 1
                yield Records.of(part, start, self.at[part], items, resume_token=f"after {items[-1].offset}")

    def revoke(self, part: Partition) -> None:
        self.assigned.discard(part)
        if self.at.pop(part, None) is not None:
            self.revoked.append(part)


class RandomCuts(FaultAt):
    """Cuts the database off, or kills the process, at a random step in forty."""

    def __init__(self, random: Random) -> None:
        super().__init__(-1, cut_off)
        self.random = random
        self.is_calm = False

    def step(self, dialect: sa.Dialect, what: str) -> None:
        if not self.is_calm and self.random.random() < 1 / 40:
            raise cut_off(dialect) if self.random.random() < 0.7 else Killed


class Fleet:
    """Two analyzers on one database."""

    def __init__(self, seed: int, engines: list[sa.Engine], log: Log) -> None:
        self.random = Random(seed)
        self.engines = engines
        self.log = log
        self.cuts = RandomCuts(self.random)
        self.pipelines: dict[int, Pipeline | None] = {0: None, 1: None}
        self.sources: dict[int, SharedSource] = {}
        self.assigned = {part: self.random.randrange(2) for part in PARTS}
        self.lost = 0

    def run(self) -> None:
        with self.cuts.over(self.engines[0]), self.cuts.over(self.engines[1]):
            for _ in range(STEPS):
                if self.random.random() < 0.2:
                    self.move(self.random.choice(PARTS))
                self.step(self.random.randrange(2))
            self.cuts.is_calm = True
            for _ in range(200):
                self.step(0)
                self.step(1)
                if self.is_done():
                    return
        raise AssertionError("the end of the log was not reached")

    def move(self, part: Partition) -> None:
        """Assigns the partition to the other analyzer, with or without the knowledge of the first one."""
        before = self.sources.get(self.assigned[part])
        self.assigned[part] = 1 - self.assigned[part]
        is_announced = self.random.random() < 0.7
        if before is not None and is_announced:
            if self.random.random() < 0.5:
                before.store.wait_for_flush()
            before.revoke(part)
        after = self.sources.get(self.assigned[part])
        if after is not None:
            after.assigned.add(part)

    def step(self, number: int) -> None:
        pipeline = None
        try:
            pipeline = self.pipelines[number] or self.start(number)
            pipeline.run_once()
        except PartitionLost as lost:
            self.lost += 1
            assert pipeline is not None
            self.sources[number].assigned -= {part for part in [lost.part] if self.assigned[part] != number}
            self.recover(pipeline, number)
        except AnalyzerError:
            if pipeline is not None:
                self.recover(pipeline, number)
        except Killed:
            self.kill(number)

    def recover(self, pipeline: Pipeline, number: int) -> None:
        # SQLite keeps the lock of a connection that was cut as long as one of its cursors exists, and the
        # error refers to one.
        gc.collect()
        try:
            pipeline.start_over()
        except Killed:
            self.kill(number)

    def kill(self, number: int) -> None:
        """Drops the analyzer with its connections: a transaction that it left open ends with the process."""
        self.pipelines[number] = None
        gc.collect()

    def start(self, number: int) -> Pipeline:
        """Starts a process that has nothing but what is stored."""
        flushes = SeededFlushes(self.random.randrange(1 << 30))
        engine = self.engines[number]
        analyzer = Analyzer(engine, self.log, f"analyzer {number}", flushes)
        analyzer.store = SqlStore(engine, f"analyzer {number}", lambda: "mark", flushes.wait_quietly)
        source = SharedSource(analyzer.store, self.log, self.random)
        source.assigned = {part for part, owner in self.assigned.items() if owner == number}
        analyzer.source = source
        self.pipelines[number] = analyzer.start()
        self.sources[number] = source
        return self.pipelines[number]

    def is_done(self) -> bool:
        stored = SqlStore(self.engines[0], "reader").positions(PARTS)
        return all(part in stored and stored[part].next == self.log[part][-1].offset + 1 for part in PARTS)


@pytest.fixture
def log(engine: sa.Engine) -> Log:
    return log_of(now_s(engine))


@pytest.fixture
def engines(new_engine: NewEngine) -> list[sa.Engine]:
    found = [new_engine(), new_engine()]
    for engine in found:
        engine.connect().close()  # SQLAlchemy asks the first connection what kind of server it is
    return found


@pytest.fixture
def expected(engine: sa.Engine, new_engine: NewEngine, log: Log) -> dict[str, object]:
    Analyzer(new_engine(), log).run()
    found = state(engine)
    empty_tables(engine)
    return {name: found[name] for name in EXACT}


@pytest.mark.parametrize("is_waiting", [True, False])
@pytest.mark.parametrize("method", ["positions", "counter_state", "finish"])
def test_positions_are_read_and_written_after_the_flush_in_flight(
    engine: sa.Engine, log: Log, method: str, *, is_waiting: bool
) -> None:
    flushes, part = LateFlushes(), PARTS[0]
    pipeline = Analyzer(engine, log, flushes=flushes).start()
    assert pipeline.run_once() is None
    store = SqlStore(engine, "here", wait_for_flush=flushes.wait) if is_waiting else SqlStore(engine, "here")
    match method:
        case "positions":
            is_after = store.positions([part])[part].next > 0
        case "counter_state":
            is_after = store.counter_state(part).hour != NO_HOUR
        case _:
            store.finish([part])
            pipeline.collect()
            with engine.connect() as db:  # the flush's heartbeat would say that the file is followed
                beats = sa.select(offsets.c.beat_ms).where(offsets.c.partition == part.number)
                is_after = db.scalars(beats).all() == [None]
    assert is_after == is_waiting


def test_counts_are_exact_in_every_order(
    expected: dict[str, object], engine: sa.Engine, engines: list[sa.Engine], log: Log
) -> None:
    lost = 0
    for seed in SEEDS:
        fleet = Fleet(seed, engines, log)
        fleet.run()
        found = state(engine)
        assert {name: found[name] for name in EXACT} == expected, f"seed {seed}"
        lost += fleet.lost
        empty_tables(engine)
    assert lost > 2, "the compare-and-set was needed"


def test_without_the_compare_and_set_an_order_is_found_in_which_counts_are_wrong(
    expected: dict[str, object],
    engine: sa.Engine,
    engines: list[sa.Engine],
    log: Log,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOVE_OFFSET", without_comparing(module.MOVE_OFFSET))
    for seed in SEEDS:
        Fleet(seed, engines, log).run()
        found = state(engine)
        if found["buckets"] != expected["buckets"]:
            return
        empty_tables(engine)
    raise AssertionError("every order was right")
