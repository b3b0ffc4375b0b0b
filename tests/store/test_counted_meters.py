"""Meters from records to reports, with the counter of analyzers: what is stored, and what is audited."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from analyzer.build import build_retry, with_own_sources
from analyzer.config import settings as configuration
from analyzer.counting.counter.counter import PythonCounter
from analyzer.counting.usage import UsageQuery, usage_rows
from analyzer.flush.rejects import RejectFilter
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import reading, writing
from analyzer.kernel.errors import CannotCount
from analyzer.kernel.model import Record, Records
from analyzer.kernel.tables.schema import buckets, lock_history
from analyzer.kernel.tables.table_columns import COLUMNS_PER_PAGE
from analyzer.maintenance.audit import audit, prove_next_day
from analyzer.plan.catalog import load
from analyzer.plan.mapping import Condition, NumberField, ResourceField, SourceMapping, TextField, TimeField
from analyzer.plan.meters import DAY_S, UNRECORDED, Meter
from analyzer.plan.plan import Plan, make_plan
from tests.store.flushing import now_s
from tests.support.counting import PART
from tests.support.upkeep import Upkeep

MAPPING = SourceMapping(
    time=TimeField(("ts",), "s"),
    caller=("user",),
    fields={"user": TextField(("user",)), "resource": ResourceField(("path",), ("/a", "/b"))},
)


def count(store: SqlStore, by_plan: Plan, at_s: int, *requests: dict[str, Any]) -> list[str]:
    """Stores records of ann, as an analyzer does that counts by this plan; returns why some are rejected."""
    start = store.begin(PART, 0).next
    counter = PythonCounter(by_plan.sources, by_plan.groupings, by_plan.meters)
    records = [
        Record(
            start + n, at_s * 1000, json.dumps({"user": "ann", "ts": at_s, "path": "/a"} | request).encode()
        )
        for n, request in enumerate(requests)
    ]
    counter.feed(Records.of(PART, start, start + len(records), records))
    counted = counter.drain()
    version, _ = store.active_plan()
    with store.transaction() as tx:
        tx.move_offsets(counted.parts, {})
        tx.apply(by_plan, version, counted, tx.check_plan(by_plan, version))
    return [rejected.reason for rejected in counted.rejected]


def shown(engine: sa.Engine, at_s: int) -> dict[str, int]:
    found: Counter[str] = Counter()
    for row in usage_rows(engine, UsageQuery("caller", at_s - DAY_S)):
        found[row.meter] += row.value
    return dict(found)


def test_a_meter_of_distinct_values_has_no_number_and_no_column(store: SqlStore, engine: sa.Engine) -> None:
    paths = Meter("paths", "resource", "distinct")
    by_plan = make_plan(["caller+resource"], [paths], [], {PART.source: MAPPING})
    store.activate(by_plan)
    assert store.active_plan()[1] == by_plan
    at_s = now_s(engine)
    count(store, by_plan, at_s, {}, {"path": "/b"})
    with reading(engine) as db:
        assert set(load(db).meters) == {"requests"}
    assert shown(engine, at_s) == {"requests": 2}
    found = audit(engine)
    assert found.equal, found
    assert found.days_read == 1


WEIGHTED = replace(MAPPING, fields=MAPPING.fields | {"hits": NumberField(("hits",))}, weight="hits")


def by(mapping: SourceMapping, *meters: Meter) -> Plan:
    return make_plan(["caller+resource", "everyone"], meters, [], {PART.source: mapping})


def test_the_audit_compares_records_where_a_record_stands_for_several_requests(
    store: SqlStore, engine: sa.Engine
) -> None:
    at_s = now_s(engine)
    # In one minute: records without a weight, with one, and again without.
    for mapping, hits, requests in ((MAPPING, 5, 1), (WEIGHTED, 5, 6), (WEIGHTED, 7, 13), (MAPPING, 5, 14)):
        store.activate(by(mapping))
        count(store, by(mapping), at_s, {"hits": hits})
        assert shown(engine, at_s) == {"requests": requests}
        found = audit(engine)
        assert found.equal, found
    assert (found.buckets, found.counted, found.days_read) == (4, 4, 1)


def test_the_audit_finds_a_lost_request_among_records_with_weights(
    store: SqlStore, engine: sa.Engine
) -> None:
    store.activate(by(WEIGHTED))
    count(store, by(WEIGHTED), now_s(engine), {"hits": 5}, {"hits": 3, "path": "/b"})
    with writing(engine) as db:
        known = load(db)
        place = known.meters["requests"].place
        of_callers = buckets.c.grouping == known.groupings["caller"]
        fewer = {f"value_{place}": buckets.c[f"value_{place}"] - 1}
        assert db.execute(sa.update(buckets).where(of_callers).values(fewer)).rowcount == 1
    found = audit(engine)
    assert [(day.counted, day.in_buckets) for day in found.differing] == [(2, 1)]
    assert {(one.meter, one.in_coarse, one.in_fine) for one in found.groupings} == {("requests", 7, 8)}


def test_a_past_day_with_weights_is_proved_and_rolled_up(
    store: SqlStore, engine: sa.Engine, upkeep: Upkeep
) -> None:
    """The meter of unrecorded requests may be on another page than the requests."""
    several = [Meter(f"n{number}", "hits") for number in range(COLUMNS_PER_PAGE - 1)]
    at_s = now_s(engine) - 4 * DAY_S
    store.activate(by(MAPPING, *several))
    count(store, by(MAPPING, *several), at_s, {"hits": 9}, {"path": "/b"})
    store.activate(by(WEIGHTED, *several))
    count(store, by(WEIGHTED, *several), at_s, {"hits": 5}, {"hits": 3, "path": "/b"}, {"user": "bob"})
    with reading(engine) as db:
        known = load(db).meters
    assert known[UNRECORDED.name].page != known["requests"].page
    assert prove_next_day(engine, {}) == 1
    assert audit(engine).days_proved == 1
    while upkeep.roll_up(DAY_S, DAY_S):
        pass
    found = audit(engine, every_day=True)
    assert found.equal, found
    assert (found.days_read, found.buckets) == (1, 5)
    assert shown(engine, at_s)["requests"] == 11


def test_a_source_with_a_weight_is_counted_when_the_plan_has_it() -> None:
    """Catalog and plan have no unrecorded requests before, so a flush of them would fail."""
    with pytest.raises(CannotCount, match="has no weights or ids yet"):
        with_own_sources(by(MAPPING), {"other": WEIGHTED})
    in_force = by(MAPPING).with_sources({PART.source: WEIGHTED, "plain": MAPPING})
    assert with_own_sources(in_force, {"other": WEIGHTED}).sources == {"other": WEIGHTED}
    assert with_own_sources(in_force, {PART.source: MAPPING}).sources == {PART.source: WEIGHTED}
    assert with_own_sources(by(MAPPING), {"other": MAPPING}).sources == {"other": MAPPING}


def test_disbelieved_requests_with_weights_are_moved_with_them(store: SqlStore, engine: sa.Engine) -> None:
    mapping = replace(WEIGHTED, deny_if=(Condition("resource", ("/b",)),))
    store.activate(by(mapping))
    with writing(engine) as db:  # as if the history had begun long ago
        db.execute(sa.update(lock_history).where(lock_history.c.scope == "").values(began_ms=0))
    at_s = now_s(engine)
    count(store, by(mapping), at_s, {"hits": 5, "path": "/b"}, {"hits": 2})
    assert shown(engine, at_s) == {"requests": 7}
    assert audit(engine).equal


CONFIGURATION = """
    [[sources]]
    topic = "access-log"
    name  = "log"
    [sources.fields]
    time = { path = "ts", unit = "s" }
    user = "user"
    [[sources]]
    topic  = "aggregated"
    weight = "hits"
    [sources.fields]
    user = "user"
    hits = "hits"
"""


def test_a_retry_counts_beside_a_source_with_a_weight_that_the_plan_lacks(
    store: SqlStore, engine: sa.Engine, tmp_path: Path
) -> None:
    file = tmp_path / "gatelock.toml"
    url = engine.url.render_as_string(hide_password=False)
    file.write_text(f'database = {{ url = "{url}" }}\n{dedent(CONFIGURATION)}')
    settings = configuration.load(file)
    plan = settings.plan()
    in_force = plan.with_sources({"log": plan.sources["log"]})
    otherwise = in_force.with_sources({"log": replace(in_force.sources["log"], time=TimeField(("at",), "s"))})
    store.activate(otherwise)
    assert count(store, otherwise, now_s(engine), {}) == ["bad-time"]
    store.activate(in_force)
    outcomes = build_retry(settings, engine).run(RejectFilter(), "ann@here", "the field was renamed")
    assert [outcome.why for outcome in outcomes] == [""]
    assert shown(engine, now_s(engine)) == {"requests": 1}
