"""Rolling sums against a recount of single records: when slots are read, and which locks are raised."""

from __future__ import annotations

from datetime import UTC, datetime
from time import thread_time

from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from analyzer.judging.circumstances import Circumstances, Wait
from analyzer.judging.kinds.earned_locks import lock_key
from analyzer.judging.kinds.quota import judge_rolling, judged_sum
from analyzer.judging.kinds.surge import judge_surge
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.rolling import (
    DistinctSlot,
    Slot,
    begins_s,
    below_s,
    largest_sum,
    present_sum,
    sum_at,
    sums_at,
)
from analyzer.judging.totals import Standing, TotalKey
from analyzer.plan.plan import Plan, make_plan
from analyzer.plan.policies import RollingQuota, Surge
from analyzer.plan.windows import ALWAYS, DAY_S, Rolling
from gatekeeper.model import Lock
from tests.support.depth import deeper

BEGIN_S = 1_795_219_200
KEY = "api_key:acme"

periods = st.sampled_from([5, 7, 12, 30, 60, 90, 600, 3600, 7200, DAY_S])
# Seconds from now, in thousandths of the period: late records, and those of clocks that are ahead.
times = st.lists(st.tuples(st.integers(-2_500, 1_500), st.integers(1, 9)), max_size=30)


def slots_of(rolling: Rolling, records: list[tuple[int, int]]) -> list[Slot]:
    """Adds records, each with its time and amount, up to slots."""
    found: dict[int, int] = {}
    for at_s, amount in records:
        start_s = at_s - at_s % rolling.slot_s
        found[start_s] = found.get(start_s, 0) + amount
    return [Slot(start_s, found[start_s]) for start_s in sorted(found)]


def recount(records: list[tuple[int, int]], period_s: int, end_s: int) -> int:
    """Returns what single records add up to in the window (end - period, end]."""
    return sum(amount for at_s, amount in records if end_s - period_s < at_s <= end_s)


