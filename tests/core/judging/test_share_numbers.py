"""The numbers of policies about noisy neighbours, in tables: shares, capacities, multiples, floors, holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from analyzer.judging.circumstances import Hold, Wait
from analyzer.judging.kinds import capacity, share, usual
from analyzer.judging.kinds.compared import behind_max_s
from analyzer.judging.kinds.earned_locks import lock_key
from analyzer.judging.totals import UsualLevel
from analyzer.plan.policies import CapacityShare, LoadShare, UsualShare
from analyzer.plan.windows import Rolling
from gatekeeper.model import Lock
from tests.core.judging.series_now import NOW_S, at_s, now, series, slots

WINDOW = Rolling(300)  # slots of 25 seconds
NEIGHBOUR = LoadShare("neighbour", 400_000, 100, WINDOW, release=250_000)


def looked(
    load: int, whole: int, *, hold: Hold | None = None, lock: Lock | None = None, behind_s: float = 0
) -> Wait:
    """Returns the answer of the warden about a series with this part of a whole."""
    standing = series(NEIGHBOUR, {0: load}, whole=slots({0: whole}))
    holds = {} if hold is None else {lock_key(NEIGHBOUR, standing.total): hold}
    answer = share.judge_share(NEIGHBOUR, standing, lock, now(is_warden=True, holds=holds, behind_s=behind_s))
    assert isinstance(answer, Wait)
    return answer


def held(since_s: float, seen_s: float = -1) -> Hold:
    return Hold(NOW_S + since_s, NOW_S + seen_s)


def locked() -> Lock:
    """The lock that a share has earned, with the sentence of its beginning."""
    lock = looked(200, 400, hold=held(-60)).lock
    assert lock is not None
    return lock


@pytest.mark.parametrize(
    ("load", "whole", "is_over"),
    [(100, 249, True), (100, 250, False), (400_001, 1_000_000, True), (400, 1_000, False), (100, 100, True)],
)
def test_a_share_is_more_than_the_limit(load: int, whole: int, is_over: bool) -> None:
    assert (looked(load, whole).over_since_s == NOW_S) is is_over


def test_below_the_floor_nothing_is_compared() -> None:
    standing = series(NEIGHBOUR, {0: 99}, whole=slots({0: 99}))
    assert share.judge_share(NEIGHBOUR, standing, None, now(is_warden=True)) is None
    standing = series(NEIGHBOUR, {-325: 50, 0: 99}, whole=slots({0: 99}))  # and some that has left
    assert share.judge_share(NEIGHBOUR, standing, None, now(is_warden=True)) is None


@pytest.mark.parametrize(
    ("hold", "since_s"),
    [
        # since_s: since when it is over its mark; None: it is locked
        (None, 0),
        (held(-59.5), -59.5),
        (held(-60), None),
        (held(-90, -30), None),
        (held(-90, -30.5), 0),  # the last look is too long ago
        (held(-40, -30), -40),
    ],
)
def test_a_lock_comes_after_its_hold_without_a_gap(hold: Hold | None, since_s: float | None) -> None:
    answer = looked(200, 400, hold=hold)
    assert answer.over_since_s == (None if since_s is None else NOW_S + since_s)
    assert (answer.lock is not None) is (since_s is None)
    assert answer.until_s == NOW_S + 1
    if answer.lock is not None:
        assert (answer.lock.began, answer.lock.until) == (at_s(0), at_s(60))


@pytest.mark.parametrize(
    ("load", "whole", "ends"), [(25, 100, False), (24, 100, True), (0, 100, True), (249, 1_000, True)]
)
def test_a_lock_ends_below_the_mark_of_release(load: int, whole: int, ends: bool) -> None:
    assert looked(load, whole, lock=locked()).clears is ends


@pytest.mark.parametrize(("left_s", "until_s"), [(29, 60), (30, 60), (31, 31), (60, 60)])
def test_a_lock_that_continues_is_extended_half_a_minute_before_its_end(left_s: int, until_s: int) -> None:
    answer = looked(200, 400, lock=replace(locked(), until=at_s(left_s)))
    assert answer.lock is not None
    assert answer.lock.until == at_s(until_s)


@pytest.mark.parametrize(("behind_s", "is_behind"), [(0, False), (25, False), (25.5, True)])
def test_nothing_is_compared_while_the_analyzers_are_behind(behind_s: float, is_behind: bool) -> None:
    answer = looked(200, 400, hold=held(-60), behind_s=behind_s)
    assert (answer.is_behind, answer.lock is None) == (is_behind, is_behind)


@pytest.mark.parametrize(("period_s", "most_s"), [(12, 5), (60, 5), (300, 25), (3_600, 300)])
def test_how_far_the_analyzers_may_be_behind(period_s: int, most_s: float) -> None:
    assert behind_max_s(LoadShare("neighbour", 1, 1, Rolling(period_s))) == most_s


@pytest.mark.parametrize(
    ("load", "whole", "most"), [(1, 1_000, 400), (1, 100, 100), (1, 250, 100), (1, 253, 101)]
)
def test_a_series_may_have_its_share_and_the_floor_at_least(load: int, whole: int, most: int) -> None:
    standing = series(NEIGHBOUR, {0: load}, whole=slots({0: whole}))
    assert share.amounts(NEIGHBOUR, standing, now()) == (load, most)


OVERLOAD = CapacityShare("overload", 1_000, 100, WINDOW, release=800_000, per="caller+resource")


@pytest.mark.parametrize(
    ("whole", "loads", "blamed"),
    [
        (1_000, {"a": 900, "b": 100}, None),
        (1_001, {"a": 501, "b": 500}, {"a"}),
        (1_001, {"a": 99, "b": 99}, set()),  # below the floor
        (1_001, {"a": 100, "b": 99}, {"a"}),
        (1_500, {"a": 500, "b": 400}, {"a"}),
        (1_501, {"a": 500, "b": 400}, {"a", "b"}),
        (1_500, {"b": 500, "a": 500}, {"a"}),  # of equal ones the first by name
        (2_000, {"a": 300, "b": 400, "c": 300}, {"a", "b", "c"}),
        (9_000, {"a": 300, "b": 400}, {"a", "b"}),
    ],
)
def test_the_fewest_series_are_locked_without_which_the_rest_is_within_the_capacity(
    whole: int, loads: dict[str, int], blamed: set[str] | None
) -> None:
    of_all = [series(OVERLOAD, {0: load}, key=key, whole=slots({0: whole})) for key, load in loads.items()]
    found = capacity.overloads(OVERLOAD, of_all, {}, now())
    assert {total.key for total in found["/export"]} == blamed if blamed is not None else not found


@pytest.mark.parametrize(("whole", "blamed"), [(1_500, None), (1_501, {"b"})])
def test_the_load_of_locked_series_is_left_out(whole: int, blamed: set[str] | None) -> None:
    loads = {"a": 500, "b": 400}
    of_all = [series(OVERLOAD, {0: load}, key=key, whole=slots({0: whole})) for key, load in loads.items()]
    at = lock_key(OVERLOAD, of_all[0].total)
    lock = replace(locked(), scope=at.scope, key=at.key, resource=at.resource, policy=at.policy)
    found = capacity.overloads(OVERLOAD, of_all, {at: lock}, now())
    assert {total.key for total in found["/export"]} == blamed if blamed is not None else not found
    ended = {at: replace(lock, until=at_s(0))}
    assert {total.key for total in capacity.overloads(OVERLOAD, of_all, ended, now())["/export"]} >= {"a"}


@pytest.mark.parametrize(("whole", "is_released"), [(800, False), (799, True), (1_200, False), (0, True)])
def test_locks_of_an_overload_end_below_the_mark_of_release(whole: int, is_released: bool) -> None:
    standing = series(OVERLOAD, {0: 100}, whole=slots({0: whole}))
    assert capacity.find(OVERLOAD, standing, now()).is_released is is_released


UNUSUAL = UsualShare("unusual", 3_000, 100, WINDOW, release=750_000)


@pytest.mark.parametrize(
    ("per_hour", "load", "is_over", "is_released"),
    [
        # 12,000 in an hour are 1,000 in the window, and three times that is the limit.
        (12_000, 3_000, False, False),
        (12_000, 3_001, True, False),
        (12_000, 2_250, False, False),
        (12_000, 2_249, False, True),
        # Three times the usual is below the floor, whose part is the mark of release then.
        (120, 31, True, True),
        (120, 74, True, True),
        (120, 75, True, False),
        (None, 9_000, False, True),
    ],
)
def test_a_series_has_more_than_its_multiple_of_the_usual(
    per_hour: int | None, load: int, is_over: bool, is_released: bool
) -> None:
    level = None if per_hour is None else UsualLevel(per_hour, 4)
    found = usual.find(UNUSUAL, series(UNUSUAL, {0: load}, usual=level), now())
    assert (found.is_over, found.is_released) == (is_over, is_released)


@pytest.mark.parametrize(("per_hour", "most"), [(12_000, 3_000), (120, 100), (404, 101), (0, 100)])
def test_a_series_may_have_its_multiple_and_the_floor_at_least(per_hour: int, most: int) -> None:
    standing = series(UNUSUAL, {0: 1}, usual=UsualLevel(per_hour, 4))
    assert usual.amounts(UNUSUAL, standing, now()) == (1, most)
