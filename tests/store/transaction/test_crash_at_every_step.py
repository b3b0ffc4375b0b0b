"""An analyzer is killed, or loses its database, at every single step: the counts equal those without a fault.

Flushes commit before the next records are counted, or after: both orders are tried.

The steps are counted in the calm run, so that none is missed: each statement, each commit before it is sent,
and each commit whose reply is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from analyzer.counting.counter.caller_budget import OVERFLOW
from analyzer.flush import flush as module
from analyzer.flush.flush_executors import InlineFlushes
from analyzer.flush.pipeline import FlushExecutor
from analyzer.flush.sql_store import SqlFlush, SqlStore
from analyzer.kernel.database.engine import writing
from analyzer.kernel.errors import PartitionLost
from analyzer.kernel.model import Lag, Partition, PartitionProgress
from analyzer.kernel.tables.counter_tables import named_callers
from analyzer.kernel.tables.schema import buckets, offsets
from tests.store import simulated_analyzers
from tests.store.flushing import now_s
from tests.store.simulated_analyzers import (
    CALLERS,
    Analyzer,
    FaultAt,
    Log,
    empty_tables,
    killed,
    log_of,
    state,
)
from tests.support.depth import at_steps
from tests.support.flush_orders import LateFlushes
from tests.support.step_faults import Killed, cut_off

CALM = -1  # a step that is never reached
Stored = Mapping[str, object]
StoreOf = Callable[[sa.Engine], object]
NewEngine = Callable[[], sa.Engine]
FlushOrder = Callable[[], FlushExecutor]


@pytest.fixture
def log(engine: sa.Engine) -> Log:
    return log_of(now_s(engine))


@pytest.fixture
def analyzer_engine(new_engine: NewEngine) -> sa.Engine:
    """The engine of the analyzers; the test reads the database through `engine`."""
    engine = new_engine()
    engine.connect().close()  # SQLAlchemy asks the first connection what kind of server it is
    return engine


@pytest.fixture(params=[InlineFlushes, LateFlushes])
def order(request: pytest.FixtureRequest) -> FlushOrder:
    """Whether a flush commits before or after the next records are counted."""
    found: FlushOrder = request.param
    return found


@pytest.fixture
def calm(
    engine: sa.Engine, analyzer_engine: sa.Engine, log: Log, order: FlushOrder
) -> tuple[Stored, Sequence[str]]:
    """The final state of a run without a fault, and its steps."""
    fault = FaultAt(CALM, killed)
    count_with(analyzer_engine, log, fault, order)
    end = state(engine)
    empty_tables(engine)
    return end, fault.steps


def count_with(
    engine: sa.Engine, log: Log, fault: FaultAt, order: FlushOrder, store_of: StoreOf | None = None
) -> None:
    """Runs an analyzer until the fault, and another one that continues."""
    with fault.over(engine), suppress(Killed):
        first = Analyzer(engine, log, flushes=order())
        first.run(store_of(engine) if store_of else None)
    second = Analyzer(engine, log, flushes=order())
    second.run(store_of(engine) if store_of else None)


def test_the_calm_run_has_everything_that_a_fault_may_change(
    calm: tuple[Stored, Sequence[str]],
) -> None:
    end, steps = calm
    names = Counter(name for names in CALLERS for name in names)
    counted = {row[4]: (row[6], row[7]) for row in end["buckets"]}
    assert counted == {
        "api_key:acme": (names["acme"], names["acme!"]),
        "api_key:ann": (names["ann"], 0),
        "api_key:bob": (names["bob"], 0),
    }
    assert [(row[7:9], row[10]) for row in end["offsets and ledger"]] == [((12, 10), 2), ((9, 8), 1)]
    assert len(end["rejects"]) == 3
    assert {(row[1], row[3]) for row in end["locks"]} == {
        ("api_key:acme", "daily"),
        ("api_key:acme", "strict"),
        ("api_key:ann", "strict"),
        ("api_key:bob", "strict"),
    }
    assert len(end["changes"]) == 4  # each once
    assert len(end["versions"]) > 1  # in several flushes
    kinds = Counter(steps)
    assert kinds["before commit"] == kinds["after commit"] >= 5
    assert kinds["UPDATE offsets SET"] == 2
    for table in ("totals", "buckets", "rejects", "locks", "feed_versions", "lock_changes"):
        assert kinds[f"INSERT INTO {table}"]


def test_another_analyzer_continues_after_a_kill_at_any_step(
    calm: tuple[Stored, Sequence[str]],
    engine: sa.Engine,
    analyzer_engine: sa.Engine,
    log: Log,
    order: FlushOrder,
) -> None:
    end, steps = calm
    for at, step in at_steps(steps):
        empty_tables(engine)
        fault = FaultAt(at, killed)
        count_with(analyzer_engine, log, fault, order)
        assert state(engine) == end, f"step {at}: {step}"
        assert len(fault.steps) > at, "the step was not reached"


def test_names_beyond_the_cardinality_limit_are_right_after_a_kill_at_any_step(
    engine: sa.Engine,
    analyzer_engine: sa.Engine,
    log: Log,
    order: FlushOrder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One caller per partition is counted by name."""
    monkeypatch.setattr(simulated_analyzers, "MAPPING", replace(simulated_analyzers.MAPPING, callers_max=1))
    fault = FaultAt(CALM, killed)
    count_with(analyzer_engine, log, fault, order)
    end, names = state(engine), names_of(engine)
    assert {row[4] for row in end["buckets"]} == {"api_key:acme", "api_key:bob", OVERFLOW}
    assert [name for *_, name in names] == ["api_key:acme", "api_key:bob"]
    for at, step in at_steps(fault.steps):
        empty_tables(engine)
        count_with(analyzer_engine, log, FaultAt(at, killed), order)
        assert (state(engine), names_of(engine)) == (end, names), f"step {at}: {step}"