def placed(rolling: Rolling, relative: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(BEGIN_S + offset * rolling.period_s // 1000, amount) for offset, amount in relative]


@given(periods)
def test_slots_divide_the_window_and_are_at_most_a_twelfth_of_it(period_s: int) -> None:
    rolling = Rolling(period_s)
    assert period_s % rolling.slot_s == 0
    assert rolling.slot_s * 12 <= period_s or rolling.slot_s == 1
    assert rolling.has_slots or rolling.slot_s % 60 == 0


@given(periods, times, st.integers(0, 3_000))
def test_a_sum_is_never_too_low_and_too_high_by_one_slot_at_most(
    period_s: int, relative: list[tuple[int, int]], later: int
) -> None:
    rolling = Rolling(period_s)
    records = placed(rolling, relative)
    end_s = BEGIN_S + later * period_s // 1000
    found = sum_at(slots_of(rolling, records), rolling, end_s)
    assert recount(records, period_s, end_s) <= found
    # A slot that has begun counts whole, at either end.
    assert found <= recount(records, period_s + 2 * rolling.slot_s, end_s + rolling.slot_s)


@given(periods, times)
def test_the_largest_sum_is_that_of_the_fullest_window(
    period_s: int, relative: list[tuple[int, int]]
) -> None:
    rolling = Rolling(period_s)
    slots = slots_of(rolling, placed(rolling, relative))
    ends_s = range(BEGIN_S, BEGIN_S + 3 * period_s, rolling.slot_s)
    starts_s = [slot.start_s for slot in slots if slot.start_s >= BEGIN_S]
    every = [sum_at(slots, rolling, end_s) for end_s in (*ends_s, *starts_s)]
    assert largest_sum(slots, rolling, BEGIN_S) == max(every)
    present = [
        sum_at(slots, rolling, end_s)
        for end_s in (*ends_s, *starts_s)
        if end_s == BEGIN_S or BEGIN_S < end_s < BEGIN_S + period_s
    ]
    assert present_sum(slots, rolling, BEGIN_S) == max(present)


@given(periods, times, st.integers(1, 60))
def test_a_lock_ends_when_no_window_reaches_the_limit_any_more(
    period_s: int, relative: list[tuple[int, int]], limit: int
) -> None:
    rolling = Rolling(period_s)
    slots = slots_of(rolling, placed(rolling, relative))
    until_s = below_s(slots, rolling, limit, BEGIN_S)
    ends_s = {slot.start_s + rolling.period_s + rolling.slot_s for slot in slots}
    moments = sorted({BEGIN_S, *ends_s, *(end_s - 1 for end_s in ends_s)} | {slot.start_s for slot in slots})
    reached = [at_s for at_s in moments if at_s >= BEGIN_S and sum_at(slots, rolling, at_s) >= limit]
    assert until_s == (max(reached) + 1 if reached else BEGIN_S)
    if largest_sum(slots, rolling, BEGIN_S) >= limit > present_sum(slots, rolling, BEGIN_S):
        begins = begins_s(slots, rolling, limit, BEGIN_S)
        assert begins > BEGIN_S
        assert present_sum(slots, rolling, begins) >= limit
        assert present_sum(slots, rolling, begins - 1) < limit


def distinct_slots_of(rolling: Rolling, records: list[tuple[int, int]]) -> list[DistinctSlot]:
    """Returns slots of distinct values, each the amount of a record."""
    found: dict[int, set[int]] = {}
    for at_s, value in records:
        found.setdefault(at_s - at_s % rolling.slot_s, set()).add(value)
    return [DistinctSlot(start_s, frozenset(found[start_s])) for start_s in sorted(found)]


@given(periods, times)
def test_windows_of_distinct_values_are_counted_together_as_one_by_one(
    period_s: int, relative: list[tuple[int, int]]
) -> None:
    rolling = Rolling(period_s)
    slots = distinct_slots_of(rolling, placed(rolling, relative))
    kept_s = rolling.period_s + rolling.slot_s
    ends_s = sorted(
        {slot.start_s + more for slot in slots for more in (0, 1, kept_s - 1, kept_s, 2 * kept_s)}
    )
    inside = (
        [one.values for one in slots if one.start_s <= end_s < one.start_s + kept_s] for end_s in ends_s
    )
    assert sums_at(slots, rolling, ends_s) == [len(frozenset[int]().union(*sets)) for sets in inside]


def test_the_end_of_a_long_window_is_found_in_one_pass() -> None:
    """Measured: 3 ms for a month of quarter-hours, 1.3 s by adding up each of its windows."""
    rolling = Rolling(31 * DAY_S)
    begin_s = BEGIN_S - rolling.period_s
    slots = [Slot(begin_s + n * rolling.slot_s, n % 7) for n in range(rolling.period_s // rolling.slot_s)]
    began_s = thread_time()
    assert sum(sum_at(slots, rolling, slot.start_s) for slot in slots[-100:]) > 0
    one_by_one_s = thread_time() - began_s
    began_s = thread_time()
    assert below_s(slots, rolling, 10**6, BEGIN_S) == BEGIN_S
    assert thread_time() - began_s < one_by_one_s / 5, "in the time of a few of its windows, not of all"


class Series:
    """One series as SQL keeps it: a total that only grows, its `next`, and slots."""

    def __init__(self, plan: Plan, rolling: Rolling) -> None:
        (self.sum,) = plan_sums(plan).policies_by_sum
        self.plan, self.rolling = plan, rolling
        self.used = 0
        self.next = plan_sums(plan).first_judgement(self.sum)
        self.records: list[tuple[int, int]] = []
        self.reads = 0

    def add(self, records: list[tuple[int, int]], now_s: int) -> Standing | None:
        """Adds one flush; returns the total if it must be judged."""
        self.records += records
        self.used += sum(amount for _, amount in records)
        if not records or self.used < self.next:
            return None
        self.reads += 1
        slots = slots_of(self.rolling, self.records)
        standing = Standing(TotalKey(self.sum, KEY, "", ALWAYS), self.used, slots)
        self.next = plan_sums(self.plan).next_judgement(standing, now_s)
        return standing


# Few records at a time, so that a limit is reached by many flushes; some late, some of a clock that is ahead.
few = st.lists(
    st.tuples(st.sampled_from([0, 0, 0, 0, -100, -300, -900, 200, 700, 1_200]), st.integers(1, 4)), max_size=3
)
steps = st.lists(st.tuples(st.sampled_from([0, 20, 90, 90, 400]), few), min_size=10, max_size=40)


@settings(max_examples=deeper(130))
@given(st.sampled_from([5, 60, 600, DAY_S]), st.integers(6, 30), steps)
# A clock that is ahead has reached the limit in a window of the future.
@example(5, 6, [(0, [(0, 1)]), (0, [(1200, 3)]), (0, [(0, 3), (1200, 3)]), (0, [(0, 2)])])
def test_no_crossing_is_missed_by_looking_only_after_growth(
    period_s: int, limit: int, steps: list[tuple[int, list[tuple[int, int]]]]
) -> None:
    """With late records and clocks ahead: whenever a window that holds the present reaches the limit, the
    total was judged since, and answered with a lock or with a time before then."""
    rolling = Rolling(period_s)
    policy = RollingQuota("rolling", limit, rolling)
    series, now_s = Series(make_plan([], [], [policy]), rolling), BEGIN_S
    locked_until_s, look_at_s = 0.0, float("inf")
    for later, relative in steps:
        now_s += later * period_s // 1000
        records = [(now_s + offset * period_s // 1000, amount) for offset, amount in relative]
        standing = series.add(records, now_s)
        slots = slots_of(rolling, series.records)
        if standing is None and (now_s >= look_at_s or now_s >= locked_until_s > 0):
            standing = Standing(TotalKey(series.sum, KEY, "", ALWAYS), series.used, slots)  # the warden
            series.next = plan_sums(series.plan).next_judgement(standing, now_s)
        if standing is not None:
            locked_until_s, look_at_s = 0.0, float("inf")
            match judge_rolling(policy, standing, None, Circumstances(datetime.fromtimestamp(now_s, UTC))):
                case Lock(until=until):
                    locked_until_s = until.timestamp()
                case Wait(until_s, lock=lock):
                    look_at_s = until_s
                    locked_until_s = 0.0 if lock is None else lock.until.timestamp()
        if recount(series.records, period_s, now_s) >= limit:
            assert now_s < locked_until_s, "the limit is reached, and there is no lock"
        if now_s < locked_until_s:
            assert largest_sum(slots, rolling, now_s) >= limit, "locked below the limit"
    event(f"slots read {min(series.reads, 5)} times")


@given(times, st.integers(1, 60), st.integers(0, 4))
def test_a_surge_locks_by_the_present_window_until_what_earned_it_has_left(
    relative: list[tuple[int, int]], limit: int, before: int
) -> None:
    rolling = Rolling(60)
    policy = Surge("flood", limit, rolling, (60, 70, 90))
    records = placed(rolling, relative)
    slots = slots_of(rolling, records)
    total = TotalKey(judged_sum(policy), KEY, "", ALWAYS)
    standing = Standing(total, sum(amount for _, amount in records), slots)
    now = datetime.fromtimestamp(BEGIN_S, UTC)
    at = Circumstances(now, offences={lock_key(policy, total): before})
    found = judge_surge(policy, standing, None, at)
    reached = present_sum(slots, rolling, BEGIN_S) >= limit
    assert isinstance(found, Lock) == reached
    if isinstance(found, Lock):
        earned_s = (60, 70, 90)[min(before, 2)]
        left_s = below_s(slots, rolling, limit, BEGIN_S) - BEGIN_S
        assert (found.until - now).total_seconds() == max(earned_s, left_s)
        assert judge_surge(policy, standing, found, at._replace(now=found.until)) is None, "earned once"
        assert judge_surge(policy, standing, found, at) is found, "a lock in force stays as it is"
        assert isinstance(judge_surge(policy, standing, None, at._replace(behind_s=61)), Wait)
