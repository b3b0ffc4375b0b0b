"""Overloads: the smallest set of callers that explains them is locked, as a slow second judgement says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.judging.kinds import capacity, compared
from analyzer.judging.totals import TotalKey
from analyzer.plan.policies import CapacityShare
from analyzer.plan.windows import ALWAYS, Rolling
from tests.oracle.compared_stories import (
    Requests,
    SlowLocks,
    SlowSums,
    changed,
    locked_by_product,
    patched,
    world_of,
)

EXPORT, SEARCH, OTHER = "/v1/export", "/v1/search", "other"
POLICY = CapacityShare(
    "overload",
    0,
    24,
    Rolling(12),
    hold_s=3,
    release=750_000,
    per="caller+resource",
    capacities=((EXPORT, 120), (SEARCH, 60)),
)
CAPACITY = dict(POLICY.capacities)
CALLERS = [f"caller-{n}" for n in range(5)]


def total(name: str) -> TotalKey:
    return TotalKey(compared.judged_sum(POLICY), name, EXPORT, ALWAYS)


def smallest_by_trying(loads: Mapping[str, int], excess: int) -> set[str]:
    """Tries all sets of callers, small ones first, of equal ones heavy ones, and of these by their names."""
    for size in range(len(loads) + 1):
        sets = combinations(sorted(loads, key=lambda name: (-loads[name], name)), size)
        enough = [one for one in sets if sum(loads[name] for name in one) >= excess]
        if enough:
            return set(enough[0])
    return set(loads)


@given(st.dictionaries(st.sampled_from(CALLERS), st.integers(1, 6)), st.integers(1, 30))
def test_no_smaller_set_explains_an_excess_and_of_equal_ones_the_heaviest_does(
    loads: dict[str, int], excess: int
) -> None:
    found = [
        one.key for one in capacity.smallest_set({total(name): load for name, load in loads.items()}, excess)
    ]
    assert len(found) == len(set(found))
    assert set(found) == smallest_by_trying(loads, excess)
    best = max((sum(loads[name] for name in one) for one in combinations(loads, len(found))), default=0)
    assert sum(loads[name] for name in found) == best


def locked_by_hand(story: Sequence[Requests]) -> list[set[tuple[str, str]]]:
    """Returns the series that must have a lock after each second."""
    sums, locks, found = SlowSums(POLICY), SlowLocks(POLICY), []
    for requests in story:
        sums.add(requests)
        locks.end(sums.now_s)
        loads = sums.loads()
        over, released, to_blame = set(), set(), set()
        for resource in (EXPORT, SEARCH, OTHER):
            here = {series: load for series, load in loads.items() if series[1] == resource}
            whole, limit = sum(here.values()), CAPACITY.get(resource, 0)
            # The slots cover a little more time than the window, and the capacity is one of time.
            most = limit * sums.span_ms // 12_000
            released |= {one for one in locks.until_s if one[1] == resource and whole < most * 3 / 4}
            rest = whole - sum(here.get(one, 0) for one in locks.until_s)
            excess = rest - most
            if limit and excess > 0:
                heavy = {s[0]: load for s, load in here.items() if load >= 24 and s not in locks.until_s}
                over |= {(name, resource) for name in heavy}
                to_blame |= {(name, resource) for name in smallest_by_trying(heavy, excess)}
        released |= {one for one in locks.until_s if not loads[one]}
        held = locks.look(sums.now_s, over, released)
        locks.lock(sums.now_s, held & to_blame)
        found.append({*locks.until_s})
    return found


def story_of(seed: int) -> list[Requests]:
    """Returns a story in which some callers are heavy for a while, on one of the resources."""
    random, found = Random(seed), []
    for _ in range(4):
        palette = random.choice([(0, 1, 3), (0, 0, 1, 3, 8), (0, 0, 0, 1, 12)])
        rates = {
            (caller, resource): random.choice(palette)
            for caller in CALLERS
            for resource in (EXPORT, SEARCH, OTHER)
        }
        calm = random.random() < 0.3
        second = {one: 0 if calm else rate for one, rate in rates.items()}
        found += [second] * random.randint(4, 18)
    return found


# Almost all that the resource can take, most of it for one caller.
STEADY: list[Requests] = [
    {(name, EXPORT): 5 + second % 2 if name == CALLERS[0] else 1 for name in CALLERS} for second in range(30)
]
STORIES = [STEADY, *map(story_of, range(5))]


@pytest.mark.parametrize("number", range(len(STORIES)))
def test_an_overload_locks_whom_a_slow_judgement_says(migrated_url: str, number: int) -> None:
    story = STORIES[number]
    with world_of(migrated_url, POLICY) as world:
        found = locked_by_product(world, story)
    assert found == locked_by_hand(story)
    assert any(found) == (story is not STEADY)


def one_too_many(loads: Mapping[TotalKey, int], excess: int) -> Iterator[TotalKey]:
    heaviest = sorted(loads, key=lambda one: (-loads[one], one.key))
    yield from heaviest[: 1 + len([*smallest(loads, excess)])]


def one_too_few(loads: Mapping[TotalKey, int], excess: int) -> Iterator[TotalKey]:
    yield from [*smallest(loads, excess)][:-1]


def lightest_first(loads: Mapping[TotalKey, int], excess: int) -> Iterator[TotalKey]:
    return smallest({one: 10**9 - load for one, load in loads.items()}, excess)


smallest = capacity.smallest_set
MUTATIONS: Mapping[str, Callable[[pytest.MonkeyPatch], CapacityShare]] = {
    "nothing": changed(POLICY),
    "one caller too many": patched(POLICY, capacity, "smallest_set", one_too_many),
    "one caller too few": patched(POLICY, capacity, "smallest_set", one_too_few),
    "the lightest first": patched(POLICY, capacity, "smallest_set", lightest_first),
    "slots taken for the window": patched(POLICY, capacity, "within_span", lambda amount, *_: amount),
    "hold ignored": changed(POLICY, hold_s=0),
    "never released": changed(POLICY, release=0),
    "floor ignored": changed(POLICY, floor=1),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.deep("the test above")] if name == "nothing" else [])
        for name in MUTATIONS
    ],
)
def test_each_mutation_of_an_overloads_judgement_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch, new_sqlite_url: Callable[[], str]
) -> None:
    policy = MUTATIONS[name](monkeypatch)
    for number, story in enumerate(STORIES):
        with world_of(new_sqlite_url(), policy) as world:
            if locked_by_product(world, story) != locked_by_hand(story):
                assert name != "nothing", number
                return
    assert name == "nothing"
