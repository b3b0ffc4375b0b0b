"""Whole installations, simulated with faults; `make simulation` and `make soak` play more stories.

The stories run in separate processes, in which sets have a fixed order, so that a seed that fails here
fails again with the command that is printed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from typing import get_args

import pytest

from tests.house.reading import ROOT
from tests.simulation.acts import Reload
from tests.simulation.applications import AnswerFault
from tests.simulation.database import FaultKind
from tests.simulation.mutation_stories import STORIES
from tests.simulation.mutations import MUTATIONS
from tests.simulation.policies.plans import PLANS, WITH_CAPACITY
from tests.simulation.runs import part_of, play, play_mutated, shrunk
from tests.simulation.stories import KINDS, draw, with_reloads
from tests.support.depth import IS_DEEP

SEEDS, AT_ONCE = (500, 50) if IS_DEEP else (20, 20)
RELOADED_SEEDS = range(120) if IS_DEEP else (0, 2, 8, 9, 11)  # these reload, or lock for an overload
KINDS_OF_POLICIES = {"quota", "rolling-quota", "surge", "share"}
EVENTS_MIN = 100
TRIED_MAX = 120  # seeds for one mutation
COUNTS = "Wrong: (counts, found and expected|caller .* must be)"
TOTAL = "Wrong: total "
NOT_EARNED = "Wrong: StoredLock.*: not earned by"
NO_LOCK = "Wrong: LockKey.* and the lock is"
NOT_LOCKED = r"Wrong: LockKey.*: \d+ of \d+ used, and no lock"
# How each mutation fails. An error of a patch that does not fit the product any more must not count.
FAILURES = {
    "without_compare_and_set": r"Wrong: partition \d went back",
    "offsets_in_a_separate_transaction": COUNTS,
    "versions_from_a_sequence": "Wrong: the feed went from",
    "plan_not_checked": f"{COUNTS}|{NO_LOCK}",
    "catalog_read_once": TOTAL,
    "poll_applied_twice": r"Wrong: partition \d: the ledger is",
    "revocations_ignored": r"ValueError: access-log\[\d\]: a set from \d+ was fed after",
    "memory_kept_after_errors": r"Wrong: not at rest after .*: partition \d is at",
    "positions_of_the_group": "Wrong: not at rest",
    "windows_not_compared_with_the_time": NOT_EARNED,
    "filling_without_the_position": TOTAL,
    "empty_resources_judged": TOTAL,
    "activation_without_clearing": "Wrong: a lock of a policy that is not in force",
    "activation_without_judging": NO_LOCK,
    "ended_locks_stay": "Wrong: not at rest after .*: a lock that has ended",
    "marks_not_compared": "Wrong: application .* (has a view that is|has an unknown version|answers)",
    "answers_in_any_order": r"Wrong: application \d went back",
    "locks_lost_with_the_source": r"Wrong: application \d has forgotten its view",
    "back_off_without_end": r"Wrong: application \d has a view that is",
    "rows_joined_without_removing": COUNTS,
    "rolled_up_to_another_caller": COUNTS,
    "next_too_high": f"{NO_LOCK}|{NOT_LOCKED}",
    "flushes_late": "Wrong: Asked.* was admitted more than",
    "totals_pruned_by_the_clock": TOTAL,
    "leaps_not_noticed": NO_LOCK,
    "verdicts_believed": f"{COUNTS}|{TOTAL}",
    "verdicts_of_any_policy": f"{COUNTS}|{TOTAL}",
    "overrides_not_judged": f"{NO_LOCK}|{NOT_EARNED}",
    "directory_read_once": f"{NO_LOCK}|{NOT_EARNED}",
    "thresholds_fired_twice": "Wrong: a notice is gone, or was raised again",
    "totals_of_maxima_added_up": TOTAL,
    "hold_ignored": r"Wrong: LockKey.*'neighbour'\): set after 0 ms above its limit",
    "lightest_first": r"Wrong: LockKey.*'overload'\): locked with \d+, and .*eve with 16 is not",
    "all_to_blame": r"Wrong: LockKey.*'overload'\): locked with \d, and the rest fits without",
    "capacity_not_released": "Wrong: .* s after all is counted: LockKey.*'overload'.*and still a lock",
    "usual_by_one_week": r"Wrong: LockKey.*'unusual'\): (not earned by|held, and not above)",
    "usual_by_days": "Wrong: .* s after all is counted: LockKey.*'unusual'.*and no lock",
    "release_ignored": "Wrong: .* s after all is counted: LockKey.*'neighbour'.*and still a lock",
    "release_at_the_limit": r"Wrong: LockKey.*'neighbour'\): cleared above its release",
    "surges_judged_behind": r"Wrong: LockKey.*'flood'\): set by a flush that is .* s behind",
    "shares_judged_behind": r"Wrong: LockKey.*'neighbour'\): set by a warden that is .* s behind",
    "slots_never_read_again": NOT_LOCKED,
    "windows_cut_short": f"{NOT_LOCKED}|Wrong: LockKey.*: gone, and",
    "escalation_forgotten": r"Wrong: LockKey.*'flood'\): offence 2 lasts",
    "addresses_not_compared": r"Wrong: LockKey.*'network'\): not earned by .* of the other addresses",
    "id_horizon_ignored": r"Wrong: partition \d: the ledger is",
    "ids_not_stored": r"Wrong: partition \d: the ledger is",
    "values_counted_again": TOTAL,
    "values_not_kept": NOT_LOCKED,
    "weights_ignored": COUNTS,
    "growth_not_judged_after_leaps": f"{NOT_LOCKED}|Wrong: no notice of .* by 15 of 14",
    "rolling_thresholds_fired_twice": "Wrong: a notice that was raised again",
    "notices_never_end": "Wrong: .* s after all is counted: a notice that lasts",
    "shadow_enforced": "Wrong: .*: the action must be shadow",
    "hold_offs_ignored": "Wrong: LockKey.*: locked, and held off until",
    "hold_offs_not_stored": "Wrong: hold-offs: ",
    "held_off_without_end": NO_LOCK,
    "brakes_ignored": "Wrong: policy braked began 3 locks",
    "braked_locks_stay": "Wrong: .* s after all is counted: .*: enforced, and the brake holds",
    "paced_locks_forgotten": NO_LOCK,
    "released_locks_stay_in_shadow": "Wrong: .*'braked'.*: the action must be deny",
    "released_policies_stay_young": "Wrong: policy braked is braked again, and was released",
    "notices_outlast_policies": "Wrong: .* s after all is counted: a notice that lasts",
    "rolling_grace_ignored": "Wrong: LockKey.*: (not earned by|set before its grace is over)",
}
# A seed that shows the mutation, and soon, so that the test is fast. The next ones are tried if stories have
# changed.
SHOWN_BY = {
    "activation_without_clearing": 8,
    "activation_without_judging": 11,
    "answers_in_any_order": 5,
    "back_off_without_end": 5,
    "empty_resources_judged": 5,
    "ended_locks_stay": 14,
    "filling_without_the_position": 8,
    "flushes_late": 22,
    "hold_offs_not_stored": 15,
    "locks_lost_with_the_source": 1,
    "memory_kept_after_errors": 11,
    "next_too_high": 16,
    "offsets_in_a_separate_transaction": 10,
    "overrides_not_judged": 9,
    "revocations_ignored": 49,
    "rolling_grace_ignored": 17,
    "slots_never_read_again": 16,
    "totals_of_maxima_added_up": 5,
    "values_counted_again": 12,
    "values_not_kept": 12,
    "verdicts_believed": 3,
    "verdicts_of_any_policy": 5,
    "versions_from_a_sequence": 6,
    "weights_ignored": 4,
    "windows_cut_short": 3,
    "windows_not_compared_with_the_time": 8,
    "without_compare_and_set": 139,
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
    assert re.search(r"[1-9][\d,]* locks, [1-9][\d,]* requests denied", ended.stdout)
    raised, cleared, seen, acts, faults = map(counted, ended.stdout.splitlines()[-5:])
    for locks, least in ((by_kind(raised), 5 if IS_DEEP else 2), (by_kind(cleared), 1)):
        # Few locks of rolling quotas end within a story.
        assert locks.keys() | {"rolling-quota"} == KINDS_OF_POLICIES, locks
        assert min(locks.values()) >= least, locks
    # Few judgements wait: an analyzer is rarely behind while a limit is reached.
    assert seen.keys() | {"judgements that wait"} == {
        "further offences",
        "holds",
        "releases",
        "judgements that wait",
        "notices that end",
    }
    assert acts.keys() == {kind.__name__ for kind in (*KINDS, Reload)}
    assert faults.keys() == {*get_args(FaultKind), *get_args(AnswerFault)}
    assert min(faults.values()) >= (5 if IS_DEEP else 2), faults


def by_kind(locks: Mapping[str, int]) -> Counter[str]:
    """Returns the number of locks by the kind of their policies; operators suspend without one."""
    kinds = {policy.name: policy.kind for plan in PLANS for policy in plan.policies}
    found = Counter[str]()
    for name in locks.keys() & kinds.keys():
        found[kinds[name]] += locks[name]
    return found


def counted(line: str) -> dict[str, int]:
    """Returns the numbers of a line such as "acts: Kill 5, Stop 3", by name."""
    pairs = (pair.rsplit(" ", 1) for pair in line.partition(": ")[2].split(", "))
    return {name: int(number) for name, number in pairs}


def test_a_seed_repeats_its_run_exactly() -> None:
    trace = [run("--seed", "7", "--trace").stdout for _ in range(2)]
    assert len(trace[0].splitlines()) > EVENTS_MIN
    without_time = [re.sub(r"in \d+ s", "", text) for text in trace]
    assert without_time[0] == without_time[1]


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mutation_is_detected(name: str) -> None:
    first = SHOWN_BY.get(name, 0)
    stories = [STORIES[name]] if name in STORIES else map(draw, range(first, first + TRIED_MAX))
    assert play_mutated(name, stories, FAILURES[name]) is not None


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.deep("another story")] if number % 3 else [])
        for number, name in enumerate(STORIES)
    ],
)
def test_a_story_that_shows_a_mutation_is_right_without_it(name: str) -> None:
    assert play(STORIES[name]).wrong == ""


def test_a_story_releases_a_braked_policy() -> None:
    played = play(STORIES["released_policies_stay_young"])
    assert played.wrong == ""
    assert played.acts["Release"] == 1


def test_a_story_locks_a_caller_with_an_unusual_load() -> None:
    played = play(STORIES["usual_by_days"])
    assert (played.wrong, played.raised["unusual"]) == ("", 1)


def test_a_failure_of_another_kind_does_not_count_as_detected() -> None:
    assert play_mutated("poll_applied_twice", [draw(0)], "TypeError") is None


@pytest.mark.deep("shortens a story in a process")
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


def test_files_are_read_again_in_the_middle_of_faults() -> None:
    acts: Counter[str] = Counter()
    for seed in RELOADED_SEEDS:
        result = play(with_reloads(draw(seed)))
        assert result.wrong == "", seed
        acts += result.acts
    assert acts["Stop"] == 0
    assert acts["Reload"] >= len(RELOADED_SEEDS)


def test_a_capacity_is_kept_in_the_middle_of_faults() -> None:
    raised: Counter[str] = Counter()
    for seed in RELOADED_SEEDS:
        story = draw(seed)
        result = play(story._replace(plans=(WITH_CAPACITY,) * len(story.plans)))
        assert result.wrong == "", seed
        raised += result.raised
    assert raised["overload"] >= 5


def test_stories_differ_and_a_part_of_one_is_valid() -> None:
    stories = [draw(seed) for seed in range(50)]
    assert draw(8) == stories[8]
    kinds = Counter(type(act).__name__ for story in stories for _, act in story.acts)
    assert len(kinds) == len((*KINDS, Reload))
    assert {story.size.analyzers for story in stories} == {1, 2, 3}
    assert play(part_of(stories[8], range(0, 40, 3))).wrong == ""
    assert play(part_of(stories[8], [])).wrong == ""
