"""Whole installations, simulated with faults; `make simulation` and `make soak` play more stories.

The stories run in separate processes, in which sets have a fixed order, so that a seed that fails here
fails again with the command that is printed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter

import pytest

from tests.house.reading import ROOT
from tests.simulation.acts import KINDS
from tests.simulation.mutations import MUTATIONS
from tests.simulation.runs import part_of, play, play_mutated, shrunk
from tests.simulation.stories import draw

SEEDS, AT_ONCE = 200, 50
EVENTS_MIN = 100
TRIED_MAX = 120  # seeds for one mutation
# A seed that shows the mutation, so that the test is fast. The next ones are tried if stories have changed.
SHOWN_BY = {
    "answers_in_any_order": 45,
    "clearing_without_writing": 5570,
    "marks_not_compared": 59,
    "plan_compared_by_number": 40,
    "positions_of_the_group": 15,
}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_everything_is_counted_judged_and_passed_on_in_every_story(first: int) -> None:
    ended = run("--seed", str(first), "--seeds", str(AT_ONCE), "--processes", "1")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    least = re.search(r"\((\d+) to \d+ each\)", ended.stdout)
    assert least is not None
    assert int(least[1]) >= EVENTS_MIN
    acts = dict(re.findall(r"(\w+) (\d+)(?:,|$)", ended.stdout.splitlines()[-1]))
    assert min(map(int, acts.values())) >= 5, acts


def test_a_seed_repeats_its_run_exactly() -> None:
    trace = [run("--seed", "7", "--trace").stdout for _ in range(2)]
    assert len(trace[0].splitlines()) > EVENTS_MIN
    without_time = [re.sub(r"in \d+ s", "", text) for text in trace]
    assert without_time[0] == without_time[1]


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mutation_is_detected(name: str) -> None:
    first = SHOWN_BY.get(name, 0)
    assert play_mutated(name, range(first, first + TRIED_MAX)) is not None


def test_a_failure_says_how_to_repeat_it_and_which_acts_suffice() -> None:
    ended = run("--seed", "0", "--mutation", "poll_applied_twice")
    assert ended.returncode == 1
    assert 'make simulation ARGS="--seed 0 --mutation poll_applied_twice"' in ended.stdout
    only = re.search(r'ARGS="--seed 0 --only ([\d,]+) ', ended.stdout)
    assert only is not None
    again = run("--seed", "0", "--only", only[1], "--mutation", "poll_applied_twice")
    assert again.returncode == 1
    assert run("--seed", "0", "--only", only[1]).returncode == 0


def test_a_story_is_shortened_to_the_acts_that_matter() -> None:
    story = draw(3)
    wanted = [5, 17, 30]
    times_s = {story.acts[number][0] for number in wanted}
    assert shrunk(story, lambda shorter: times_s <= {at_s for at_s, _ in shorter.acts}) == wanted


def test_stories_differ_and_a_part_of_one_is_valid() -> None:
    stories = [draw(seed) for seed in range(50)]
    assert draw(8) == stories[8]
    kinds = Counter(type(act).__name__ for story in stories for _, act in story.acts)
    assert len(kinds) == len(KINDS)
    assert {story.size.analyzers for story in stories} == {1, 2, 3}
    assert play(part_of(stories[8], range(0, 40, 3))).wrong == ""
    assert play(part_of(stories[8], [])).wrong == ""
