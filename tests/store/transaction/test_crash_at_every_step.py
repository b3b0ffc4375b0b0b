"""An analyzer dies, or loses its database, at every single step; the counts do not show it.

The steps are counted in a calm run, so that none is missed: each statement, each commit before it is
sent, and each commit whose reply is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

import pytest
import sqlalchemy as sa

from analyzer.core.counting.caller_budget import OVERFLOW
from analyzer.core.model import Lag, Partition, PartitionProgress
from analyzer.errors import PartitionLost
from analyzer.store.database.engine import writing
from analyzer.store.database.schema import buckets, named_callers, offsets
from analyzer.store.transaction import flush as module
from analyzer.store.transaction.sql_store import SqlFlush, SqlStore
from tests.store import simulated_analyzers
from tests.store.flushing import now_s
from tests.store.simulated_analyzers import (
    STORY,
    Analyzer,
    Fate,
    Killed,
    Log,
    begin_again,
    cut_off,
    killed,
    log_of,
    state,
)

CALM = -1  # a step that never comes
Stored = Mapping[str, object]
StoreOf = Callable[[sa.Engine], object]
NewEngine = Callable[[], sa.Engine]


@pytest.fixture
def log(engine: sa.Engine) -> Log:
    return log_of(now_s(engine))


@pytest.fixture
def theirs(new_engine: NewEngine) -> sa.Engine:
    """What the analyzers reach the database by; the test looks at it by `engine`."""
    engine = new_engine()
    engine.connect().close()  # SQLAlchemy asks the first connection what kind of server it is
    return engine


@pytest.fixture
def calm(engine: sa.Engine, theirs: sa.Engine, log: Log) -> tuple[Stored, Sequence[str]]:
    """How the story ends when nothing happens, and the steps it takes."""
    fate = Fate(CALM, killed)
    lives(theirs, log, fate)
    end = state(engine)
    begin_again(engine)
    return end, fate.steps


def lives(engine: sa.Engine, log: Log, fate: Fate, store_of: StoreOf | None = None) -> None:
    """One analyzer meets its fate, and another one comes after it."""
    with fate.over(engine), suppress(Killed):
        first = Analyzer(engine, log)
        first.run(store_of(engine) if store_of else None)
    second = Analyzer(engine, log)
    second.run(store_of(engine) if store_of else None)


def test_the_calm_story_holds_what_may_go_wrong(
    calm: tuple[Stored, Sequence[str]],
) -> None:
    end, steps = calm
    names = Counter(name for names in STORY for name in names)
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
    assert kinds["UPDATE offsets SET"] == 4
    for table in ("totals", "buckets", "rejects", "locks", "feed_versions", "lock_changes"):
        assert kinds[f"INSERT INTO {table}"]


def test_killed_at_any_step_it_is_not_seen_in_the_end(
    calm: tuple[Stored, Sequence[str]], engine: sa.Engine, theirs: sa.Engine, log: Log
) -> None:
    """Another analyzer goes on."""
    end, steps = calm
    for at, step in enumerate(steps):
        begin_again(engine)
        fate = Fate(at, killed)
        lives(theirs, log, fate)
        assert state(engine) == end, f"step {at}: {step}"
        assert len(fate.steps) > at, "the blow never fell"


def test_nor_is_it_seen_in_who_is_counted_by_name(
    engine: sa.Engine, theirs: sa.Engine, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is room for one caller in each partition."""
    monkeypatch.setattr(simulated_analyzers, "MAPPING", replace(simulated_analyzers.MAPPING, callers_max=1))
    fate = Fate(CALM, killed)
    lives(theirs, log, fate)
    end, names = state(engine), names_of(engine)
    assert {row[4] for row in end["buckets"]} == {"api_key:acme", "api_key:bob", OVERFLOW}
    assert [name for *_, name in names] == ["api_key:acme", "api_key:bob"]
    for at, step in enumerate(fate.steps):
        begin_again(engine)
        lives(theirs, log, Fate(at, killed))
        assert (state(engine), names_of(engine)) == (end, names), f"step {at}: {step}"


def names_of(engine: sa.Engine) -> list[tuple[object, ...]]:
    """Who is counted by name in which partition and hour, and how they came to it."""
    of = named_callers.c
    with engine.connect() as db:
        rows = db.execute(
            sa.select(of.partition, of.hour, of.how, of.callers).order_by(*named_callers.primary_key)
        )
        return sorted((*row[:3], name) for row in rows for name in row.callers.split("\n"))


