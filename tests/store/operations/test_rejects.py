"""Rejected records are read again after the mapping was corrected, and counted exactly once."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from analyzer.build import new_counter
from analyzer.counting.counter.caller_budget import OVERFLOW
from analyzer.flush.rejects import PlanMismatch, RejectFilter, SqlRejects, rejected
from analyzer.flush.retry import RejectRetry, RetryOutcome, without_limits
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.audit_log import entries
from analyzer.kernel.model import Counter, Record, Records
from analyzer.kernel.tables.counter_tables import named_callers
from analyzer.kernel.tables.schema import offsets, rejects
from analyzer.maintenance.audit import audit
from analyzer.plan.mapping import SourceMapping, TextField
from analyzer.plan.plan import Plan
from tests.store.flushing import PART, locked, now_s, plan, quota, run_together, used
from tests.store.simulated_analyzers import MAPPING, FaultAt, empty_tables, killed, state
from tests.support.counters import reference_counter
from tests.support.step_faults import Killed
from tests.support.stored_counts import put_counts

WRONG = replace(
    MAPPING, fields={**MAPPING.fields, "api_key": TextField(("ts",))}, sample_bytes=100
)  # a number
CORRECTED = MAPPING
PLAN = plan(quota(3))
DAY_MS = 86_400_000


def values(now_ms: int) -> list[bytes | None]:
    """Returns nine records that WRONG cannot read; CORRECTED reads five of them."""

    def request(key: str, ms: int = now_ms, **more: object) -> bytes:
        return json.dumps({"key": key, "ts": ms, **more}).encode()

    return [
        request("acme"), request("acme"), request("ann"), request("acme"), request("acme", status=429),
        b"{", None, request("long", padding="x" * 200), request("old", now_ms - 36 * DAY_MS),
    ]  # fmt: skip


def counted_under(
    mapping: SourceMapping, store: SqlStore, now: int, *, more: Sequence[bytes | None] = ()
) -> None:
    """Flushes these nine records, and `more`, from offset 5 on."""
    store.activate(PLAN)
    store.begin(PART, 5)
    all_values = [*values(now * 1000), *more]
    counter = reference_counter({"log": mapping}, PLAN.groupings, PLAN.meters)
    items = [Record(5 + n, now * 1000, value) for n, value in enumerate(all_values)]
    counter.feed(Records.of(PART, 5, 5 + len(items), items))
    found = counter.drain()
    with store.transaction() as tx:
        tx.move_offsets(found.parts, {})
        version = store.active_plan()[0]
        now_ = tx.check_plan(PLAN, version)
        put_counts(tx._db, found.rows)
        tx.apply(PLAN, version, found._replace(tables=[]), now_)


def retry(engine: sa.Engine, mapping: SourceMapping = CORRECTED, by_plan: Plan = PLAN) -> list[RetryOutcome]:
    mappings = without_limits({"log": mapping})
    rejects = SqlRejects(engine, lambda: "mark")
    again = RejectRetry(rejects, by_plan, set(mappings), lambda: new_counter(by_plan.with_sources(mappings)))
    return list(again.run(RejectFilter(), "ann@here", "the field was renamed"))


def ledger(engine: sa.Engine) -> tuple[int, int, int, int]:
    with engine.connect() as db:
        return tuple(db.execute(sa.select(offsets.c["seen", "counted", "dead", "late"])).one())


@pytest.fixture
def now(engine: sa.Engine) -> int:
    return now_s(engine)


def test_records_that_can_be_read_now_are_counted_judged_and_deleted(
    engine: sa.Engine, store: SqlStore, now: int
) -> None:
    counted_under(WRONG, store, now)
    assert ledger(engine) == (9, 0, 9, 0)
    found = {outcome.record.offset: outcome.why for outcome in retry(engine)}
    assert found == {
        5: "", 6: "", 7: "", 8: "", 9: "", 10: "bad-json", 11: "it has no value",
        12: "only its beginning was kept", 13: "past",
    }  # fmt: skip
    assert ledger(engine) == (9, 5, 4, 0)
    assert audit(engine).equal
    assert audit(engine).buckets == 5
    assert {key: total for (_, key, _), total in used(engine).items()} == {
        "api_key:acme": 3,
        "api_key:ann": 1,
    }
    assert list(locked(engine)) == [("api_key:acme", "daily")]
    assert [reject.offset for reject in rejected(engine, RejectFilter())] == [13, 12, 11, 10]
    event, _activation = entries(engine)
    assert event[1:5] == (
        "ann@here",
        "rejects counted",
        "5 records, access-log[0]@5 to 9",
        "the field was renamed",
    )


def test_a_second_retry_changes_nothing(engine: sa.Engine, store: SqlStore, now: int) -> None:
    counted_under(WRONG, store, now)
    retry(engine)
    before = state(engine)
    assert not any(outcome.why == "" for outcome in retry(engine))
    assert state(engine) == before


def test_two_concurrent_retries_count_each_record_once(new_engine: Callable[[], sa.Engine], now: int) -> None:
    engine, other = new_engine(), new_engine()
    counted_under(WRONG, SqlStore(engine, "here"), now)
    found = run_together(lambda: retry(engine), lambda: retry(other))
    assert all(isinstance(outcomes, list) for outcomes in found), found
    assert ledger(engine) == (9, 5, 4, 0)
    assert audit(engine).buckets == 5


def test_a_retry_that_is_killed_at_any_step_has_counted_all_or_nothing(
    engine: sa.Engine, store: SqlStore, now: int
) -> None:
    counted_under(WRONG, store, now)
    fault = FaultAt(10_000, killed)
    with fault.over(engine):
        retry(engine)
    calm = state(engine)
    steps = len(fault.steps)
    assert steps > 10
    for at in range(steps):
        empty_tables(engine)
        counted_under(WRONG, store, now)
        with FaultAt(at, killed).over(engine), pytest.raises(Killed):
            retry(engine)
        engine.dispose()
        assert audit(engine).equal, at
        retry(engine)
        assert state(engine) == calm, at


def test_a_concurrent_flush_loses_nothing(new_engine: Callable[[], sa.Engine], now: int) -> None:
    engine, other = new_engine(), new_engine()
    counted_under(WRONG, SqlStore(engine, "here"), now)
    store = SqlStore(other, "there")

    def flush() -> None:
        counter = reference_counter({"log": CORRECTED}, PLAN.groupings, PLAN.meters)
        counter.feed(
            Records.of(PART, 14, 16, [Record(n, now * 1000, values(now * 1000)[0]) for n in (14, 15)])
        )
        found = counter.drain()
        with store.transaction() as tx:
            tx.move_offsets(found.parts, {})
            tx.apply(PLAN, 1, found, tx.check_plan(PLAN, 1))

    assert run_together(flush, lambda: len(retry(engine))) == [None, 9]
    assert ledger(engine) == (11, 7, 4, 0)
    assert audit(engine).equal


def test_retried_late_records_are_subtracted_from_the_late_ones(
    engine: sa.Engine, store: SqlStore, now: int
) -> None:
    """Late records were rejected as `past`."""
    counted_under(replace(CORRECTED, past_ms_max=-1), store, now)
    assert ledger(engine)[3] == 7
    counted = sum(outcome.why == "" for outcome in retry(engine))
    assert counted == 6, "the sample of the padded record was long enough here"
    assert ledger(engine) == (9, 6, 2, 1)
    assert audit(engine).equal


def test_a_retry_by_another_plan_than_the_active_one_counts_nothing(
    engine: sa.Engine, store: SqlStore, now: int
) -> None:
    counted_under(WRONG, store, now)
    with pytest.raises(PlanMismatch, match="another plan came in force meanwhile"):
        retry(engine, by_plan=plan(quota(4)))
    assert ledger(engine) == (9, 0, 9, 0)


def test_a_source_that_is_not_configured_is_named(engine: sa.Engine, store: SqlStore, now: int) -> None:
    counted_under(WRONG, store, now)
    again = RejectRetry(SqlRejects(engine), PLAN, [], lambda: new_counter(PLAN))
    outcomes = list(again.run(RejectFilter(reason="bad-caller"), "ann", "x"))
    assert {outcome.why for outcome in outcomes} == {
        "neither the plan nor the configuration has a source log",
        "only its beginning was kept",
    }


def test_a_retry_of_many_records_takes_several_transactions(
    engine: sa.Engine, store: SqlStore, now: int
) -> None:
    counted_under(replace(WRONG, rejected_in_row_max=5_000), store, now, more=values(now * 1000)[:1] * 1200)
    assert sum(outcome.why == "" for outcome in retry(engine)) == 1205
    assert audit(engine).buckets == 1205
    assert sum(event.act == "rejects counted" for event in entries(engine)) == 3


def test_rejects_are_filtered_by_source_reason_time_and_place(
    engine: sa.Engine, store: SqlStore, now: int
) -> None:
    counted_under(WRONG, store, now)

    def offsets_of(**filters: Any) -> list[int]:
        return [reject.offset for reject in rejected(engine, RejectFilter(**filters))]

    assert offsets_of(reason="tombstone") == [11]
    assert offsets_of(source="log", reason="bad-json") == [10]
    assert offsets_of(source="other") == []
    assert offsets_of(topic="access-log", number=0, offset=7) == [7]
    assert offsets_of(number=1) == []
    in_order = [reject.offset for reject in rejected(engine, RejectFilter(), by_offset=True)]
    assert in_order == sorted(in_order)
    assert offsets_of(since_ms=(now + 3600) * 1000) == []


def test_a_time_beyond_the_column_is_stored_as_the_largest(
    engine: sa.Engine, store: SqlStore, now: int
) -> None:
    store.activate(PLAN)
    store.begin(PART, 0)
    counter = reference_counter({"log": CORRECTED}, PLAN.groupings, PLAN.meters)
    counter.feed(Records.of(PART, 0, 2, [Record(0, 2**63 + 5, b"{"), Record(1, None, b"{")]))
    found = counter.drain()
    with store.transaction() as tx:
        tx.move_offsets(found.parts, {})
        version = store.active_plan()[0]
        tx.apply(PLAN, version, found, tx.check_plan(PLAN, version))
    with engine.connect() as db:
        kept = db.execute(sa.select(rejects.c.kafka_ms).order_by(rejects.c.offset)).scalars().all()
    assert kept == [2**63 - 1, None]


def test_the_counter_state_is_stored_with_the_offset(engine: sa.Engine, store: SqlStore, now: int) -> None:
    few = replace(CORRECTED, callers_max=1)
    store.activate(PLAN)
    store.begin(PART, 0)
    good = values(now * 1000)

    def flush(counter: Counter, start: int, *items: bytes | None) -> None:
        records = [Record(start + n, now * 1000, value) for n, value in enumerate(items)]
        counter.feed(Records.of(PART, start, start + len(items), records))
        found = counter.drain()
        with store.transaction() as tx:
            tx.move_offsets(found.parts, {})
            tx.apply(PLAN, 1, found, tx.check_plan(PLAN, 1))

    counter = reference_counter({"log": few}, PLAN.groupings, PLAN.meters)
    flush(counter, 0, good[0], b"{", b"{")
    known = store.counter_state(PART)
    hour = now // 3600
    assert (known.reject_run, known.hour, known.hour_before, known.behind_run) == (
        -few.fingerprint,
        hour,
        -1,
        0,
    )
    assert [tuple(named) for named in known.named] == [(hour, "new", ["api_key:acme"])]
    counter = reference_counter({"log": few}, PLAN.groupings, PLAN.meters)
    counter.resume(PART, known)
    flush(counter, 3, good[2], good[0])
    assert audit(engine)[1:3] == (3, 1)
    with engine.connect() as db:
        assert db.execute(sa.select(sa.func.count()).select_from(named_callers)).scalar_one() == 1
    store.finish([PART])
    assert store.counter_state(PART).named == []
    # The overflow is not judged, and a new policy does not judge it either.
    store.activate(plan(quota(1)))
    assert OVERFLOW not in {key for _, key, _ in used(engine)}
    assert {key for key, _ in locked(engine)} == {"api_key:acme"}
