"""The numbers of quotas, in tables: graces, ends of rolling locks, the growth that moves them, notices."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from analyzer.judging.circumstances import Wait
from analyzer.judging.earned_notices import LASTS_S, LastNotice, amount_at, notice_key
from analyzer.judging.kinds.quota import (
    calendar_notices,
    growth_to_extend,
    judge_calendar,
    judge_rolling,
    judged_sum,
    rolling_notices,
)
from analyzer.judging.rolling import begins_s, below_s, growth_to
from analyzer.judging.totals import Standing, TotalKey
from analyzer.plan.meter_units import UNLIMITED
from analyzer.plan.policies import Grace, Quota, RollingQuota
from analyzer.plan.windows import ALWAYS, Calendar, Rolling, Window
from gatekeeper.model import WITHOUT_END, Lock
from tests.core.judging.series_now import NOW_S, at_s, now, series, slots

MINUTE = Rolling(60)  # slots of five seconds


def earned(answer: Lock | Wait | None) -> Lock | None:
    return answer.lock if isinstance(answer, Wait) else answer


def rolling(limit: int = 10, grace: Grace = Grace()) -> RollingQuota:
    return RollingQuota("rolling", limit, MINUTE, grace=grace)


@pytest.mark.parametrize(
    ("limit", "grace", "locks_at"),
    [
        (1_000, Grace(), 1_000),
        (1_000, Grace(thousandths=100), 1_100),
        (1_005, Grace(thousandths=100), 1_106),  # rounded up: never less than the grace
        (1_000, Grace(thousandths=1), 1_001),
        (1, Grace(thousandths=1), 2),
        (1_000, Grace(amount=7), 1_007),
        (1_000, Grace(time_s=900), 1_000),
    ],
)
def test_the_amount_from_which_on_a_quota_locks(limit: int, grace: Grace, locks_at: int) -> None:
    policy = rolling(limit, grace)
    assert policy.locks_at == locks_at
    if not grace.time_s:
        answers = [
            judge_rolling(policy, series(policy, {0: locks_at + more}), None, now()) for more in (-1, 0)
        ]
        assert [earned(answer) is not None for answer in answers] == [False, True]


@pytest.mark.parametrize(
    ("limit", "threshold", "amount"),
    [(100, 800, 80), (3, 500, 2), (1, 1, 1), (1_000, 999, 999), (7, 1_000, 7), (10, 1_200, 12)],
)
def test_the_amount_of_a_threshold_is_rounded_up(limit: int, threshold: int, amount: int) -> None:
    assert amount_at(limit, threshold) == amount


@pytest.mark.parametrize(
    ("counts", "until_s", "growth"),
    [
        # until_s: when less than ten are in a window; growth: what moves that by more than a slot.
        ({0: 10}, 65, None),  # the present slot has the limit: nothing does before the next one begins
        ({-5: 10}, 60, 10),
        ({-60: 10}, 5, 10),
        ({-60: 3, 0: 10}, 65, None),
        ({-60: 3, -5: 7}, 5, 3),
        ({-60: 5, -55: 1, -5: 7}, 5, 3),
        ({-60: 3, -55: 3, -5: 7}, 10, 3),
        ({-60: 3, -30: 4, -5: 7}, 35, 3),
        ({-60: 2, -30: 11}, 35, 10),
    ],
)
def test_the_end_of_a_rolling_lock_and_the_growth_that_moves_it(
    counts: dict[int, int], until_s: int, growth: int | None
) -> None:
    policy = rolling()
    standing = series(policy, counts)
    answer = judge_rolling(policy, standing, None, now())
    lock = earned(answer)
    assert lock is not None
    assert lock.until == at_s(until_s)
    assert growth_to_extend(policy, standing, NOW_S) == growth
    assert (answer.until_s if isinstance(answer, Wait) else None) == (NOW_S + 5 if growth is None else None)


@pytest.mark.parametrize(
    ("counts", "begins", "growth"),
    [
        # When the window of a clock that is ahead begins to hold the present; what reaches the limit before.
        ({60: 10}, 1, 10),
        ({100: 10}, 41, 10),
        ({0: 4, 100: 10}, 41, 6),
        ({60: 4, 100: 6}, 41, 6),
        ({60: 10, 100: 1}, 1, 10),
    ],
)
def test_the_window_of_a_clock_ahead(counts: dict[int, int], begins: int, growth: int) -> None:
    counted = slots(counts)
    assert begins_s(counted, MINUTE, 10, NOW_S) == NOW_S + begins
    assert growth_to(counted, MINUTE, 10, NOW_S) == growth
    answer = judge_rolling(rolling(), series(rolling(), counts), None, now())
    assert isinstance(answer, Wait)
    assert answer.until_s == NOW_S + begins


@pytest.mark.parametrize(
    ("limit", "until_s"), [(1, 65), (7, 65), (8, 50), (10, 50), (11, 5), (13, 5), (14, 0), (99, 0)]
)
def test_from_when_on_a_limit_is_not_reached(limit: int, until_s: int) -> None:
    assert below_s(slots({-60: 3, -15: 3, 0: 7}), MINUTE, limit, NOW_S) == NOW_S + until_s


def last_notice(raised_s: int, *, lasts: bool) -> LastNotice:
    at_s = NOW_S + raised_s
    return LastNotice(at_s, LASTS_S if lasts else at_s + 1, at_s)


@pytest.mark.parametrize(
    ("raised_s", "lasts", "locks", "look_s"),
    [
        (None, False, False, 65),  # the grace begins now, and less is in the window before it ends
        (-899, True, False, 1),
        (-900, True, True, 5),  # as each lock of the present slot: when the next one begins
        (-5_000, False, False, 65),  # a notice that is over begins no grace
    ],
)
def test_a_grace_of_time_begins_with_the_notice(
    raised_s: int | None, lasts: bool, locks: bool, look_s: int
) -> None:
    policy = rolling(grace=Grace(time_s=900))
    standing, known = series(policy, {0: 10}), {}
    if raised_s is not None:
        key = notice_key(policy.name, standing.total, 1_000)
        known[key] = last_notice(raised_s, lasts=lasts)
    answer = judge_rolling(policy, standing, None, now(notices=known))
    assert isinstance(answer, Wait)
    assert (answer.lock is not None, answer.until_s) == (locks, NOW_S + look_s)


@pytest.mark.parametrize(
    ("used", "last_s", "lasts", "expected"),
    [
        # expected: whether a notice is new, and whether it lasts; None: nothing has changed
        (7, None, False, None),
        (8, None, False, (True, True)),
        (8, -5, True, None),
        (7, -5, True, (False, False)),
        (8, -59, False, (False, True)),  # it continues
        (8, -60, False, (True, True)),
    ],
)
def test_a_threshold_raises_one_notice_in_a_window(
    used: int, last_s: int | None, lasts: bool, expected: tuple[bool, bool] | None
) -> None:
    policy = RollingQuota("rolling", 10, MINUTE, notify=(800,))
    standing, known = series(policy, {0: used}), {}
    if last_s is not None:
        key = notice_key(policy.name, standing.total, 800)
        known[key] = last_notice(last_s, lasts=lasts)
    found = rolling_notices(policy, standing, now(notices=known))
    assert [(not one.was_raised, one.until_s == LASTS_S) for one in found] == ([expected] if expected else [])


def calendar(policy: Quota, used: int, window: Window) -> Lock | Wait | None:
    total = TotalKey(judged_sum(policy), "api_key:acme", "", window)
    return judge_calendar(policy, Standing(total, used), None, now())


NOW = Window(NOW_S - 10, NOW_S + 10)
OVER = Window(NOW_S - 20, NOW_S)
AHEAD = Window(NOW_S + 10, NOW_S + 30)
BEGIN, END = (datetime.fromtimestamp(NOW_S + 86_400 * days, UTC).date().isoformat() for days in (-9, 9))
CONTRACT = Calendar("contract", days=(BEGIN, END))
SOLD = CONTRACT.contract or OVER
FORMER = Calendar("contract", days=("2001-01-01", "2002-01-01"))
SINCE = Window((FORMER.contract or OVER).until_s, ALWAYS.until_s)


@pytest.mark.parametrize(
    ("policy", "used", "window", "is_locked", "is_endless"),
    [
        (Quota("q", 0, Calendar("day")), 0, NOW, True, True),  # nothing is allowed, in any window
        (Quota("q", 0, Calendar("day")), 0, OVER, True, True),
        (Quota("q", 0, Calendar("day")), 0, AHEAD, True, True),
        (Quota("q", 0, Calendar("day"), grace=Grace(amount=9)), 0, NOW, True, True),
        (Quota("q", 0, Calendar("day"), grace=Grace(time_s=9)), 0, NOW, True, True),
        (Quota("q", 0, Calendar("day"), action="notify"), 9, NOW, False, False),
        (Quota("q", UNLIMITED, Calendar("day")), UNLIMITED + 1, NOW, False, False),
        (Quota("q", UNLIMITED - 1, Calendar("day")), UNLIMITED - 1, NOW, True, False),
        (Quota("q", 5, Calendar("lifetime")), 5, ALWAYS, True, True),
        (Quota("q", 5, Calendar("lifetime")), 4, ALWAYS, False, False),
        (Quota("q", 5, CONTRACT), 5, SOLD, True, False),
        (Quota("q", 5, CONTRACT), 5, Window(0, SOLD.start_s), False, False),
        (Quota("q", 5, CONTRACT), 5, Window(SOLD.until_s, ALWAYS.until_s), False, False),
        (Quota("q", 5, FORMER), 5, SINCE, False, False),
    ],
)
def test_limits_of_0_and_none_and_windows_that_do_not_repeat(
    policy: Quota, used: int, window: Window, is_locked: bool, is_endless: bool
) -> None:
    lock = earned(calendar(policy, used, window))
    assert (lock is not None) is is_locked
    assert (lock is not None and lock.until == WITHOUT_END) is is_endless


@pytest.mark.parametrize("threshold", [500, 1_000])
def test_a_limit_of_0_and_a_contract_that_has_ended_raise_no_notice(threshold: int) -> None:
    nothing = Quota("q", 0, Calendar("day"), notify=(threshold,))
    ended = Quota("q", 5, FORMER, notify=(threshold,))
    for policy, window in ((nothing, NOW), (ended, SINCE)):
        total = TotalKey(judged_sum(policy), "api_key:acme", "", window)
        assert not calendar_notices(policy, Standing(total, 9), now())
