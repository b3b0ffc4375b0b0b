"""A fake entry of a table runs through the whole chain: no code elsewhere compares its name."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from analyzer.build import new_counter
from analyzer.counting.sql_joins import SQL_JOINS
from analyzer.counting.usage import UsageQuery, usage_rows
from analyzer.flush.sql_store import SqlStore
from analyzer.judging.locks.stored_locks import locks_in_force
from analyzer.kernel.database.dialects import DIALECTS
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.model import Partition, Record, Records
from analyzer.maintenance.audit import audit
from analyzer.plan.mapping import NumberField, SourceMapping, TextField, TimeField
from analyzer.plan.meters import JOINS, Meter
from analyzer.plan.plan import Plan, make_plan, plan_from
from analyzer.plan.policies import Quota, Surge
from analyzer.plan.windows import Calendar, Rolling
from tests.store.flushing import now_s

PART = Partition("c", "id", 0, "log", "access-log")
MAPPING = SourceMapping(
    caller=("api_key",),
    time=TimeField(("ts",), "ms"),
    fields={"api_key": TextField(("key",)), "took": NumberField(("took",))},
)


def count(engine: sa.Engine, store: SqlStore, plan: Plan) -> int:
    """Activates a plan and counts four requests of acme in two flushes; returns the time in milliseconds."""
    store.activate(plan)
    store.begin(PART, 0)
    version, plan = store.active_plan()
    now_ms = now_s(engine) * 1000
    for first, numbers in ((0, (7, 40)), (2, (60, 9))):
        counter = new_counter(plan)
        counter.resume(PART, store.counter_state(PART))
        values = [json.dumps({"key": "acme", "ts": now_ms, "took": number}).encode() for number in numbers]
        items = [Record(first + index, now_ms, value) for index, value in enumerate(values)]
        counter.feed(Records.of(PART, first, first + len(items), items))
        drained = counter.drain()
        with store.transaction() as tx:
            tx.move_offsets(drained.parts, {})
            tx.apply(plan, version, drained, tx.check_plan(plan, version))
    return now_ms


def test_a_join_is_one_entry_and_its_sql(
    engine: sa.Engine, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(JOINS, "peak", JOINS["max"])
    monkeypatch.setitem(SQL_JOINS, "peak", SQL_JOINS["max"])
    meter, slow = Meter("slowest", "took", join="peak"), Quota("slow", 50, Calendar("day"), meter="slowest")
    plan = make_plan([], [meter], [slow], {"log": MAPPING})
    assert plan_from(plan.to_json()) == plan, "it is stored and read"
    day_s = count(engine, store, plan) // 1000
    rows = usage_rows(engine, UsageQuery("caller", 60, day_s - 86_400, day_s + 86_400, meter="slowest"))
    assert max(row.value for row in rows) == 60
    [lock] = locks_in_force(engine)
    assert (lock.key, lock.policy) == ("api_key:acme", "slow")
    assert audit(engine).equal


class PlainFile(SQLiteDialect_pysqlite):
    """SQLite's dialect under a name that no code knows."""

    name = "plainfile"
    supports_statement_cache = True


def test_a_database_is_one_entry(new_sqlite_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DIALECTS, "plainfile", DIALECTS["sqlite"])
    sa.dialects.registry.impls["plainfile"] = lambda: PlainFile
    engine = open_engine(new_sqlite_url().replace("sqlite:", "plainfile:"))
    try:
        assert engine.dialect.name == "plainfile"
        policies = [Quota("slow", 100, Calendar("day"), meter="took"), Surge("flood", 3, Rolling(60))]
        plan = make_plan(["tenant"], [Meter("took", "took")], policies, {"log": MAPPING})
        count(engine, SqlStore(engine, "one:7"), plan)
        assert {(lock.key, lock.policy) for lock in locks_in_force(engine)} == {
            ("api_key:acme", "slow"),
            ("api_key:acme", "flood"),
        }
        assert audit(engine).equal
    finally:
        engine.dispose()
        del sa.dialects.registry.impls["plainfile"]
