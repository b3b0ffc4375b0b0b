"""Surges of networks against a recount of single records in each second: no lock is late or unearned."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from fractions import Fraction
from typing import NamedTuple

from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from analyzer.judging.circumstances import Circumstances, Wait
from analyzer.judging.kinds import policy_kind
from analyzer.judging.kinds.surge import judge_surge
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.rolling import addresses_at, sums_at, window_ends
from analyzer.judging.totals import Standing, TotalKey
from analyzer.plan.plan import make_plan
from analyzer.plan.policies import Surge
from analyzer.plan.windows import ALWAYS, Rolling
from gatekeeper.model import Lock
from tests.oracle.test_rolling import BEGIN_S, slots_of
from tests.support.depth import deeper

NETWORK = "203.0.113.0/24"


class Request(NamedTuple):
    """A request: the time in its record, when that is counted, and the last part of its address."""

    at_s: int
    counted_s: int
    host: int


def earning(policy: Surge, counted: list[Request], now_s: int) -> bool:
    """Whether a window that holds the present has the limit, and half of it without its busiest address."""
    slot_s, period_s = policy.window.slot_s, policy.window.period_s
    starts = [(one.at_s // slot_s * slot_s, one.host) for one in counted]
    ahead_s = {start_s for start_s, _ in starts if now_s < start_s < now_s + period_s}
    for end_s in (now_s, *ahead_s):
        inside = Counter(host for start_s, host in starts if end_s - period_s - slot_s < start_s <= end_s)
        rest = inside.total() - max(inside.values(), default=0)
        if inside.total() >= policy.limit and Fraction(rest) >= Fraction(policy.limit, 2):
            return True
    return False


class Network:
    """One network as SQL keeps it: a total with its `next`, its slots, and those of its addresses."""

    def __init__(self, policy: Surge) -> None:
        self.plan, self.policy = make_plan([], [], [policy]), policy
        self.total = TotalKey(policy_kind(policy).judged_sum(policy), NETWORK, "", ALWAYS)
        self.used, self.next = 0, plan_sums(self.plan).first_judgement(self.total.sum)
        self.counted: list[Request] = []
        self.look_s = float("inf")
        self.lock: Lock | None = None
        self.looks = 0

    def second(self, requests: list[Request], now_s: int) -> None:
        """Counts what comes in a second, and judges as a flush does, or else as the warden does."""
        self.counted += requests
        self.used += len(requests)
        is_ending = self.lock is not None and self.lock.until.timestamp() <= now_s
        if not (requests and self.used >= self.next) and not is_ending and now_s < self.look_s:
            return
        self.looks += 1
        self.look_s = float("inf") if now_s >= self.look_s else self.look_s
        standing = self.standing(now_s)
        self.next = plan_sums(self.plan).next_judgement(standing, now_s)
        present = None if is_ending else self.lock
        answer = judge_surge(
            self.policy, standing, present, Circumstances(datetime.fromtimestamp(now_s, UTC))
        )
        if isinstance(answer, Wait):
            self.look_s = answer.until_s
        self.lock = answer if isinstance(answer, Lock) else present

    def standing(self, now_s: int) -> Standing:
        """The total with all slots, and with the addresses of the windows that have reached the limit."""
        rolling = self.policy.window
        slots = slots_of(rolling, [(one.at_s, 1) for one in self.counted])
        ends_s = window_ends(slots, now_s)
        sums = zip(ends_s, sums_at(slots, rolling, ends_s), strict=True)
        full_s = [end_s for end_s, value in sums if value >= self.policy.limit]
        cells = sorted((one.at_s - one.at_s % rolling.slot_s, str(one.host), 1) for one in self.counted)
        return Standing(self.total, self.used, slots, addresses=addresses_at(cells, rolling, full_s))


# By the second: how late the records are (below 0: of a clock that is ahead), whose they are, and how many.
traffic = st.lists(
    st.tuples(
        st.integers(0, 60),
        st.sampled_from([0, 0, 0, 0, 1, 3, 11, -1, -7, -40]),
        st.sampled_from([1, 1, 1, 2, 3, 4, 5]),
        st.integers(1, 9),
    ),
    max_size=30,
)


def requests_of(records: list[tuple[int, int, int, int]]) -> list[Request]:
    return [
        Request(BEGIN_S + second - late_s, BEGIN_S + second, host)
        for second, late_s, host, number in records
        for _ in range(number)
    ]


@settings(max_examples=deeper(130))
@given(st.sampled_from([5, 12, 36, 60]), st.integers(2, 25), traffic)
# The busiest address reaches the limit alone, and the others half of it right after.
@example(60, 12, [(0, 0, 1, 9), (0, 0, 1, 9), (1, 0, 2, 3), (2, 0, 3, 2), (3, 0, 4, 1)])
# A clock ahead: its address is alone in a window of the future.
@example(12, 9, [(0, -7, 1, 9), (1, 0, 2, 2)])
@example(12, 9, [(0, -40, 1, 9), (0, -40, 2, 9), (1, 0, 2, 2)])
# A window of the future is full, and others than its busiest address come when it holds the present.
@example(12, 13, [(0, -40, 1, 6), (0, -40, 2, 7), (28, 0, 1, 1)])
def test_a_network_is_locked_in_the_second_in_which_others_than_its_busiest_address_have_half_the_limit(
    period_s: int, limit: int, records: list[tuple[int, int, int, int]]
) -> None:
    policy = Surge("flood", limit, Rolling(period_s), (1,), per="address/24")
    network, requests = Network(policy), requests_of(records)
    locked = alone = 0
    for now_s in range(BEGIN_S, BEGIN_S + 60 + 2 * period_s):
        before = network.lock
        network.second([one for one in requests if one.counted_s == now_s], now_s)
        must = earning(policy, network.counted, now_s)
        if must:
            assert network.lock is not None, "the network has earned a lock, and has none"
        if network.lock is not None and network.lock is not before:
            assert must, "locked, and it has not earned it"
        locked += must
        alone += not must and len(network.counted) >= limit
    event(f"{'locked' if locked else 'never locked'}, {'alone' if alone else 'never alone'} at the limit")


def test_a_flood_of_one_address_is_judged_once_in_half_of_the_limit() -> None:
    """Requests lead to as many judgements as those of a sum below its limit; time leads to none."""
    policy = Surge("flood", 600, Rolling(60), per="address/24")
    network = Network(policy)
    for now_s in range(BEGIN_S, BEGIN_S + 200):
        network.counted = [one for one in network.counted if one.at_s > now_s - 90]
        network.second([Request(now_s, now_s, 1)] * 40 + [Request(now_s, now_s, 2)], now_s)
        assert network.lock is None
        assert network.look_s == float("inf")
    assert network.looks <= 200 * 41 / (300 - 60) + 5
