"""Who is counted by name when there are too many callers, and who goes into the overflow."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from analyzer.core.counting.caller_budget import BEHIND_RUN_MAX, HOUR_MS, OVERFLOW, CallerBudget, is_drawn
from analyzer.core.counting.counter import PythonCounter
from analyzer.core.judging.plan import plan_of
from analyzer.core.judging.policies import Quota
from analyzer.core.judging.totals import growth_of
from analyzer.core.judging.windows import Calendar
from analyzer.core.model import CounterState, CountRow, Record, Records
from analyzer.core.records.mapping import ResourceField, TextField
from tests.support.counting import PART, mapping_of
from tests.support.recordsets import NOW_MS
from tests.support.shelf import Shelf, names_of

DRAWN = 610  # an offset that is
NOW_HOUR = NOW_MS // HOUR_MS


def named(budget: CallerBudget, callers: Sequence[str], hour: int = 0, first: int = 1) -> list[str]:
    """By which names requests of one hour are counted, at offsets from `first` on."""
    times_ms = [hour * HOUR_MS + n for n in range(len(callers))]
    offsets = range(first, first + len(callers))
    return budget.names_of(list(callers), times_ms, (times_ms[0], times_ms[-1]), lambda: offsets)


def a_budget(most: int) -> CallerBudget:
    budget = CallerBudget(most, CounterState())
    named(budget, ["first"])
    return budget


def test_first_come_first_served_and_everybody_keeps_what_he_has() -> None:
    budget = CallerBudget(2, CounterState())
    assert named(budget, "abcacb") == ["a", "b", OVERFLOW, "a", OVERFLOW, "b"]
    assert named(budget, "cb") == [OVERFLOW, "b"]


def test_who_was_there_in_the_hour_before_needs_no_room_among_the_new() -> None:
    budget = CallerBudget(2, CounterState())
    named(budget, "ab")
    assert named(budget, "xyzab", hour=1) == ["x", "y", OVERFLOW, "a", "b"]


def test_names_of_the_hour_before_have_a_bound_of_their_own() -> None:
    """In one look at all and one by one alike."""
    before = [f"c{n}" for n in range(6)]
    for at_once in (True, False):
        budget = CallerBudget(2, CounterState())
        named(budget, before[:2], hour=0)
        named(budget, before[2:4], hour=1)
        named(budget, before[:2], hour=1)  # old: four are known now
        named(budget, ["new"], hour=2)
        pieces = [before[:4]] if at_once else [[each] for each in before[:4]]
        found = [name for piece in pieces for name in named(budget, piece, hour=2)]
        assert found == [*before[:3], OVERFLOW]  # two as old, one in the room that is left among the new


def test_a_record_that_is_drawn_gets_its_caller_a_name() -> None:
    budget = CallerBudget(1, CounterState())
    assert named(budget, "abb", first=DRAWN - 1) == ["a", "b", "b"]
    assert named(budget, "c", first=DRAWN) == [OVERFLOW]  # as many are drawn as there is room for


def test_one_record_in_1024_is_drawn_and_none_of_any_rhythm() -> None:
    assert sum(map(is_drawn, range(1 << 20))) == 1024
    for step in (2, 10, 1000, 1024, 4096):
        drawn = sum(is_drawn(offset) for offset in range(0, step << 16, step))
        assert 0.8 < drawn / 64 < 1.25, step


def test_somebody_who_calls_often_is_soon_counted_by_name() -> None:
    budget = CallerBudget(100, CounterState())
    chance = random.Random(1)
    callers = ["big" if chance.random() < 0.2 else f"one-off-{n}" for n in range(60_000)]
    callers[:200] = [f"early-{n}" for n in range(200)]
    found = named(budget, callers)
    assert found.index("big") < 20_000
    assert found.count("big") + found.count(OVERFLOW) > 50_000


def test_late_records_belong_to_the_hour_that_the_partition_has_come_to() -> None:
    budget = CallerBudget(1, CounterState())
    named(budget, ["a"], hour=9)
    assert named(budget, ["b", "a"], hour=3) == [OVERFLOW, "a"]
    assert budget.drain().hour == 9


def test_a_clock_that_ran_ahead_is_not_believed_for_ever() -> None:
    """It takes ten thousand records in a row, however they come, and what was known is known again."""
    for size in (BEHIND_RUN_MAX, 999):
        budget = CallerBudget(1, CounterState())
        named(budget, ["a"], hour=100)
        named(budget, ["z"], hour=900_000)
        late = ["a"] * (BEHIND_RUN_MAX - 1)
        for begin in range(0, len(late), size):
            named(budget, late[begin : begin + size], hour=100)
        assert budget.drain().hour == 900_000
        assert named(budget, ["b"], hour=100) == [OVERFLOW]
        assert budget.drain()[2:5] == (100, 900_000, 0)


def test_a_day_behind_is_no_mistake() -> None:
    budget = CallerBudget(1, CounterState())
    named(budget, ["a"], hour=100)
    named(budget, ["a"] * (2 * BEHIND_RUN_MAX), hour=76)
    assert budget.drain()[2:5] == (100, -1, 0)


def test_the_next_process_knows_whom_the_last_one_knew() -> None:
    counter, shelf = a_counter(2), Shelf()
    feed(counter, "ab", 0)
    shelf.put(counter.drain())
    assert names_of(shelf.of(PART).named, NOW_HOUR) == {"new": ["api_key:a", "api_key:b"]}
    counter = a_counter(2)
    counter.resume(PART, shelf.of(PART))
    feed(counter, "cb", 2)
    found = counter.drain()
    assert [row.key for row in found.rows] == ["api_key:b", OVERFLOW]
    assert found.parts[0].overflow == 1
    assert found.parts[0].state == CounterState(hour=NOW_HOUR, named=[])  # nobody new


def test_what_is_forgotten_is_forgotten() -> None:
    counter = a_counter(1)
    feed(counter, "ab", 0)
    counter.forget(PART)
    feed(counter, "b", 0)
    assert [row.key for row in counter.drain().rows] == ["api_key:b"]


def test_the_overflow_is_in_every_grouping_of_callers_and_in_no_other() -> None:
    counter = a_counter(1, "caller", "caller+resource", "tenant", "everyone")
    feed(counter, "abb", 0)
    found = {(row.grouping, row.key, row.resource): row.value for row in counter.drain().rows}
    assert found == {
        ("caller", "api_key:a", ""): 1, ("caller", OVERFLOW, ""): 2,
        ("caller+resource", "api_key:a", "other"): 1, ("caller+resource", OVERFLOW, "other"): 2,
        ("tenant", "o", ""): 3, ("everyone", "", ""): 3,
    }  # fmt: skip


def test_only_the_names_of_two_hours_are_kept() -> None:
    counter, shelf = a_counter(5), Shelf()
    for n, hour in enumerate((-3, -2, -1, 0)):
        feed(counter, "ab"[n % 2], n, hour)
        shelf.put(counter.drain())
    known = shelf.of(PART)
    assert {each.hour for each in known.named} == {NOW_HOUR - 1, NOW_HOUR}
    assert (known.hour_before, known.hour) == (NOW_HOUR - 1, NOW_HOUR)


def test_nobody_is_judged_by_the_overflow() -> None:
    daily = Calendar("day")
    plan = plan_of(
        [], [], [Quota("caller", 1, daily), Quota("caller+resource", 1, daily, per="caller+resource")]
    )
    rows = [
        CountRow(grouping, key, "", "requests", 60, 0, 9, 0)
        for grouping in ("caller", "caller+resource")
        for key in ("api_key:a", OVERFLOW)
    ]
    growth = growth_of(plan.policies_of, rows)
    assert {(sum_.grouping, key) for sum_, grown in growth.items() for key, _, _ in grown} == {
        ("caller", "api_key:a"),
        ("caller+resource", "api_key:a"),
    }


def a_counter(most: int, *groupings: str) -> PythonCounter:
    fields = {"tenant": TextField(("org",)), "resource": ResourceField(("path",))}
    mapping = mapping_of(fields, callers_max=most)
    return PythonCounter({"log": mapping}, groupings or ["caller"])


def feed(counter: PythonCounter, callers: str, start: int, hour: int = 0) -> None:
    ms = NOW_MS + hour * HOUR_MS
    values = [json.dumps({"key": caller, "ts": ms, "org": "o", "path": "/a"}).encode() for caller in callers]
    items = [Record(start + n, NOW_MS, value) for n, value in enumerate(values)]
    counter.feed(Records(PART, start, start + len(items), items))