def names_of(engine: sa.Engine) -> list[tuple[object, ...]]:
    """Returns (partition, hour, rule, caller) of all callers that are counted by name."""
    of = named_callers.c
    with engine.connect() as db:
        rows = db.execute(
            sa.select(of.partition, of.hour, of.how, of.callers).order_by(*named_callers.primary_key)
        )
        return sorted((*row[:3], name) for row in rows for name in row.callers.split("\n"))


def test_an_analyzer_that_loses_its_connection_at_any_kind_of_step_recovers(
    calm: tuple[Stored, Sequence[str]],
    engine: sa.Engine,
    analyzer_engine: sa.Engine,
    log: Log,
    order: FlushOrder,
) -> None:
    """Also when the reply to a commit is lost: it continues from the stored positions."""
    end, steps = calm
    for at, step in enumerate(steps):
        if step.endswith("commit") or step not in steps[:at]:
            empty_tables(engine)
            fault = FaultAt(at, cut_off)
            with fault.over(analyzer_engine):
                Analyzer(analyzer_engine, log, flushes=order()).run()
            assert state(engine) == end, f"step {at}: {step}"
            assert len(fault.steps) > at, "the step was not reached"


# Another analyzer takes a partition over from one that was stopped for a while


def two_owners(first_engine: sa.Engine, other_engine: sa.Engine, log: Log) -> type[Exception] | None:
    """Returns the error of an analyzer that flushes records which another one has counted meanwhile."""
    stopped, other = Analyzer(first_engine, log, "stopped"), Analyzer(other_engine, log, "other")
    pipeline = stopped.start()
    pipeline.flushed_s = float("inf")  # it takes and counts, and does not flush
    assert pipeline.run_once() is None
    other.run()
    error = None
    try:
        pipeline.flush(stopped.source.lags())
    except PartitionLost as lost:
        error = type(lost)
        pipeline.start_over()
    stopped.run()
    return error


