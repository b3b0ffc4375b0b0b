"""Rows of distinct values: each counts once, from however many analyzers it comes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
import sqlalchemy as sa

from analyzer.flush.sql_store import SqlStore
from analyzer.judging.plan_sums import plan_sums
from analyzer.kernel.model import DistinctTable, DrainedCounts
from analyzer.kernel.tables.schema import distinct_values, totals
from analyzer.plan.meters import MINUTE_S, Meter
from analyzer.plan.plan import Plan, make_plan, plan_from
from analyzer.plan.policies import Quota, Surge
from analyzer.plan.windows import Calendar, Rolling
from tests.store.flushing import ACME, ANN, locked, now_s, run_together

NewEngine = Callable[[], sa.Engine]
on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)

PATHS = Meter("paths", "resource", "distinct")
MONTHLY = Quota("monthly", 5, Calendar("month"), meter="paths")
SCAN = Surge("scan", 5, Rolling(60), meter="paths", lock_for_s=(600,))
TRIES = 40
LARGE, SMALL = 2**63 - 1, -(2**63)


def by_quota(limit: int = 5) -> Plan:
    return make_plan([], [PATHS], [Quota("monthly", limit, Calendar("month"), meter="paths")])


def seen(rows: Sequence[tuple[str, int]], at_s: int, width_s: int = MINUTE_S) -> DrainedCounts:
    """Returns counts with these pairs of a key and a value alone."""
    keys, values = zip(*sorted(rows), strict=True)
    starts_s = [at_s - at_s % width_s] * len(rows)
    return DrainedCounts(
        [],
        [],
        [],
        distinct=[DistinctTable("caller", "paths", width_s, starts_s, keys, [""] * len(rows), values)],
    )


def flush(store: SqlStore, plan: Plan, counted: DrainedCounts) -> None:
    version, _ = store.active_plan()
    with store.transaction() as tx:
        tx.apply(plan, version, counted, tx.check_plan(plan, version))


def used(engine: sa.Engine) -> dict[str, int]:
    with engine.connect() as db:
        return {row.key: row.used for row in db.execute(sa.select(totals))}


def rows(engine: sa.Engine) -> set[tuple[str, int]]:
    with engine.connect() as db:
        return {(row.key, row.value) for row in db.execute(sa.select(distinct_values))}


def test_a_value_counts_once(store: SqlStore, engine: sa.Engine) -> None:
    plan = by_quota()
    store.activate(plan)
    at_s = now_s(engine)
    for values in ([1, 2, LARGE], [LARGE, 2], [SMALL]):
        flush(store, plan, seen([(ACME, value) for value in values], at_s))
    assert used(engine) == {ACME: 4}
    assert rows(engine) == {(ACME, value) for value in (1, 2, LARGE, SMALL)}
    assert locked(engine) == {}
    flush(store, plan, seen([(ACME, 3), (ANN, 1)], at_s))
    assert list(locked(engine)) == [(ACME, "monthly")]
    assert used(engine) == {ACME: 5, ANN: 1}


@pytest.mark.parametrize("policy", [MONTHLY, SCAN], ids=["calendar", "rolling"])
def test_requests_without_a_caller_have_no_values(
    store: SqlStore, engine: sa.Engine, policy: Quota | Surge
) -> None:
    plan = make_plan([], [PATHS], [policy])
    store.activate(plan)
    width_s = plan_sums(plan).distinct_layouts[0].width_s
    flush(store, plan, seen([("", 1), (ACME, 1)], now_s(engine), width_s))
    assert (used(engine), rows(engine)) == ({ACME: 1}, {(ACME, 1)})


def test_values_that_have_left_the_window_are_left_out(store: SqlStore, engine: sa.Engine) -> None:
    plan = make_plan([], [PATHS], [SCAN])
    store.activate(plan)
    at_s = now_s(engine)
    for age_s in (3600, 70, 20):
        flush(store, plan, seen([(ACME, age_s)], at_s - age_s, 5))
    assert rows(engine) == {(ACME, 20)}


def test_a_meter_of_another_field_begins_again(store: SqlStore, engine: sa.Engine) -> None:
    store.activate(by_quota())
    at_s = now_s(engine)
    flush(store, by_quota(), seen([(ACME, value) for value in range(4)], at_s))
    other = make_plan([], [Meter("paths", "user", "distinct")], [MONTHLY])
    store.activate(other)
    flush(store, other, seen([(ACME, value) for value in range(10, 14)], at_s))
    assert locked(engine) == {}, "the four paths do not count as users"
    flush(store, other, seen([(ACME, 14)], at_s))
    assert list(locked(engine)) == [(ACME, "monthly")]


def test_counting_continues_from_what_was_kept_when_a_limit_is_raised(
    store: SqlStore, engine: sa.Engine
) -> None:
    store.activate(by_quota())
    at_s = now_s(engine)
    flush(store, by_quota(), seen([(ACME, value) for value in range(100)], at_s))
    assert used(engine) == {ACME: 6}
    store.activate(by_quota(50))
    assert locked(engine) == {}
    flush(store, by_quota(50), seen([(ACME, value) for value in range(100, 143)], at_s))
    assert (used(engine), locked(engine)) == ({ACME: 49}, {})
    flush(store, by_quota(50), seen([(ACME, 200)], at_s))
    assert list(locked(engine)) == [(ACME, "monthly")]


def test_a_plan_is_read_as_it_was_stored() -> None:
    plan = make_plan([], [PATHS], [SCAN, MONTHLY])
    assert plan_from(plan.to_json()) == plan
    assert '"join":"distinct"' in plan.to_json()


@on_postgresql
@pytest.mark.parametrize("policy", [MONTHLY, SCAN], ids=["calendar", "rolling"])
def test_two_analyzers_that_bring_the_same_value_count_it_once(
    new_engine: NewEngine, policy: Quota | Surge
) -> None:
    plan = make_plan([], [PATHS], [policy])
    engines = [new_engine(), new_engine()]
    stores = [SqlStore(engine, f"analyzer {number}") for number, engine in enumerate(engines)]
    version = stores[0].activate(plan)
    at_s, width_s = now_s(engines[0]), plan_sums(plan).distinct_layouts[0].width_s
    both_began = threading.Barrier(2)

    def bring(number: int) -> None:
        for attempt in range(TRIES):
            # The order of the keys differs; that of the row locks must not.
            keys = [f"user:{attempt:03}-{one}" for one in range(3)]
            pairs = [(key, value) for key in keys for value in (1, 2, 3, 10 + number)]
            with stores[number].transaction() as tx:
                now = tx.check_plan(plan, version)
                both_began.wait(10)
                tx.apply(plan, version, seen(pairs, at_s, width_s), now)

    assert run_together(lambda: bring(0), lambda: bring(1)) == [None, None]
    assert set(used(engines[0]).values()) == {5}
    assert len(rows(engines[0])) == TRIES * 3 * 5
    assert len(locked(engines[0])) == TRIES * 3
