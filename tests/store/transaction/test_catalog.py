"""Numbers of meters, groupings and sums: given once, kept through every change of the plan."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from analyzer.counting.usage import UsageQuery, usage_rows
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import reading, writing
from analyzer.kernel.model import CountRow
from analyzer.kernel.tables.table_columns import COLUMNS_PER_PAGE
from analyzer.plan.catalog import Catalog, forget_sum, load
from analyzer.plan.meters import Meter
from analyzer.plan.plan import Plan, make_plan
from tests.store.flushing import flush, plan, quota
from tests.support.stored_counts import stored_counts


def known(engine: sa.Engine) -> Catalog:
    with reading(engine) as db:
        return load(db)


def with_meters(*meters: Meter) -> Plan:
    return make_plan([], meters, [])


def count(store: SqlStore, by_plan: Plan, meter: str, value: int) -> None:
    flush(store, by_plan, [CountRow("caller", "user:ann", "", meter, 60, 60, value, 0)])


def shown(engine: sa.Engine) -> dict[str, int]:
    return {row.meter: row.value for row in usage_rows(engine, UsageQuery("caller", 60))}


def test_a_renamed_meter_keeps_what_it_counted(store: SqlStore, engine: sa.Engine) -> None:
    before, after = with_meters(Meter("bytes", "n")), with_meters(Meter("traffic", "n", renamed_from="bytes"))
    store.activate(before)
    count(store, before, "bytes", 5)
    store.activate(after)
    count(store, after, "traffic", 2)
    assert shown(engine) == {"traffic": 7}
    store.activate(with_meters(Meter("traffic", "n")))
    assert shown(engine) == {"traffic": 7}, "the line may be removed afterwards"


def test_a_new_name_is_a_new_meter(store: SqlStore, engine: sa.Engine) -> None:
    before, after = with_meters(Meter("bytes", "n")), with_meters(Meter("traffic", "n"))
    store.activate(before)
    count(store, before, "bytes", 5)
    store.activate(after)
    count(store, after, "traffic", 2)
    assert shown(engine) == {"bytes": 5, "traffic": 2}


def test_a_removed_meter_that_comes_back_continues(store: SqlStore, engine: sa.Engine) -> None:
    both = with_meters(Meter("bytes", "n"))
    for number, by_plan in enumerate((both, Plan(), both)):
        store.activate(by_plan)
        if number != 1:
            count(store, by_plan, "bytes", 5)
    assert shown(engine) == {"bytes": 10}


def test_values_of_two_joins_never_meet(store: SqlStore, engine: sa.Engine) -> None:
    summed, largest = with_meters(Meter("busy", "n")), with_meters(Meter("busy", "n", "max"))
    for by_plan, value in ((summed, 5), (summed, 4), (largest, 3), (largest, 2)):
        store.activate(by_plan)
        count(store, by_plan, "busy", value)
    assert shown(engine) == {"busy (sum)": 9, "busy": 3}


@pytest.mark.parametrize("meters", [COLUMNS_PER_PAGE, COLUMNS_PER_PAGE + 1, 3 * COLUMNS_PER_PAGE])
def test_any_number_of_meters_is_counted_and_shown(store: SqlStore, engine: sa.Engine, meters: int) -> None:
    """Eight share a row; the ninth begins another one."""
    by_plan = with_meters(*(Meter(f"m{number:02}", "n") for number in range(meters - 1)))
    store.activate(by_plan)
    rows = [
        CountRow("caller", key, "", meter.name, 60, 60, number + 1, number)
        for key in ("user:ann", "user:bob")
        for number, meter in enumerate(by_plan.meters)
    ]
    flush(store, by_plan, rows)
    flush(store, by_plan, rows)
    doubled = sorted(row._replace(value=2 * row.value, denied=2 * row.denied) for row in rows)
    with reading(engine) as db:
        assert stored_counts(db) == doubled
    found = usage_rows(engine, UsageQuery("caller", 60))
    assert [(row.key, row.meter, row.value, row.denied) for row in found] == [
        (row.key, row.meter, row.value, row.denied) for row in doubled
    ]


def test_a_sum_that_comes_back_has_another_number(store: SqlStore, engine: sa.Engine) -> None:
    """Nothing was added to its old totals meanwhile."""
    numbers = []
    for by_plan in (plan(quota(5)), Plan(), plan(quota(5)), Plan(), plan(quota(5))):
        store.activate(by_plan)
        numbers += known(engine).sums.values()
    assert len(set(numbers)) == 3
    assert len(known(engine).dropped_sums) == 2


def test_the_number_of_a_forgotten_sum_is_not_given_again(store: SqlStore, engine: sa.Engine) -> None:
    """Another warden may still be deleting totals of this number."""
    numbers: list[int] = []
    for by_plan in (plan(quota(5)), Plan(), plan(quota(5)), Plan()):
        store.activate(by_plan)
        numbers += known(engine).sums.values()
        with writing(engine) as db:
            for name in load(db).dropped_sums:
                forget_sum(db, name)
    assert len(set(numbers)) == 2
    assert list(known(engine).dropped_sums.values()) == [max(numbers)]


def test_numbers_do_not_change(store: SqlStore, engine: sa.Engine) -> None:
    store.activate(with_meters(Meter("z", "n")))
    before = known(engine)
    store.activate(make_plan(["tenant", "caller+resource"], [Meter("a", "n"), Meter("z", "n")], []))
    after = known(engine)
    assert before.groupings.items() <= after.groupings.items()
    assert before.meters.items() <= after.meters.items()