def test_an_analyzer_that_resumes_after_a_stop_counts_nothing_twice(
    calm: tuple[Stored, Sequence[str]],
    engine: sa.Engine,
    analyzer_engine: sa.Engine,
    new_engine: NewEngine,
    log: Log,
) -> None:
    assert two_owners(analyzer_engine, new_engine(), log) is PartitionLost
    assert state(engine) == calm[0]


# Mutations: without the compare-and-set, or with two transactions, these tests fail


def test_without_the_compare_and_set_records_are_counted_twice(
    calm: tuple[Stored, Sequence[str]],
    engine: sa.Engine,
    analyzer_engine: sa.Engine,
    new_engine: NewEngine,
    log: Log,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOVE_OFFSET", without_comparing(module.MOVE_OFFSET))
    assert two_owners(analyzer_engine, new_engine(), log) is None
    assert counted(engine) > sum(row[6] for row in calm[0]["buckets"])


def without_comparing(move: sa.Update) -> sa.Update:
    """Returns the statement without its condition `next = :from`."""
    blind = move._clone()
    always = sa.bindparam("from", type_=sa.BigInteger) >= 0
    blind._where_criteria = tuple(
        always if part.left.name == offsets.c.next.name else part for part in move._where_criteria
    )
    assert "offsets.next = " in str(move.whereclause)
    assert "offsets.next" not in str(blind.whereclause)
    return blind


class SplitFlush:
    """A flush that commits its offsets in a separate transaction, before the rest or after it."""

    def __init__(self, engine: sa.Engine, stack: ExitStack, *, first: bool) -> None:
        self._engine = engine
        self._first = first
        self._stack = stack
        self._rest: sa.Connection | None = None
        self._moved: tuple[Sequence[PartitionProgress], Mapping[Partition, Lag]] | None = None

    def move_offsets(self, parts: Sequence[PartitionProgress], lags: Mapping[Partition, Lag]) -> None:
        self._moved = parts, lags
        if self._first:
            self.move()
        self._rest = self._stack.enter_context(writing(self._engine))

    def move(self) -> None:
        with writing(self._engine) as db:
            SqlFlush(db, "here", str).move_offsets(*self._moved)

    def __getattr__(self, name: str) -> object:
        return getattr(SqlFlush(self._rest, "here", lambda: "mark"), name)


class TwoTransactions:
    """A store whose flushes are split."""

    def __init__(self, engine: sa.Engine, *, first: bool) -> None:
        self._engine = engine
        self._first = first
        self.counter_state = SqlStore(engine, "here").counter_state

    @contextmanager
    def transaction(self) -> Iterator[SplitFlush]:
        with ExitStack() as stack:
            split = SplitFlush(self._engine, stack, first=self._first)
            yield split
        if not self._first:
            split.move()


@pytest.mark.parametrize("offsets_first", [True, False], ids=["lost", "twice"])
def test_with_offsets_in_a_separate_transaction_a_kill_changes_the_counts(
    calm: tuple[Stored, Sequence[str]],
    engine: sa.Engine,
    analyzer_engine: sa.Engine,
    log: Log,
    order: FlushOrder,
    offsets_first: bool,
) -> None:
    def split(analyzer_engine: sa.Engine) -> TwoTransactions:
        return TwoTransactions(analyzer_engine, first=offsets_first)

    truth = sum(row[6] for row in calm[0]["buckets"])
    fault = FaultAt(CALM, killed)
    count_with(analyzer_engine, log, fault, order, split)
    assert counted(engine) == truth, "without a fault the counts are right"
    for at in (at for at, step in enumerate(fault.steps) if step == "after commit"):
        empty_tables(engine)
        count_with(analyzer_engine, log, FaultAt(at, killed), order, split)
        if counted(engine) != truth:
            break
    assert (counted(engine) < truth, counted(engine) > truth) == (offsets_first, not offsets_first)


def counted(engine: sa.Engine) -> int:
    with engine.connect() as db:
        return int(db.execute(sa.select(sa.func.sum(buckets.c.value_0))).scalar_one())
