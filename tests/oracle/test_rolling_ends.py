"""The end of a rolling quota's lock against what is counted, in each second, and how often it is changed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from analyzer.judging.circumstances import Circumstances
from analyzer.judging.judge import judge
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.rolling import below_s
from analyzer.judging.totals import Standing, TotalKey
from analyzer.plan.plan import make_plan
from analyzer.plan.policies import RollingQuota
from analyzer.plan.windows import ALWAYS, Rolling
from gatekeeper.model import Lock, Set
from tests.oracle.test_rolling import BEGIN_S, KEY, Series, slots_of
from tests.support.depth import deeper

EXTENDED_S = 2  # before its end the warden looks at a lock


class Locked:
    """A series that is judged by flushes, and by the warden when its lock is about to end."""

    def __init__(self, policy: RollingQuota) -> None:
        self.policy = policy
        self.series = Series(make_plan([], [], [policy]), policy.window)
        self.lock: Lock | None = None
        self.changes: list[int] = []  # when the lock was set or extended
        self.look_s = float("inf")  # when the warden judges, grown or not
        self.judgements = 0

    @property
    def until_s(self) -> int:
        """The end that gates know; 0 without a lock."""
        return 0 if self.lock is None else int(self.lock.until.timestamp())

    def second(self, records: list[tuple[int, int]], now_s: int) -> None:
        """Counts what comes in a second, and judges as a flush does, or else as the warden does."""
        standing = self.series.add(records, now_s)
        is_ending = self.lock is not None and self.until_s - EXTENDED_S <= now_s
        if standing is None and (is_ending or now_s >= self.look_s):
            slots = slots_of(self.policy.window, self.series.records)
            standing = Standing(TotalKey(self.series.sum, KEY, "", ALWAYS), self.series.used, slots)
            self.series.next = plan_sums(self.series.plan).next_judgement(standing, now_s)
        if standing is not None:
            locks = {} if self.lock is None else {self.lock.at: self.lock}
            at = Circumstances(datetime.fromtimestamp(now_s, UTC))
            judgement = judge(self.series.plan, [standing], locks, at)
            self.judgements += 1
            self.look_s = judgement.waiting[standing.total].until_s if judgement.waiting else float("inf")
            for change in judgement.changes:
                assert isinstance(change, Set)
                self.lock = change.lock
                self.changes.append(now_s)
        if self.until_s <= now_s:
            self.lock = None


traffic = st.lists(
    st.tuples(st.integers(0, 150), st.sampled_from([0, 0, 0, 3, 20, -3]), st.integers(1, 9)), max_size=40
)


@settings(max_examples=deeper(100))
@given(st.sampled_from([5, 12, 60, 120]), st.integers(2, 30), traffic)
@example(60, 9, [(0, 0, 9), (30, 0, 8), (31, 0, 1)])
def test_the_end_that_gates_know_is_at_most_a_slot_before_the_one_that_is_counted(
    period_s: int, limit: int, records: list[tuple[int, int, int]]
) -> None:
    policy = RollingQuota("rolling", limit, Rolling(period_s))
    locked, stale_s, ahead_s = Locked(policy), 0, 0
    for now_s in range(BEGIN_S, BEGIN_S + 160):
        due = [(now_s - late_s, n) for second, late_s, n in records if BEGIN_S + second == now_s]
        locked.second(due, now_s)
        if any(at_s > now_s for at_s, _ in due):
            ahead_s = now_s + policy.window.slot_s  # of a clock ahead: seen when the next slot begins
        counted_s = below_s(slots_of(policy.window, locked.series.records), policy.window, limit, now_s)
        if locked.lock is not None:
            stale_s = max(stale_s, counted_s - locked.until_s)
            assert counted_s - locked.until_s <= policy.window.slot_s or now_s < ahead_s
    event(f"{min(len(locked.changes), 4)} changes, {'stale' if stale_s else 'never stale'}")


@pytest.mark.parametrize("times", [1.2, 2, 7, 30, 400])
def test_a_lock_whose_requests_still_count_is_extended_once_in_a_slot_at_most(times: float) -> None:
    """Requests at `times` the limit, of a client that no gate refuses."""
    policy = RollingQuota("rolling", 120, Rolling(120))
    locked = Locked(policy)
    for now_s in range(BEGIN_S, BEGIN_S + 600):
        whole = int((now_s + 1 - BEGIN_S) * times) - int((now_s - BEGIN_S) * times)
        locked.second([(now_s, whole)], now_s)
    in_a_window = [sum(at_s <= other < at_s + 120 for other in locked.changes) for at_s in locked.changes]
    assert locked.changes
    assert max(in_a_window) <= 120 / policy.window.slot_s + 1
    # However much each flush brings: two judgements in a slot, and one for the first lock.
    assert locked.judgements <= 2 * 600 / policy.window.slot_s + 12


def test_a_lock_in_shadow_is_extended_when_it_ends() -> None:
    locked = Locked(RollingQuota("rolling", 120, Rolling(120), mode="shadow"))
    for now_s in range(BEGIN_S, BEGIN_S + 600):
        locked.second([(now_s, 7)], now_s)
    assert 1 <= len(locked.changes) <= 600 / 90 + 1
