"""Queries of pages: names by a part, series near to a limit, the use of a route, places in lists."""

from __future__ import annotations

from itertools import islice

import pytest
import sqlalchemy as sa

from analyzer.callers.caller_changes import set_callers
from analyzer.callers.near_limits import limit_use
from analyzer.counting import key_search
from analyzer.counting.key_search import find_keys
from analyzer.counting.route_use import RouteQuery, busiest_resources, route_use
from analyzer.flush.sql_store import SqlStore
from analyzer.forecast.simulation.policy_simulation import NotSimulated, simulate
from analyzer.judging.caller_limits import Profile
from analyzer.judging.locks.lock_feed import new_mark
from analyzer.judging.locks.locks_by_hand import Effect, LockTarget, clear_locks, extend_locks, set_locks
from analyzer.judging.locks.stored_locks import LockSearch, count_locks, locks_in_force, newest_changes
from analyzer.kernel.by import By
from analyzer.kernel.database.audit_log import count_entries, entries, record
from analyzer.kernel.database.clock import millis
from analyzer.kernel.database.engine import writing
from analyzer.plan.plan import make_plan
from analyzer.plan.policies import RollingQuota
from analyzer.plan.windows import Rolling
from tests.store.flushing import a_row, flush, now_s, plan, quota
from tests.support.stored_counts import put_counts

BY = By("test", "INC-1")
KINDS = ("api_key", "user")


@pytest.fixture
def counted(engine: sa.Engine) -> int:
    """300 callers, each with its number of requests; returns the time."""
    store, by_plan = SqlStore(engine, "here"), plan(quota(200, plan_limits=(("small", 10),)))
    store.activate(by_plan)
    at_s = now_s(engine)
    flush(store, by_plan, [a_row(number, at_s, f"api_key:n{number:03}") for number in range(1, 300)])
    flush(store, by_plan, [a_row(7, at_s, "user:Ann"), a_row(5, at_s - 7_200, "user:old-ann")])
    return at_s


def found(engine: sa.Engine, text: str, at_s: int, hours: int = 1) -> list[str]:
    return list(find_keys(engine, "caller", text, KINDS, at_s - hours * 3_600, at_s + 1).keys)


def test_a_name_is_found_by_its_begin_its_kind_and_its_inside(engine: sa.Engine, counted: int) -> None:
    assert found(engine, "n017", counted) == ["api_key:n017"]
    assert found(engine, "api_key:n01", counted) == [f"api_key:n01{digit}" for digit in range(10)]
    assert found(engine, "ann", counted) == ["user:Ann"]
    assert found(engine, "ANN", counted, hours=3) == ["user:Ann", "user:old-ann"]
    assert found(engine, "%", counted) == []
    assert found(engine, "none", counted) == []


def test_a_name_with_facts_is_found_where_it_was_not_counted(engine: sa.Engine, counted: int) -> None:
    set_callers(engine, {"api_key:silent": Profile("small")}, "test", "sold", new_mark)
    assert found(engine, "sil", counted) == ["api_key:silent"]


def test_a_search_reads_a_bounded_number_of_rows_and_says_what_it_left_out(
    engine: sa.Engine, counted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_search, "SCANNED_MAX", 50)
    answer = find_keys(engine, "caller", "299", KINDS, counted - 3_600, counted + 1)
    assert answer.keys == []
    assert "newest 50 counts only" in answer.note
    assert found(engine, "n299", counted) == ["api_key:n299"], "its begin has an index"
    many = find_keys(engine, "caller", "n", KINDS, counted - 3_600, counted + 1)
    assert len(many.keys) == key_search.FOUND_MAX
    assert "write more" in many.note


