"""Surges by a share of a series' own requests, against a recount of single records in each second."""

from __future__ import annotations

from datetime import UTC, datetime
from fractions import Fraction
from typing import NamedTuple

from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from analyzer.judging.circumstances import Circumstances, Wait
from analyzer.judging.kinds import policy_kind
from analyzer.judging.kinds.surge import judge_surge
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.totals import Standing, TotalKey
from analyzer.plan.plan import Plan, make_plan
from analyzer.plan.policies import Surge
from analyzer.plan.windows import ALWAYS, Rolling
from gatekeeper.model import Lock
from tests.oracle.test_rolling import BEGIN_S, KEY, slots_of
from tests.support.depth import deeper


class Request(NamedTuple):
    """A request: when it was logged, when it is counted, and whether it failed."""

    at_s: int
    counted_s: int
    has_failed: bool


def present(policy: Surge, requests: list[Request], now_s: int) -> tuple[int, int]:
    """Returns the errors and requests of the present window; each counts until its slot has left that."""
    slot_s, period_s = policy.window.slot_s, policy.window.period_s
    inside = [
        one
        for one in requests
        if one.counted_s <= now_s < one.at_s // slot_s * slot_s + period_s + slot_s and one.at_s <= now_s
    ]
    return sum(one.has_failed for one in inside), len(inside)


def must_be_locked(policy: Surge, requests: list[Request], now_s: int) -> bool:
    errors, of = present(policy, requests, now_s)
    return errors >= policy.limit and Fraction(errors) > Fraction(policy.share, 10**6) * of


class Attacked:
    """One series as SQL keeps it: a total of errors with its `next`, and slots of errors and of requests."""

    def __init__(self, policy: Surge) -> None:
        self.plan: Plan = make_plan([], [], [policy])
        self.policy = policy
        self.total = TotalKey(policy_kind(policy).judged_sum(policy), KEY, "", ALWAYS)
        self.used, self.next = 0, plan_sums(self.plan).first_judgement(self.total.sum)
        self.requests: list[Request] = []
        self.look_s = float("inf")
        self.lock: Lock | None = None
        self.looks = 0

    def second(self, requests: list[Request], now_s: int) -> None:
        """Counts what comes in a second, and judges as a flush does, or else as the warden does."""
        self.requests += requests
        self.used += sum(one.has_failed for one in requests)
        is_grown = any(one.has_failed for one in requests) and self.used >= self.next
        is_ending = self.lock is not None and self.lock.until.timestamp() <= now_s
        if not (is_grown or is_ending or now_s >= self.look_s):
            return
        self.looks += 1
        self.look_s = float("inf") if now_s >= self.look_s else self.look_s
        rolling = self.policy.window
        errors, all_ = (
            slots_of(rolling, [(one.at_s, 1) for one in self.requests if one.has_failed or not failed])
            for failed in (True, False)
        )
        standing = Standing(self.total, self.used, errors, base=all_)
        self.next = plan_sums(self.plan).next_judgement(standing, now_s)
        present_lock = None if is_ending else self.lock
        found = judge_surge(
            self.policy, standing, present_lock, Circumstances(datetime.fromtimestamp(now_s, UTC))
        )
        if isinstance(found, Wait):
            self.look_s = found.until_s
        self.lock = found if isinstance(found, Lock) else present_lock


traffic = st.lists(
    st.tuples(
        st.integers(0, 60),  # when
        st.sampled_from([0, 0, 0, 0, 2, 11]),  # seconds late
        st.integers(0, 6),  # errors
        st.integers(0, 12),  # and others
    ),
    max_size=25,
)


def requests_of(given: list[tuple[int, int, int, int]]) -> list[Request]:
    return [
        Request(BEGIN_S + second - late_s, BEGIN_S + second, has_failed)
        for second, late_s, errors, others in given
        for has_failed in [True] * errors + [False] * others
    ]


@settings(max_examples=deeper(130))
@given(
    st.sampled_from([5, 12, 24, 36]),
    st.integers(1, 12),
    st.sampled_from([100_000, 500_000, 900_000]),
    traffic,
)
# The successes leave the window before the errors do, and nothing more comes.
@example(12, 4, 500_000, [(0, 0, 0, 12), (5, 0, 6, 0)])
@example(5, 1, 100_000, [(0, 0, 1, 12), (3, 0, 1, 6), (4, 0, 1, 12)])
def test_a_series_is_locked_as_soon_as_enough_of_its_requests_fail(
    period_s: int, limit: int, share: int, given: list[tuple[int, int, int, int]]
) -> None:
    policy = Surge(
        "guessing",
        limit,
        Rolling(period_s),
        (1,),
        meter="errors",
        share=share,
        base="requests",
    )
    series, requests = Attacked(policy), requests_of(given)
    locked = innocent = 0
    for now_s in range(BEGIN_S, BEGIN_S + 60 + 2 * period_s):
        before = series.lock
        series.second([one for one in requests if one.counted_s == now_s], now_s)
        must = must_be_locked(policy, [one for one in requests if one.counted_s <= now_s], now_s)
        if must:
            assert series.lock is not None, "enough requests fail, and there is no lock"
        if series.lock is not None and series.lock is not before:
            assert must, "locked, and not enough requests fail"
        locked += must
        innocent += not must and present(policy, requests, now_s)[0] >= limit
    event(
        f"{'locked' if locked else 'never locked'}, {'above' if innocent else 'never above'} the floor alone"
    )


def test_a_heavy_user_with_few_errors_is_judged_rarely() -> None:
    """200 requests a second, 2 % of which fail: each window has twelve times the floor of errors."""
    policy = Surge(
        "guessing", 20, Rolling(60), meter="errors", share=500_000, base="requests", lock_for_s=(60,)
    )
    series = Attacked(policy)
    for now_s in range(BEGIN_S, BEGIN_S + 900):
        inside = series.requests
        series.requests = [one for one in inside if one.at_s > now_s - 120]
        series.second([Request(now_s, now_s, n < 4) for n in range(200)], now_s)
        assert series.lock is None
    assert series.looks <= 900 / 30 + 5, "twice in each window"
