"""Usual loads: a caller with several times its own is locked, as a slow second judgement says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from random import Random
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.judging.sql import usual_levels
from analyzer.kernel.model import CountRow
from analyzer.plan.policies import UsualShare
from analyzer.plan.windows import Rolling
from tests.oracle.compared_stories import (
    BEGIN_S,
    Requests,
    SlowLocks,
    SlowSums,
    changed,
    locked_by_product,
    patched,
    world_of,
)
from tests.support.stored_counts import put_counts
from tests.support.whole_loop import World

EXPORT = "/v1/export"
POLICY = UsualShare("unusual", 3_000, 24, Rolling(24), hold_s=3, release=500_000, per="caller+resource")
HOUR_S, WEEK_S = BEGIN_S - BEGIN_S % 3600, 7 * 86_400
# What each caller had in this hour, one week ago, two weeks ago, ...; the floor is 24, and a window a 150th.
HISTORY = {
    "regular": [150, 300, 150],
    "large": [3_000, 3_000, 450_000, 0, 3_000],
    "new": [],
    "once": [150],
    "twice": [0, 0, 0, 150, 0, 0, 150],
    "odd": [1_348, 1_348],
    "too-long-ago": [150, *[0] * 7, 150, 150],
}
MEDIANS = {"regular": 150, "large": 3_000, "twice": 150, "odd": 1_348}


def put_history(world: World) -> None:
    """Stores the counts of the weeks before: in the hour as minutes or quarters, and a lot next to it."""
    rows = []
    for name, weeks in HISTORY.items():
        for week, amount in enumerate(weeks, 1):
            at_s = HOUR_S - week * WEEK_S
            places = [(60, at_s), (60, at_s + 3540)] if week % 2 else [(900, at_s), (900, at_s + 2700)]
            beside = [(60, at_s - 60), (60, at_s + 3600), (900, at_s - 900), (900, at_s + 3600)]
            amounts = dict.fromkeys(places, amount // 2) | dict.fromkeys(beside, 10**6)
            rows += [
                CountRow(
                    "caller+resource", f"api_key:{name}", EXPORT, "requests", width_s, bucket_s, value, 0
                )
                for (width_s, bucket_s), value in amounts.items()
                if value
            ]
            rows.append(
                CountRow("caller+resource", f"api_key:{name}", "other", "requests", 60, at_s, 10**6, 0)
            )
    with world.engine.begin() as db:
        put_counts(db, rows)


def story_of(seed: int) -> list[Requests]:
    """Returns a story in which the callers have more or less for a while."""
    random, found = Random(seed), []
    for _ in range(4):
        second = {(name, EXPORT): random.choice([0, 1, 2, 3, 5]) for name in HISTORY}
        found += [second] * random.randint(6, 20)
    return found


FALLING: list[Requests] = [{("large", EXPORT): 5}] * 20 + [{("large", EXPORT): 1}] * 36
# Below the floor, and above what is usual.
BELOW_THE_FLOOR: list[Requests] = [{("regular", EXPORT): 5}] * 20 + [{}, {("regular", EXPORT): 1}, {}] * 14
# More than 24, and less than three times 8.99, in a window.
STEADY: list[Requests] = [{("odd", EXPORT): 1}] * 20 + [{("odd", EXPORT): 2}] + [{("odd", EXPORT): 1}] * 30
STORIES = [FALLING, *map(story_of, range(2))]


def locked_by_hand(story: Sequence[Requests]) -> list[set[tuple[str, str]]]:
    """Returns the series that must have a lock after each second."""
    sums, locks, found = SlowSums(POLICY), SlowLocks(POLICY), []
    for requests in story:
        sums.add(requests)
        locks.end(sums.now_s)
        loads = sums.loads()
        most = {
            (name, EXPORT): Fraction(3 * median * sums.span_ms, 150 * 24_000)
            for name, median in MEDIANS.items()
        }
        over = {one for one in most if loads[one] >= 24 and loads[one] > most[one]}
        released = {one for one in locks.until_s if loads[one] * 2 < max(most[one], 24) or not loads[one]}
        locks.lock(sums.now_s, locks.look(sums.now_s, over - locks.until_s.keys(), released))
        found.append({*locks.until_s})
    return found


def is_agreed(url: str, story: Sequence[Requests], policy: UsualShare = POLICY) -> bool:
    with world_of(url, policy) as world:
        put_history(world)
        return locked_by_product(world, story) == locked_by_hand(story)


@pytest.mark.parametrize("number", range(len(STORIES)))
def test_a_caller_beyond_its_usual_load_is_locked_when_a_slow_judgement_says_so(
    migrated_url: str, number: int
) -> None:
    assert any(locked_by_hand(STORIES[number]))
    assert is_agreed(migrated_url, STORIES[number])


def test_a_caller_slightly_below_its_multiple_is_not_locked(migrated_url: str) -> None:
    """By the usual load of its window rounded down it would be."""
    assert not any(locked_by_hand(STEADY))
    assert is_agreed(migrated_url, STEADY)


def test_a_caller_below_the_floor_is_released_however_little_is_usual(migrated_url: str) -> None:
    locked = locked_by_hand(BELOW_THE_FLOOR)
    assert any(locked)
    assert not locked[-1]
    assert is_agreed(migrated_url, BELOW_THE_FLOOR)


def test_usual_levels_are_read_before_totals_are_held(migrated_url: str) -> None:
    """At the top of an hour there are many: flushes would wait for the reading."""
    steps: list[str] = []

    def note(_db: Any, _cursor: Any, text: str, *_: Any) -> None:
        if text.startswith("SELECT") and "JOIN totals" in text:
            steps.append("held")
        elif ("buckets.value_" in text and "times_" in text) or "generate_series" in text:
            steps.append("read")

    with world_of(migrated_url, POLICY) as world:
        put_history(world)
        sa.event.listen(world.engine, "before_cursor_execute", note)
        sa.event.listen(world.engine, "begin", lambda _db: steps.append("begin"))
        locked_by_product(world, FALLING[:10])
    [looked] = [one for one in "".join(step[0] for step in steps).split("b") if "r" in one]
    assert looked == "r" * usual_levels.WEEKS_MAX + "h", "one series, once an hour, in one transaction"


MUTATIONS: Mapping[str, Callable[[pytest.MonkeyPatch], UsualShare]] = {
    "history not checked": patched(POLICY, usual_levels, "WEEKS_MIN", 1),
    "more weeks than are read": patched(POLICY, usual_levels, "WEEKS_MAX", 10),
    "the hour of another day": patched(POLICY, usual_levels, "WEEK_S", 6 * 86_400),
    "the largest instead of the median": patched(POLICY, usual_levels, "median_low", max),
    "another multiple": changed(POLICY, limit=2_000),
    "never released": changed(POLICY, release=0),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mutation_of_usual_loads_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch, new_sqlite_url: Callable[[], str]
) -> None:
    policy = MUTATIONS[name](monkeypatch)
    assert not all(is_agreed(new_sqlite_url(), story, policy) for story in STORIES)
