"""Thresholds and graces of rolling quotas against a recount of single records in each second."""

from __future__ import annotations

from datetime import UTC, datetime
from fractions import Fraction
from typing import NamedTuple

from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from analyzer.judging.circumstances import Circumstances, Wait
from analyzer.judging.earned_notices import LASTS_S, LastNotice, NoticeKey
from analyzer.judging.kinds.quota import judge_rolling, rolling_notices
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.totals import Standing, TotalKey
from analyzer.plan.plan import make_plan
from analyzer.plan.policies import Grace, RollingQuota
from analyzer.plan.windows import ALWAYS, Rolling
from gatekeeper.model import Lock
from tests.oracle.test_rolling import BEGIN_S, KEY, Series, slots_of
from tests.support.depth import deeper

Records = dict[int, list[tuple[int, int]]]  # by the second in which they are counted: time and amount


def present(records: Records, rolling: Rolling, now_s: int) -> int:
    """Returns what the present window holds: a record counts until its slot has left the window."""
    return sum(
        amount
        for counted_s, found in records.items()
        for at_s, amount in found
        if counted_s <= now_s < at_s // rolling.slot_s * rolling.slot_s + rolling.period_s + rolling.slot_s
    )


def expected_notices(policy: RollingQuota, records: Records, seconds: int) -> set[tuple[int, int]]:
    """Returns when each threshold is raised: when it is passed from below, once in the window's length."""
    found: set[tuple[int, int]] = set()
    period_s = policy.window.period_s
    for threshold in policy.thresholds:
        raised_s, was_below = None, True
        for now_s in range(BEGIN_S, BEGIN_S + seconds):
            is_below = present(records, policy.window, now_s) < Fraction(policy.limit * threshold, 1_000)
            rest_s = 1 if threshold == 1_000 and policy.grace_given.time_s else period_s
            if was_below and not is_below and (raised_s is None or now_s >= raised_s + rest_s):
                raised_s = now_s
                found.add((threshold, now_s))
            was_below = is_below
    return found


class Played(NamedTuple):
    """The notices that were raised, as threshold and time; the seconds in which there was a lock."""

    raised: set[tuple[int, int]]
    locked_s: set[int]


def play(policy: RollingQuota, records: Records, seconds: int) -> Played:
    """Counts and judges as flushes and the warden do."""
    series = Series(make_plan([], [], [policy]), policy.window)
    total = TotalKey(series.sum, KEY, "", ALWAYS)
    last: dict[NoticeKey, LastNotice] = {}
    raised: set[tuple[int, int]] = set()
    locked_s: set[int] = set()
    look_s, locked_until_s = float("inf"), 0.0
    for now_s in range(BEGIN_S, BEGIN_S + seconds):
        standing = series.add(records.get(now_s, []), now_s)
        is_ending = 0 < locked_until_s <= now_s
        if standing is None and (now_s >= look_s or is_ending):
            standing = Standing(total, series.used, slots_of(policy.window, series.records))
            series.next = plan_sums(series.plan).next_judgement(standing, now_s)
        if standing is not None:
            look_s = float("inf") if now_s >= look_s else look_s
            locked_until_s = 0.0 if is_ending else locked_until_s
            at = Circumstances(datetime.fromtimestamp(now_s, UTC), notices=last)
            for notice in rolling_notices(policy, standing, at):
                if not notice.was_raised:
                    raised.add((notice.at.threshold, now_s))
                key, began_s = notice.at._replace(window_s=0), notice.at.window_s
                before = last.get(key)
                raised_s = before.raised_s if notice.was_raised and before else float(now_s)
                last[key] = LastNotice(began_s, notice.until_s, raised_s)
            answer = judge_rolling(policy, standing, None, at)
            lock = answer.lock if isinstance(answer, Wait) else answer
            look_s = answer.until_s if isinstance(answer, Wait) else look_s
            if isinstance(lock, Lock):
                locked_until_s = max(locked_until_s, lock.until.timestamp())
        if now_s < locked_until_s:
            locked_s.add(now_s)
    assert all(one.window_s <= one.until_s <= LASTS_S for one in last.values())
    return Played(raised, locked_s)


counted = st.lists(
    st.tuples(st.integers(0, 60), st.sampled_from([0, 0, 0, 1, 4, 9]), st.integers(1, 5)), max_size=25
)


def records_of(given: list[tuple[int, int, int]]) -> Records:
    """Returns records by the second of their counting, some of them late."""
    found: Records = {}
    for second, late_s, amount in given:
        found.setdefault(BEGIN_S + second, []).append((BEGIN_S + second - late_s, amount))
    return found


@settings(max_examples=deeper(100))
@given(st.sampled_from([5, 12, 24]), st.integers(4, 20), counted)
@example(5, 10, [(0, 0, 5), (20, 0, 5), (22, 0, 5), (23, 0, 5)])
@example(12, 4, [(0, 0, 4), (14, 0, 4), (30, 0, 4)])
def test_a_threshold_is_raised_each_time_the_sum_passes_it_once_in_the_length_of_the_window(
    period_s: int, limit: int, given: list[tuple[int, int, int]]
) -> None:
    policy = RollingQuota("rolling", limit, Rolling(period_s), action="notify", notify=(250, 500, 1_000))
    records, seconds = records_of(given), 60 + 3 * period_s
    played = play(policy, records, seconds)
    assert played.raised == expected_notices(policy, records, seconds)
    assert not played.locked_s
    event(f"{max((sum(t == one for t, _ in played.raised) for one in policy.thresholds), default=0)} times")


@settings(max_examples=deeper(60))
@given(st.sampled_from([5, 24]), st.integers(4, 20), st.integers(0, 9), counted)
def test_the_lock_of_a_rolling_quota_with_a_grace_by_volume_begins_beyond_it(
    period_s: int, limit: int, more: int, given: list[tuple[int, int, int]]
) -> None:
    policy = RollingQuota("rolling", limit, Rolling(period_s), grace=Grace(amount=more))
    records, seconds = records_of(given), 60 + 3 * period_s
    above = {
        now_s
        for now_s in range(BEGIN_S, BEGIN_S + seconds)
        if present(records, policy.window, now_s) >= limit + more
    }
    assert play(policy, records, seconds).locked_s == above


@settings(max_examples=deeper(100))
@given(st.sampled_from([5, 24]), st.integers(4, 20), st.integers(1, 15), counted)
@example(24, 4, 3, [(0, 0, 4)])
def test_a_grace_of_time_ends_so_long_after_the_sum_has_passed_the_limit(
    period_s: int, limit: int, grace_s: int, given: list[tuple[int, int, int]]
) -> None:
    policy = RollingQuota("rolling", limit, Rolling(period_s), grace=Grace(time_s=grace_s))
    records, seconds = records_of(given), 60 + 3 * period_s
    wanted, since_s = set(), None
    for now_s in range(BEGIN_S, BEGIN_S + seconds):
        if present(records, policy.window, now_s) < limit:
            since_s = None
            continue
        since_s = now_s if since_s is None else since_s
        if now_s >= since_s + grace_s:
            wanted.add(now_s)
    found = play(policy, records, seconds).locked_s
    assert found == wanted
    event("locked" if found else "never locked")
