"""The overflow: callers beyond the cardinality limit are counted together, and names outlive the counter."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from analyzer.kernel.model import Counter, CounterState, Record, Records
from analyzer.plan.mapping import ResourceField, TextField
from tests.support.counter_states import CounterStates, names_of
from tests.support.counters import CounterClass
from tests.support.counting import PART, mapping_of
from tests.support.recordsets import NOW_MS

HOUR_MS = 3_600_000
NOW_HOUR = NOW_MS // HOUR_MS
DAY_BEFORE = -25  # hours: just behind the partition's hour
OVERFLOW = "overflow:"

NewCounter = Callable[..., Counter]


@pytest.fixture(scope="session")
def a_counter(counter_class: CounterClass) -> NewCounter:
    """Makes a counter with `callers_max` names per hour and rule, by caller unless groupings are given."""
    fields = {"tenant": TextField(("org",)), "resource": ResourceField(("path",))}

    def make(callers_max: int, *groupings: str) -> Counter:
        return counter_class({"log": mapping_of(fields, callers_max=callers_max)}, groupings or ["caller"])

    return make


def feed(counter: Counter, callers: str, start: int, hour: int = 0) -> None:
    """Feeds a request of each caller; `hour` is relative to the hour of NOW_MS."""
    ms = NOW_MS + hour * HOUR_MS
    values = [json.dumps({"key": caller, "ts": ms, "org": "o", "path": "/a"}).encode() for caller in callers]
    items = [Record(start + n, NOW_MS, value) for n, value in enumerate(values)]
    counter.feed(Records.of(PART, start, start + len(items), items))


def test_the_next_counter_continues_with_the_names_of_the_last_one(a_counter: NewCounter) -> None:
    counter, states = a_counter(2), CounterStates()
    feed(counter, "ab", 0)
    states.store(counter.drain())
    assert names_of(states.of(PART).named, NOW_HOUR) == {"new": ["api_key:a", "api_key:b"]}
    counter = a_counter(2)
    counter.resume(PART, states.of(PART))
    feed(counter, "cb", 2)
    found = counter.drain()
    assert [row.key for row in found.rows] == ["api_key:b", OVERFLOW]
    assert found.parts[0].overflow == 1
    state = found.parts[0].state
    assert state is not None
    assert state._replace(reject_run=0) == CounterState(hour=NOW_HOUR, named=[]), "no caller was named since"


def test_a_forgotten_partition_has_no_names(a_counter: NewCounter) -> None:
    counter = a_counter(1)
    feed(counter, "ab", 0)
    counter.forget(PART)
    feed(counter, "b", 0)
    assert [row.key for row in counter.drain().rows] == ["api_key:b"]


def test_the_overflow_replaces_the_caller_in_its_groupings_and_in_no_other(a_counter: NewCounter) -> None:
    counter = a_counter(1, "caller", "caller+resource", "tenant", "everyone")
    feed(counter, "abb", 0)
    found = {(row.grouping, row.key, row.resource): row.value for row in counter.drain().rows}
    assert found == {
        ("caller", "api_key:a", ""): 1, ("caller", OVERFLOW, ""): 2,
        ("caller+resource", "api_key:a", "/a"): 1, ("caller+resource", OVERFLOW, "/a"): 2,
        ("tenant", "o", ""): 3, ("everyone", "", ""): 3,
    }  # fmt: skip


def test_names_of_two_hours_are_kept(a_counter: NewCounter) -> None:
    counter, states = a_counter(5), CounterStates()
    for n, hour in enumerate((-3, -2, -1, 0)):
        feed(counter, "ab"[n % 2], n, hour)
        states.store(counter.drain())
    state = states.of(PART)
    assert {named.hour for named in state.named} == {NOW_HOUR - 1, NOW_HOUR}
    assert (state.hour_before, state.hour) == (NOW_HOUR - 1, NOW_HOUR)


def test_the_10_000th_record_in_a_row_that_is_behind_sets_the_hour_back(counter_class: CounterClass) -> None:
    """Continues a partition with 9,998 such records, as no test could feed 10,000 to the slow counter."""
    counter = counter_class({"log": mapping_of(callers_max=1)}, ["caller"])
    counter.resume(PART, CounterState(hour=NOW_HOUR, behind_run=9_998))
    feed(counter, "a", 0, DAY_BEFORE)
    state = counter.drain().parts[0].state
    assert state is not None
    assert (state.hour, state.behind_run) == (NOW_HOUR, 9_999)
    feed(counter, "b", 1, DAY_BEFORE)
    state = counter.drain().parts[0].state
    assert state is not None
    assert (state.hour, state.hour_before, state.behind_run) == (NOW_HOUR + DAY_BEFORE, NOW_HOUR, 0)
