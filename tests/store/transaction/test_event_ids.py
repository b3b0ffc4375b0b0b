"""Ids of events are stored with the offset: what is remembered is what was committed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from analyzer.build import new_counter
from analyzer.counting import counter_state
from analyzer.flush.flush_executors import InlineFlushes
from analyzer.flush.pipeline import FlushExecutor
from analyzer.flush.rejects import RejectFilter, SqlRejects
from analyzer.flush.retry import RejectRetry, without_limits
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.installation_secrets import EVENT_IDS, ensure_secret
from analyzer.kernel.model import IdBlob, Record, Records
from analyzer.kernel.tables.counter_tables import event_ids
from analyzer.kernel.tables.schema import offsets
from analyzer.maintenance.audit import audit
from analyzer.plan.mapping import EventIdRule, TextField
from analyzer.plan.meters import DUPLICATES
from analyzer.plan.plan import Plan, plan_from
from tests.store import simulated_analyzers
from tests.store.flushing import PART, now_s, plan, quota, run_together
from tests.store.simulated_analyzers import (
    MAPPING,
    PARTS,
    Analyzer,
    FaultAt,
    Log,
    empty_tables,
    killed,
    state,
)
from tests.support.counters import reference_counter
from tests.support.depth import at_steps
from tests.support.flush_orders import LateFlushes
from tests.support.step_faults import Killed

HORIZON_MS = 80_000
RULE = EventIdRule("id", HORIZON_MS, 1_000)
WITH_IDS = replace(MAPPING, fields={**MAPPING.fields, "id": TextField(("id",))}, id=RULE)
PLAN = plan(quota(5), quota(3, name="strict")).with_sources({"log": WITH_IDS})
NewEngine = Callable[[], sa.Engine]


def value_of(caller: str, id_: object, ms: int) -> bytes:
    return json.dumps({"key": caller, "ts": ms, "id": id_}).encode()


def log_of(now_ms: int) -> Log:
    """Returns a log in which each id comes twice, half of them in another flush, and a generation ends."""
    ids = [1, 2, 1, 3, 4, 5, 2, 3, 6, 6, 4, 5, 7, 8, 8, 7]
    return {
        part: [
            Record(3 * at, now_ms + at * 1_500, value_of("acme" if one % 3 else "bob", one, now_ms))
            for at, one in enumerate(ids)
        ]
        for part in PARTS
    }


@pytest.fixture(params=[InlineFlushes, LateFlushes])
def order(request: pytest.FixtureRequest) -> Callable[[], FlushExecutor]:
    """Whether a flush commits before or after the next records are counted."""
    found: Callable[[], FlushExecutor] = request.param
    return found


@pytest.fixture
def with_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated_analyzers, "MAPPING", WITH_IDS)
    monkeypatch.setattr(simulated_analyzers, "PLAN", PLAN)


def remembered(engine: sa.Engine) -> dict[tuple[int, int], set[bytes]]:
    """Returns the stored hashes by partition and generation."""
    found: dict[tuple[int, int], set[bytes]] = {}
    of = event_ids.c
    with engine.connect() as db:
        for number, generation, hashes in db.execute(sa.select(of.partition, of.generation, of.hashes)):
            new = {hashes[at : at + 8] for at in range(0, len(hashes), 8)}
            assert not new & found.setdefault((number, generation), set()), "stored twice"
            found[number, generation] |= new
    return found


def ledgers(engine: sa.Engine) -> list[tuple[int, ...]]:
    with engine.connect() as db:
        columns = offsets.c["seen", "counted", "duplicate", "dead", "late"]
        return [tuple(row) for row in db.execute(sa.select(*columns).order_by(offsets.c.partition))]


@pytest.mark.usefixtures("with_ids")
def test_each_id_counts_once_after_a_kill_at_any_step(
    engine: sa.Engine, new_engine: NewEngine, order: Callable[[], FlushExecutor]
) -> None:
    log, analyzers = log_of(now_s(engine) * 1000), new_engine()
    analyzers.connect().close()

    def count_with(fault: FaultAt) -> None:
        with fault.over(analyzers), suppress(Killed):
            Analyzer(analyzers, log, flushes=order()).run()
        Analyzer(analyzers, log, flushes=order()).run()

    calm = FaultAt(-1, killed)
    count_with(calm)
    end, ids = state(engine), remembered(engine)
    assert ledgers(engine) == [(16, 8, 8, 0, 0)] * 2
    assert {generation for _, generation in ids} == {0, 1}
    assert sum(map(len, ids.values())) == 16
    assert "INSERT INTO event_ids" in calm.steps
    for at, step in at_steps(calm.steps):
        empty_tables(engine)
        count_with(FaultAt(at, killed))
        assert (state(engine), remembered(engine)) == (end, ids), f"step {at}: {step}"
    assert audit(engine).equal


@pytest.mark.usefixtures("with_ids")
def test_ids_that_are_not_stored_are_counted_again(
    engine: sa.Engine, new_engine: NewEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutation: a kill between two flushes then doubles what comes again."""
    monkeypatch.setattr(counter_state, "_add_ids", lambda _db, _part, _ids: None)
    log, analyzers = log_of(now_s(engine) * 1000), new_engine()
    calm = FaultAt(-1, killed)
    with calm.over(analyzers):
        Analyzer(analyzers, log).run()
    for at in (at for at, step in enumerate(calm.steps) if step == "after commit"):
        empty_tables(engine)
        with FaultAt(at, killed).over(analyzers), suppress(Killed):
            Analyzer(analyzers, log).run()
        Analyzer(analyzers, log).run()
        if sum(counted for _, counted, *_ in ledgers(engine)) > 16:
            return
    pytest.fail("no kill doubled a record")


