"""Days that end in simulated installations: what is billed of them equals a recount of the raw records.

A seed that fails is played again with `make test ARGS="-n0 tests/simulation/days -k 'stories and 17'"`.
"""

from __future__ import annotations

import logging
import re
from collections import Counter

import pytest

from tests.simulation.days.day_mutations import DAY_MUTATIONS
from tests.simulation.days.day_stories import CALENDARS, DAYS, KINDS, draw, midnight_s
from tests.simulation.days.day_world import DayWorld
from tests.support.depth import IS_DEEP

SEEDS = 70 if IS_DEEP else 4  # of seven calendars
TRIED_MAX = 40  # seeds for one mutation
FROZEN, LATE, LEDGER = "Wrong: frozen of", "Wrong: late of", r"Wrong: partition \d: the ledger is"
CORRECTED = r"Wrong: .* had -?\d+, and Corrected|Wrong: .* and -?\d+ is refused"
# How each mutation fails. An error of a patch that does not fit the product any more must not count.
FAILURES = {
    "cut_before_targets": r"Wrong: .* was cut at .* was written",
    "flush_into_a_closed_day": f"{LATE}|{CORRECTED}",
    "adjustment_without_date": f"{LATE}|{CORRECTED}",
    "frozen_behind_the_cut": f"{FROZEN}|{CORRECTED}",
    "earlier_attempt_kept": f"{LATE}|{CORRECTED}",
    "closed_without_a_lease": f"{FROZEN}|.*the day is closed: its rows cannot be changed",
    "corrections_not_remembered": CORRECTED,
    "id_horizon_ignored": LEDGER,
}
# A seed that shows the mutation, so that the test is fast. The next ones are tried if stories have changed.
SHOWN_BY = {
    "adjustment_without_date": 14,
    "closed_without_a_lease": 2,
    "corrections_not_remembered": 6,
    "cut_before_targets": 14,
    "earlier_attempt_kept": 1,
    "flush_into_a_closed_day": 2,
    "frozen_behind_the_cut": 6,
    "id_horizon_ignored": 3,
}


@pytest.fixture(autouse=True)
def _silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)  # processes log each fault


def outcome(seed: int) -> tuple[DayWorld, str]:
    """Plays a story; an error of the product is as wrong as a wrong result."""
    world = DayWorld(draw(seed))
    try:
        world.run()
    except Exception as error:  # noqa: BLE001 - reported with its seed
        return world, f"{type(error).__name__}: {' '.join(str(error).split())}"
    return world, ""


@pytest.mark.parametrize("seed", range(SEEDS))
def test_frozen_late_and_corrected_amounts_are_the_truth_in_all_stories(seed: int) -> None:
    world, wrong = outcome(seed)
    assert wrong == "", [f"{at_s:6.3f} s  {act}" for visit in world.story.visits for at_s, act in visit.acts]
    assert len([day for zone in world.story.zones for day in world.truth.days(zone)]) >= 3


@pytest.mark.parametrize("name", DAY_MUTATIONS)
def test_each_mutation_of_closing_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    DAY_MUTATIONS[name](monkeypatch)
    first = SHOWN_BY.get(name, 0)
    failures = (outcome(seed)[1] for seed in range(first, first + TRIED_MAX))
    assert any(re.match(FAILURES[name], failure) for failure in failures)


def test_stories_have_all_kinds_of_acts_and_end_days_of_awkward_lengths() -> None:
    stories = [draw(seed) for seed in range(3 * len(CALENDARS))]
    assert draw(5) == stories[5]
    kinds = Counter(type(act) for story in stories for visit in story.visits for _, act in visit.acts)
    assert kinds.keys() == KINDS.keys()
    assert {story.analyzers for story in stories} == {1, 2, 3}
    assert any(max(story.pauses_s) > 300 for story in stories), "longer than the lease of a closing"
    hours = {
        (midnight_s(zone, date, day + 1) - midnight_s(zone, date, day)) / 3_600
        for zones, date in CALENDARS
        for zone in zones
        for day in range(DAYS)
    }
    assert hours >= {23, 24, 24.5, 25}, hours
