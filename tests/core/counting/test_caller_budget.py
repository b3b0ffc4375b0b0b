"""The cardinality limit: which callers are counted by name when there are too many."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from analyzer.counting.counter.caller_budget import (
    HOUR_MS,
    OF_RESOURCE,
    OVERFLOW,
    CallerBudget,
    ChosenNames,
    drawn_among,
    drawn_offset,
)
from analyzer.kernel.model import CounterState, NamedCallers

NAMED_A = NamedCallers(100, "new", ["api_key:a"])
DRAWN = 1004  # an offset at which the rule "drawn" applies


def named(budget: CallerBudget, callers: Sequence[str], hour: int = 0, first: int = 1) -> list[str]:
    """Returns the names under which requests of one hour are counted, at offsets from `first` on.

    A caller without a kind is an API key.
    """
    times_ms = [hour * HOUR_MS + n for n in range(len(callers))]
    offsets = range(first, first + len(callers))
    typed = [caller if ":" in caller else f"api_key:{caller}" for caller in callers]
    found, _ = budget.names_to_count(typed, times_ms, (times_ms[0], times_ms[-1]), offsets)
    return [
        caller if name == full else name for caller, full, name in zip(callers, typed, found, strict=True)
    ]


def test_callers_are_named_in_order_of_arrival_and_keep_their_names() -> None:
    budget = CallerBudget(2, CounterState())
    assert named(budget, "abcacb") == ["a", "b", OVERFLOW, "a", OVERFLOW, "b"]
    assert named(budget, "cb") == [OVERFLOW, "b"]


@pytest.mark.parametrize("hours", [(0, 0, 0, 0, 0, 0), (0, 0, 0, 1, 1, 1)])
def test_resources_have_a_budget_of_the_same_size_and_hour(hours: Sequence[int]) -> None:
    """In one column of six requests, and one request at a time."""
    times_ms = [hour * HOUR_MS for hour in hours]
    callers, resources = [f"api_key:{name}" for name in "abcabc"], ["/a", "/b", "", "/c", "/a", "/c"]
    found = []
    for size in (6, 1):
        budget = CallerBudget(2, CounterState())
        names, routes = list[str](), list[str]()
        for at in range(0, 6, size):
            part = slice(at, at + size)
            of_part = times_ms[part]
            span_ms = of_part[0], of_part[-1]
            chosen = [ChosenNames(OF_RESOURCE, resources[part])]
            answer = budget.names_to_count(callers[part], of_part, span_ms, range(6)[part], chosen)
            names += answer[0]
            routes += answer[1][0]
        found.append((names, routes))
        assert budget.has_names(["api_key:a"], span_ms, [ChosenNames(OF_RESOURCE, ["/a", ""])])
        assert not budget.has_names(["api_key:a"], span_ms, [ChosenNames(OF_RESOURCE, ["/never"])])
        assert budget.known_names(["/a", "", "/never"], OF_RESOURCE) == ["/a", "", OVERFLOW]
    assert found[0] == found[1]
    if not any(hours):
        assert found[0] == (
            ["api_key:a", "api_key:b", OVERFLOW, "api_key:a", "api_key:b", OVERFLOW],
            ["/a", "/b", "", OVERFLOW, "/a", OVERFLOW],
        )


def test_a_caller_of_the_hour_before_takes_no_room_of_new_callers() -> None:
    budget = CallerBudget(2, CounterState())
    named(budget, "ab")
    assert named(budget, "xyzab", hour=1) == ["x", "y", OVERFLOW, "a", "b"]


def test_callers_of_the_hour_before_have_a_separate_bound() -> None:
    """Whether the callers come in one column or one by one."""
    before = [f"c{n}" for n in range(6)]
    for at_once in (True, False):
        budget = CallerBudget(2, CounterState())
        named(budget, before[:2], hour=0)
        named(budget, before[2:4], hour=1)
        named(budget, before[:2], hour=1)  # old: four are known now
        named(budget, ["new"], hour=2)
        pieces = [before[:4]] if at_once else [[caller] for caller in before[:4]]
        found = [name for piece in pieces for name in named(budget, piece, hour=2)]
        assert found == [*before[:3], OVERFLOW]  # two as old, one in the room that is left among the new


def test_a_drawn_record_names_its_caller() -> None:
    budget = CallerBudget(1, CounterState())
    assert named(budget, "abb", first=DRAWN - 1) == ["a", "b", "b"]


def draw(budget: CallerBudget, callers: Sequence[str], first_block: int = 1) -> list[str]:
    """Returns the names of requests at drawn offsets, one of each caller."""
    return [
        name
        for block, caller in enumerate(callers, first_block)
        for name in named(budget, [caller], first=drawn_offset(block))
    ]


def test_the_caller_that_was_drawn_longest_ago_makes_room_for_another_one() -> None:
    budget = CallerBudget(2, CounterState())
    named(budget, "yz")  # as new
    assert draw(budget, "abac") == [*"abac"]
    assert named(budget, "abcyz") == ["a", OVERFLOW, "c", "y", "z"], "a was drawn again, and b was not"


def test_a_drawn_caller_that_keeps_calling_keeps_its_name_through_a_flood() -> None:
    """Also through chunks in which every caller has a name."""
    budget = CallerBudget(3, CounterState())
    named(budget, "xyz")
    for block in range(1, 200, 3):
        assert draw(budget, ["big", f"once-{block}", f"twice-{block}"], block) != []
        assert named(budget, ["big", "x"]) == ["big", "x"]


def test_drawn_callers_continue_in_the_order_in_which_they_were_drawn() -> None:
    budget = CallerBudget(2, CounterState())
    named(budget, "yz")
    draw(budget, "bab")
    state = budget.drain()
    assert [added for added in state.named if added.how == "drawn"] == [
        NamedCallers(0, "drawn", ["api_key:a", "api_key:b"])
    ]
    budget = CallerBudget(2, state)
    draw(budget, "c", first_block=9)
    assert named(budget, "abc") == [OVERFLOW, "b", "c"]


def test_kinds_of_names_have_separate_budgets() -> None:
    """Whether the callers come in one column or one by one."""
    callers = ["api_key:a", "api_key:b", "user:a", "user:b", "unnamed:"]
    for pieces in ([callers], [[caller] for caller in callers]):
        budget = CallerBudget(2, CounterState())
        assert [name for piece in pieces for name in named(budget, piece)] == callers
        assert named(budget, ["api_key:c", "user:c", "unnamed:"]) == [OVERFLOW, OVERFLOW, "unnamed:"]
        draw(budget, ["user:d", "user:e", "api_key:d", "api_key:e", "api_key:f"])
        found = named(budget, ["user:d", "user:e", "api_key:d", "api_key:e", "api_key:f"])
        assert found == ["user:d", "user:e", OVERFLOW, "api_key:e", "api_key:f"]


def test_one_record_in_1024_is_drawn_with_any_distance_between_records() -> None:
    """Fibonacci numbers among them, which defeat multiplicative hashing."""
    assert len(list(drawn_among(range(1 << 20)))) == 1024
    for step in (2, 10, 1000, 1024, 4096, 10_946, 1_346_269):
        drawn = len(list(drawn_among(range(0, step << 16, step))))
        assert 0.65 < drawn / 64 < 1.4, step


def test_a_caller_in_the_overflow_is_named_within_8000_of_its_records_with_a_chance_of_2000_to_1() -> None:
    """Measured with 2,500 records, which miss one caller in 11.5, and extrapolated: draws are independent."""
    chance, callers, missed = random.Random(3), 2_000, 0
    drawn = set(drawn_among(range(1 << 24)))
    for _ in range(callers):
        missed += not any(chance.randrange(1 << 24) in drawn for _ in range(2_500))
    assert 0.75 < missed / callers / (1023 / 1024) ** 2_500 < 1.25
    assert (1023 / 1024) ** 8_000 < 1 / 2_000


def test_a_frequent_caller_is_soon_counted_by_name() -> None:
    budget = CallerBudget(100, CounterState())
    chance = random.Random(1)
    callers = ["big" if chance.random() < 0.2 else f"one-off-{n}" for n in range(60_000)]
    callers[:200] = [f"early-{n}" for n in range(200)]
    found = named(budget, callers)
    assert found.index("big") < 20_000
    assert found.count("big") + found.count(OVERFLOW) > 50_000


def test_late_records_belong_to_the_hour_that_the_partition_has_reached() -> None:
    budget = CallerBudget(1, CounterState())
    named(budget, ["a"], hour=9)
    assert named(budget, ["b", "a"], hour=3) == [OVERFLOW, "a"]
    assert budget.drain().hour == 9


def test_the_10_000th_record_in_a_row_that_is_a_day_behind_sets_the_hour_back() -> None:
    """In one column or in several: a clock that ran ahead does not hide all callers from then on."""
    for size in (10_000, 999):
        budget = CallerBudget(1, CounterState(hour=900_000, hour_before=100, named=[NAMED_A]))
        named(budget, ["z"], hour=900_000)
        late = ["a"] * 9_999
        for begin in range(0, len(late), size):
            named(budget, late[begin : begin + size], hour=100)
        assert budget.drain().hour == 900_000
        assert named(budget, ["b"], hour=100) == [OVERFLOW]
        assert budget.drain()[2:5] == (100, 900_000, 0)


def test_one_absurd_time_does_not_move_the_hour() -> None:
    budget = CallerBudget(2, CounterState())
    for hour in range(100, 110):
        for _ in range(5):
            named(budget, [f"a{hour}", f"b{hour}"] * 1_000, hour=hour)
            named(budget, ["far"], hour=900_000)
        assert named(budget, [f"a{hour}", f"b{hour}", "c"], hour=hour) == [f"a{hour}", f"b{hour}", OVERFLOW]
        assert budget.drain().hour == hour


def test_one_absurd_time_in_fewer_than_10_000_does_not_keep_a_wrong_hour() -> None:
    budget = CallerBudget(2, CounterState())
    named(budget, ["far"], hour=900_000)
    for _ in range(5):
        named(budget, ["a", "b"] * 1_500, hour=100)
        named(budget, ["far"], hour=900_000)
    assert budget.drain().hour == 100
    assert named(budget, ["x", "y", "z"], hour=101) == ["x", "y", OVERFLOW]


def test_the_hour_follows_after_a_rest_of_days() -> None:
    budget = CallerBudget(200, CounterState())
    named(budget, ["a"], hour=100)
    named(budget, ["a"] * 99, hour=160)
    assert budget.drain().hour == 100
    named(budget, ["a"], hour=161)
    assert budget.drain()[2:5] == (161, 100, 0)


def test_records_of_24_hours_ago_do_not_set_the_hour_back() -> None:
    budget = CallerBudget(1, CounterState())
    named(budget, ["a"], hour=100)
    named(budget, ["a"] * 20_000, hour=76)
    assert budget.drain()[2:5] == (100, -1, 0)
