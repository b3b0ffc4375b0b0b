"""The numbers of surges, in tables: half of a limit, ends, durations, backlogs, shares."""

from __future__ import annotations

from math import inf

import pytest

from analyzer.judging.circumstances import Wait
from analyzer.judging.kinds.earned_locks import lock_key
from analyzer.judging.kinds.surge import judge_surge
from analyzer.judging.kinds.surge_windows import growth_to
from analyzer.judging.rolling import AddressSums
from analyzer.plan.policies import Surge
from analyzer.plan.windows import Rolling
from gatekeeper.model import Lock
from tests.core.judging.series_now import NOW_S, at_s, now, series

FLOOD = Surge("flood", 10, Rolling(60), (1,))


def network(limit: int) -> Surge:
    return Surge("flood", limit, Rolling(60), (1,), per="address/24")


def guessing(limit: int = 20) -> Surge:
    return Surge("guessing", limit, Rolling(60), (1,), meter="errors", share=500_000, base="requests")


@pytest.mark.parametrize(
    ("limit", "all_", "busiest", "locks", "growth"),
    [
        # growth: how much more must be counted before the network is judged again
        (60, 100, 70, True, None),
        (60, 100, 71, False, 1),
        (60, 100, 90, False, 20),
        (61, 100, 69, True, None),
        (61, 100, 70, False, 1),  # half of an odd limit is rounded up
        (60, 60, 30, True, None),
        (60, 59, 1, False, 1),
        (60, 40, 40, False, 30),  # the others have further to go than the limit
        (60, 40, 5, False, 20),
    ],
)
def test_a_network_is_locked_when_it_has_half_of_the_limit_without_its_busiest_address(
    limit: int, all_: int, busiest: int, locks: bool, growth: int | None
) -> None:
    policy = network(limit)
    standing = series(policy, {0: all_}, addresses={NOW_S: AddressSums(9, busiest)})
    assert isinstance(judge_surge(policy, standing, None, now()), Lock) is locks
    assert growth_to(policy, standing, NOW_S) == growth


@pytest.mark.parametrize(
    ("counts", "lock_for_s", "until_s"),
    [
        # Slots of five seconds: what is in one leaves the window 65 seconds after its start.
        ({0: 10}, 1, 65),
        ({0: 10}, 65, 65),
        ({0: 10}, 66, 66),
        ({0: 10}, 600, 600),
        ({-40: 10}, 1, 25),
        ({-40: 10}, 24, 25),
        ({-40: 3, -5: 7}, 1, 25),  # below the limit when the first ones have left
        ({-40: 3, -5: 12}, 1, 60),
        ({-60: 10}, 1, 5),
        ({-60: 10}, 7, 7),
    ],
)
def test_a_lock_lasts_as_long_as_configured_and_until_what_has_earned_it_has_left_the_window(
    counts: dict[int, int], lock_for_s: int, until_s: int
) -> None:
    policy = Surge("flood", 10, Rolling(60), (lock_for_s,))
    lock = judge_surge(policy, series(policy, counts), None, now())
    assert isinstance(lock, Lock)
    assert (lock.began, lock.until) == (at_s(0), at_s(until_s))


@pytest.mark.parametrize(("ended", "lasts_s"), [(0, 100), (1, 200), (2, 300), (3, 300), (9, 300)])
def test_each_offence_in_a_row_earns_the_next_duration(ended: int, lasts_s: int) -> None:
    policy = Surge("flood", 10, Rolling(60), (100, 200, 300))
    standing = series(policy, {0: 10})
    lock = judge_surge(policy, standing, None, now(offences={lock_key(policy, standing.total): ended}))
    assert isinstance(lock, Lock)
    assert lock.until == at_s(lasts_s)


@pytest.mark.parametrize(
    ("used", "behind_s", "expected"),
    [(9, 0, None), (10, 0, "lock"), (10, 60, "lock"), (10, 60.5, "behind"), (9, 61, None)],
)
def test_an_analyzer_that_is_behind_by_more_than_the_window_waits(
    used: int, behind_s: float, expected: str | None
) -> None:
    answer = judge_surge(FLOOD, series(FLOOD, {0: used}), None, now(behind_s=behind_s))
    if isinstance(answer, Wait):
        assert (answer.is_behind, answer.until_s) == (True, NOW_S + 1)
        assert expected == "behind"
    else:
        assert (None if answer is None else "lock") == expected


@pytest.mark.parametrize(
    ("part", "base", "locks", "growth"),
    [
        (20, 39, True, None),
        (20, 40, False, 1),  # half of the base is not more than half
        (21, 41, True, None),
        (19, 19, False, 1),  # below the floor
        (20, 100, False, 31),
        (60, 100, True, None),
    ],
)
def test_a_part_is_locked_from_the_floor_on_when_it_is_more_than_its_share(
    part: int, base: int, locks: bool, growth: int | None
) -> None:
    policy = guessing()
    standing = series(policy, {0: part}, base=series(policy, {0: base}).slots)
    assert isinstance(judge_surge(policy, standing, None, now()), Lock) is locks
    assert growth_to(policy, standing, NOW_S) == growth


@pytest.mark.parametrize(
    ("part", "base", "look_s"),
    [
        ({0: 20}, {0: 100}, 30),  # half a window at the latest
        ({0: 20}, {-60: 61, 0: 39}, 5),  # when what succeeded has left
        ({0: 20}, {-40: 61, 0: 39}, 25),
        ({0: 20}, {-30: 61, 0: 39}, 30),
        ({0: 20}, {-60: 60, 0: 40}, 30),  # and what is left is not too large a share
    ],
)
def test_a_share_is_judged_again_when_time_alone_can_make_it_too_large(
    part: dict[int, int], base: dict[int, int], look_s: int
) -> None:
    policy = guessing()
    standing = series(policy, part, base=series(policy, base).slots)
    answer = judge_surge(policy, standing, None, now())
    assert (answer.until_s if isinstance(answer, Wait) else inf) == NOW_S + look_s


@pytest.mark.parametrize(
    ("ahead_s", "look_s"),
    [(59, None), (60, 1), (61, 2), (100, 41)],  # None: the window holds the present
)
def test_a_clock_that_is_ahead_is_judged_when_its_window_begins_to_hold_the_present(
    ahead_s: int, look_s: int | None
) -> None:
    answer = judge_surge(FLOOD, series(FLOOD, {ahead_s: 10}), None, now())
    if look_s is None:
        assert isinstance(answer, Lock)
    else:
        assert isinstance(answer, Wait)
        assert answer.until_s == NOW_S + look_s