class Flushing:
    """Flushes records of PART under PLAN, with a counter that is replaced before each flush."""

    def __init__(self, store: SqlStore, now_ms: int) -> None:
        self.store, self.now_ms, self.next = store, now_ms, 0
        store.activate(PLAN)
        store.begin(PART, 0)

    def flush(self, *records: tuple[int, bytes]) -> None:
        counter = new_counter(PLAN)
        counter.resume(PART, self.store.counter_state(PART))
        items = [Record(self.next + at, self.now_ms + ms, value) for at, (ms, value) in enumerate(records)]
        counter.feed(Records.of(PART, self.next, self.next + len(items), items))
        found = counter.drain()
        with self.store.transaction() as tx:
            tx.move_offsets(found.parts, {})
            tx.apply(PLAN, 1, found, tx.check_plan(PLAN, 1))
        self.next += len(items)

    def request(self, id_: object, caller: str = "acme") -> bytes:
        return value_of(caller, id_, self.now_ms)


@pytest.fixture
def flushing(engine: sa.Engine, store: SqlStore) -> Flushing:
    return Flushing(store, now_s(engine) * 1000)


def stored(store: SqlStore) -> Sequence[IdBlob]:
    ids = store.counter_state(PART).ids
    assert ids is not None
    return ids.blobs


def test_forgotten_generations_are_deleted_and_so_are_all_at_the_end_of_a_file(
    flushing: Flushing, store: SqlStore
) -> None:
    flushing.flush((0, flushing.request("a")))
    flushing.flush((1, flushing.request("b")))
    flushing.flush((10_000, flushing.request("c")))
    found = [(blob.generation, blob.number, len(blob.hashes)) for blob in stored(store)]
    assert found == [(0, 0, 16), (1, 0, 8)]
    flushing.flush((89_999, flushing.request("a")))
    assert len(stored(store)) == 2, "a is known: nothing is new"
    flushing.flush((90_000, flushing.request("d")))
    assert [blob.generation for blob in stored(store)] == [1, 2]
    store.finish([PART])
    assert stored(store) == []


def test_duplicates_are_in_the_ledger_and_in_a_meter_and_the_audit_agrees(
    flushing: Flushing, engine: sa.Engine
) -> None:
    flushing.flush(*[(0, flushing.request("a"))] * 3, (0, flushing.request("a", "bob")), (0, b"{"))
    assert ledgers(engine) == [(5, 2, 2, 1, 0)]
    assert audit(engine).equal
    assert DUPLICATES in PLAN.bucket_meters


def test_a_retry_counts_no_id_that_the_partition_or_an_earlier_retry_has_counted(
    flushing: Flushing, engine: sa.Engine
) -> None:
    wrong = replace(WITH_IDS, fields={**WITH_IDS.fields, "api_key": TextField(("ts",))})

    def rejected(*ids: object) -> None:
        """Stores records that only the corrected mapping reads."""
        found = reference_counter({"log": wrong}, PLAN.groupings, PLAN.meters)
        found.resume(PART, flushing.store.counter_state(PART))
        items = [
            Record(flushing.next + at, flushing.now_ms, flushing.request(one)) for at, one in enumerate(ids)
        ]
        found.feed(Records.of(PART, flushing.next, flushing.next + len(items), items))
        flushing.next += len(items)
        drained = found.drain()
        with flushing.store.transaction() as tx:
            tx.move_offsets(drained.parts, {})
            tx.apply(PLAN, 1, drained, tx.check_plan(PLAN, 1))

    def retry() -> list[tuple[str, bool]]:
        mappings = without_limits({"log": WITH_IDS})
        again = RejectRetry(
            SqlRejects(engine, lambda: "mark"),
            PLAN,
            {"log"},
            lambda: new_counter(PLAN.with_sources(mappings)),
            with_ids={"log"},
        )
        outcomes = again.run(RejectFilter(), "ann@here", "the field was renamed")
        return [(outcome.why, outcome.is_duplicate) for outcome in outcomes]

    rejected("a", "b", "b", "c")
    assert retry() == [("", False), ("", False), ("", True), ("", False)]
    rejected("c", "d", "e")
    flushing.flush((0, flushing.request("d")))
    assert retry() == [("", True), ("", True), ("", False)]
    # What the log counts does not depend on a command: the analyzer does not know the ids of retries.
    flushing.flush((0, flushing.request("e")))
    assert ledgers(engine) == [(9, 6, 3, 0, 0)]
    assert audit(engine).equal


def test_a_secret_is_created_once_and_kept(new_engine: NewEngine) -> None:
    engine, other = new_engine(), new_engine()
    found = run_together(lambda: ensure_secret(engine, EVENT_IDS), lambda: ensure_secret(other, EVENT_IDS))
    assert found[0] == found[1] == ensure_secret(engine, EVENT_IDS)
    assert len(found[0]) == 32
    assert ensure_secret(engine, "another") != found[0]


def test_the_stored_plan_has_the_id_where_a_source_has_one() -> None:
    assert '"id":{"field":"id","horizon_ms":80000,"ids_max":1000}' in PLAN.to_json()
    assert plan_from(PLAN.to_json()) == PLAN
    assert '"id"' not in Plan(sources={"log": MAPPING}).to_json()
    assert PLAN.parts != PLAN.with_sources({"log": MAPPING}).parts