def test_series_near_to_their_own_limit_are_listed_and_all_are_in_the_histogram(
    engine: sa.Engine, counted: int
) -> None:
    set_callers(engine, {"api_key:n009": Profile("small")}, "test", "sold", new_mark)
    in_force = SqlStore(engine, "here").active_plan()[1]
    use = limit_use(engine, in_force, in_force.policies[0])
    assert use is not None
    assert (use.series, sum(use.tenths), use.is_cut) == (301, 301, False)
    assert use.tenths[-1] == 100, "200 to 299"
    assert use.tenths[0] == 21, "1 to 19, and two others"
    by_key = {series.key: series for series in use.near}
    assert by_key["api_key:n299"].part == pytest.approx(1.495)
    assert by_key["api_key:n100"].part == 0.5
    assert "api_key:n099" not in by_key
    assert [series.part for series in use.near] == sorted((series.part for series in use.near), reverse=True)


def test_the_use_of_a_route_is_that_of_its_callers_and_no_other_route(
    engine: sa.Engine, counted: int
) -> None:
    rows = [
        a_row(30, counted, "user:big", resource="/v1/export", denied=4),
        a_row(3, counted, "user:small", resource="/v1/export"),
        a_row(9, counted, "user:big", resource="/v1/items"),
    ]
    with writing(engine) as db:
        put_counts(db, rows)
    from_s, until_s = counted - 3_600, counted + 1
    assert busiest_resources(engine, from_s, until_s, "requests", 5) == {"/v1/export": 37, "/v1/items": 9}
    use = route_use(engine, RouteQuery("/v1/export", from_s, until_s, 60, top=1))
    assert use.callers == {"user:big": 34}
    assert use.total == 37
    assert sum(use.series["user:big"]["requests"].values()) == 34


def test_locks_behind_a_place_are_the_others_in_order(engine: sa.Engine, counted: int) -> None:
    targets = [LockTarget("caller", f"user:{name}") for name in "abcdef"]
    set_locks(engine, targets, 3_600_000, Effect(), BY, new_mark)
    search = LockSearch(text="USER:")
    whole = list(locks_in_force(engine, search=search))
    assert len(whole) == count_locks(engine, search) == 6
    for number, lock in enumerate(whole, 1):
        place = (-millis(lock.until), lock.policy, lock.scope, lock.key, lock.resource or "")
        assert list(locks_in_force(engine, search=search, behind=place)) == whole[number:]
    assert count_locks(engine, LockSearch(text="100%")) == 0


def test_a_prolonged_lock_has_not_begun_again(engine: sa.Engine, counted: int) -> None:
    target = [LockTarget("caller", "user:a")]
    set_locks(engine, target, 3_600_000, Effect(), BY, new_mark)
    extend_locks(engine, target, None, 7_200_000, BY, new_mark)
    clear_locks(engine, target, None, None, BY, new_mark)
    events = [event.is_set for event in newest_changes(engine, 50) if event.lock.key == "user:a"]
    assert events == [False, True]


def test_audit_entries_behind_a_place_are_the_others_in_order(engine: sa.Engine, counted: int) -> None:
    with writing(engine) as db:
        for number in range(5):
            record(db, "ann", "tested", f"thing {number} of 5%", "INC-1")
    whole = list(entries(engine, text="THING"))
    assert len(whole) == count_entries(engine, 0, text="thing") == 5
    for number, entry in enumerate(whole, 1):
        behind = (-millis(entry.at), entry.id)
        assert list(entries(engine, text="thing", behind=behind)) == whole[number:]
    assert not list(islice(entries(engine, text="5_"), 1))


def test_a_policy_is_not_simulated_on_a_time_without_counts(engine: sa.Engine) -> None:
    policy = RollingQuota("recent", 5, Rolling(3_600))
    store, by_plan = SqlStore(engine, "here"), make_plan([], [], [policy])
    store.activate(by_plan)
    at_s = now_s(engine)
    flush(store, by_plan, [a_row(7, at_s - 86_400)])
    with pytest.raises(NotSimulated, match="nothing was counted in this time"):
        simulate(engine, [policy], at_s - 600, lambda _done, _all: None)