def test_cut_off_at_any_kind_of_step_it_goes_on_by_itself(
    calm: tuple[Stored, Sequence[str]], engine: sa.Engine, theirs: sa.Engine, log: Log
) -> None:
    """Perhaps with a commit's reply on its way: only the stored positions tell."""
    end, steps = calm
    for at, step in enumerate(steps):
        if step.endswith("commit") or step not in steps[:at]:
            begin_again(engine)
            fate = Fate(at, cut_off)
            with fate.over(theirs):
                Analyzer(theirs, log).run()
            assert state(engine) == end, f"step {at}: {step}"
            assert len(fate.steps) > at, "the blow never fell"


# Another analyzer takes the partition over from one that only slept


def two_owners(ours: sa.Engine, theirs: sa.Engine, log: Log) -> type[Exception] | None:
    """What the sleeper is told when it wakes up with records that the other one has counted."""
    sleeper, other = Analyzer(ours, log, "sleeper"), Analyzer(theirs, log, "other")
    pipeline = sleeper.start()
    pipeline.flushed_s = float("inf")  # it takes and counts, and then it sleeps
    assert pipeline.run_once() is None
    other.run()
    told = None
    try:
        pipeline.flush(sleeper.source.lags())
    except PartitionLost as lost:
        told = type(lost)
        pipeline.start_over()
    sleeper.run()
    return told


def test_a_sleeper_that_wakes_up_counts_nothing_twice(
    calm: tuple[Stored, Sequence[str]], engine: sa.Engine, theirs: sa.Engine, new_engine: NewEngine, log: Log
) -> None:
    assert two_owners(theirs, new_engine(), log) is PartitionLost
    assert state(engine) == calm[0]


# Without what keeps them right, the same stories come out wrong


def test_without_comparing_the_offset_a_sleeper_counts_twice(
    calm: tuple[Stored, Sequence[str]],
    engine: sa.Engine,
    theirs: sa.Engine,
    new_engine: NewEngine,
    log: Log,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOVE_OFFSET", without_comparing(module.MOVE_OFFSET))
    assert two_owners(theirs, new_engine(), log) is None
    assert counted(engine) > sum(row[6] for row in calm[0]["buckets"])


def without_comparing(move: sa.Update) -> sa.Update:
    """The same statement without `next = :from`."""
    blind = move._clone()
    always = sa.bindparam("from", type_=sa.BigInteger) >= 0
    blind._where_criteria = tuple(
        always if part.left.name == offsets.c.next.name else part for part in move._where_criteria
    )
    assert "offsets.next = " in str(move.whereclause)
    assert "offsets.next" not in str(blind.whereclause)
    return blind


class Apart:
    """A flush that commits its offsets in a transaction of their own, before the rest or after it."""

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
    def __init__(self, engine: sa.Engine, *, first: bool) -> None:
        self._engine = engine
        self._first = first
        self.counter_state = SqlStore(engine, "here").counter_state

    @contextmanager
    def transaction(self) -> Iterator[Apart]:
        with ExitStack() as stack:
            apart = Apart(self._engine, stack, first=self._first)
            yield apart
        if not self._first:
            apart.move()


@pytest.mark.parametrize("offsets_first", [True, False], ids=["lost", "twice"])
def test_with_offsets_in_a_transaction_of_their_own_a_crash_shows(
    calm: tuple[Stored, Sequence[str]], engine: sa.Engine, theirs: sa.Engine, log: Log, offsets_first: bool
) -> None:
    def torn(theirs: sa.Engine) -> TwoTransactions:
        return TwoTransactions(theirs, first=offsets_first)

    truth = sum(row[6] for row in calm[0]["buckets"])
    fate = Fate(CALM, killed)
    lives(theirs, log, fate, torn)
    assert counted(engine) == truth  # while nothing happens, all is well
    for at in (at for at, step in enumerate(fate.steps) if step == "after commit"):
        begin_again(engine)
        lives(theirs, log, Fate(at, killed), torn)
        if counted(engine) != truth:
            break
    assert (counted(engine) < truth, counted(engine) > truth) == (offsets_first, not offsets_first)


def counted(engine: sa.Engine) -> int:
    with engine.connect() as db:
        return int(db.execute(sa.select(sa.func.sum(buckets.c.value))).scalar_one())
