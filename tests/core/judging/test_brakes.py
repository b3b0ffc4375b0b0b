"""The brake: which new locks a policy sets, compared with a slow oracle."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from analyzer.judging.brakes import (
    BrakeState,
    NewLock,
    apply_brake,
    describe_brake,
    is_braked_by,
    state_text,
    unchanged,
    with_the_same_brake,
)
from analyzer.plan.mapping import SourceMapping
from analyzer.plan.meters import DAY_S, Meter
from analyzer.plan.plan import Plan, make_plan, plan_from
from analyzer.plan.policies import DEFAULT_BRAKE, Brake, Quota
from analyzer.plan.windows import Calendar
from gatekeeper.model import LockKey

DAY_MS = DAY_S * 1000
BORN_MS = 20_000 * DAY_MS
DAILY = Quota("daily", 5, Calendar("day"))


def braked(**bound: Any) -> Quota:
    return msgspec.structs.replace(DAILY, brake=Brake(**bound))


def new(name: str, used: int, requests: int = 0, limit: int = 5) -> NewLock:
    return NewLock(LockKey("caller", name, "", "daily"), used, limit, requests)


def names(found: Any) -> list[str]:
    return [at.key for at in found]


# Single rules


def test_a_young_policy_sets_as_many_locks_as_its_bound_allows() -> None:
    policy, state = braked(callers=2), BrakeState(0)
    done = apply_brake(policy, state, [new("ann", 5), new("bob", 9)], None, 1_000)
    assert (done.in_shadow, done.waiting, done.alarm) == (False, {}, "")
    assert done.state == BrakeState(0, interval_ms=0, locks=2), "an interval that is not over"
    later = apply_brake(policy, state, [new("ann", 5)], None, 300_000).state
    assert later == BrakeState(0, interval_ms=300_000, locks=1), "it begins with the first lock"


def test_beyond_it_all_of_them_are_in_shadow() -> None:
    policy, state = braked(callers=2), BrakeState(0, 1_000, 2)
    done = apply_brake(policy, state, [new("eve", 5)], None, 2_000)
    assert done.in_shadow
    assert done.state.braked_ms == 2_000
    assert (
        done.alarm
        == "the brake holds daily: it locks 3 in 5m, and 2 are allowed; its locks are in shadow from now on"
    )
    assert state_text(done.state, 2_000) == "in shadow since 1970-01-01 00:00:02Z"
    again = apply_brake(policy, done.state, [new("fay", 5)], None, 10 * DAY_MS)
    assert (again.in_shadow, again.alarm, again.state) == (True, "", done.state)


def test_a_later_interval_begins_at_zero() -> None:
    policy, state = braked(callers=2), BrakeState(0, 1_000, 2)
    done = apply_brake(policy, state, [new("eve", 5)], None, 301_000)
    assert done.state == BrakeState(0, interval_ms=301_000, locks=1)
    assert apply_brake(policy, state, [new("eve", 5)], None, 300_999).in_shadow


def test_a_transaction_that_began_before_the_interval_counts_in_it() -> None:
    """A transaction that waits for the row of the brake has an earlier time than the one it waited for."""
    state = BrakeState(0, interval_ms=DAY_MS + 5, locks=1)
    done = apply_brake(braked(callers=1), state, [new("eve", 5)], None, DAY_MS + 1)
    assert names(done.waiting) == ["eve"]


def test_a_clock_that_was_ahead_does_not_hold_an_interval() -> None:
    state = BrakeState(0, interval_ms=10 * DAY_MS, locks=2)
    assert apply_brake(braked(callers=2), state, [new("eve", 5)], None, 5_000).state.interval_ms == 5_000


def test_the_part_of_the_traffic_is_that_of_all_new_locks_of_the_interval() -> None:
    policy = braked(traffic=300_000)
    first = apply_brake(policy, BrakeState(0), [new("ann", 5, 20)], 100, 1_000)
    assert not first.in_shadow
    assert not apply_brake(policy, first.state, [new("bob", 5, 10)], 100, 2_000).in_shadow
    second = apply_brake(policy, first.state, [new("bob", 5, 11)], 100, 2_000)
    assert second.in_shadow
    assert "it locks 31.0% of the traffic in 5m, and 30% are allowed" in second.alarm
    assert not apply_brake(policy, first.state, [new("bob", 5, 90)], None, 2_000).in_shadow, "not known"


def test_an_older_policy_sets_the_heaviest_and_the_rest_waits_in_their_order() -> None:
    policy = braked(callers=2)
    waiting = [new("ann", 6), new("bob", 600, limit=500), new("eve", 50), new("fay", 7)]
    done = apply_brake(policy, BrakeState(0), waiting, None, DAY_MS)
    assert not done.in_shadow
    assert sorted(names(done.waiting)) == ["ann", "bob"], "bob is at 1.2 of the limit"
    assert all(DAY_MS + 300_000 <= due <= DAY_MS + 301_000 for due in done.waiting.values())
    assert done.alarm.startswith("the brake slows daily: 2 new locks and more wait")
    heavier = apply_brake(policy, done.state, [new("gus", 500)], None, DAY_MS + 1_000)
    [due] = heavier.waiting.values()
    assert due < min(done.waiting.values()), "the heaviest is judged first in the next interval"
    assert heavier.alarm == "", "one alarm for a stretch of intervals"
    assert state_text(done.state, DAY_MS + 599_000) == "new locks wait for their interval"
    assert state_text(done.state, DAY_MS + 600_000) == ""


@pytest.mark.parametrize(("requests", "waits"), [(299, False), (300, True), (301, True)])
def test_an_older_policy_sets_locks_until_it_has_its_part_of_the_traffic(requests: int, waits: bool) -> None:
    state = BrakeState(0, DAY_MS, locks=1, requests=requests)
    done = apply_brake(braked(traffic=300_000), state, [new("ann", 9, 80)], 1_000, DAY_MS)
    assert (names(done.waiting), done.state.locks) == ((["ann"], 1) if waits else ([], 2))


@pytest.mark.parametrize(("requests", "is_beyond"), [(299, False), (300, False), (301, True)])
def test_a_young_policy_may_have_exactly_its_part_of_the_traffic(requests: int, is_beyond: bool) -> None:
    done = apply_brake(braked(traffic=300_000), BrakeState(0), [new("ann", 9, requests)], 1_000, 1_000)
    assert done.in_shadow is is_beyond


def test_an_older_policy_sets_one_lock_even_beyond_its_part_of_the_traffic() -> None:
    done = apply_brake(
        braked(traffic=10_000), BrakeState(0), [new("ann", 9, 80), new("bob", 8, 1)], 100, DAY_MS
    )
    assert names(done.waiting) == ["bob"]


def test_a_released_policy_counts_as_older() -> None:
    done = apply_brake(
        braked(callers=1), BrakeState(0, released_ms=1), [new("ann", 9), new("bob", 8)], None, 2_000
    )
    assert (done.in_shadow, names(done.waiting)) == (False, ["bob"])


def test_the_default_bound_is_for_the_first_day_alone() -> None:
    many = [new(f"c{n}", 5) for n in range(DEFAULT_BRAKE.callers + 1)]
    assert apply_brake(DAILY, BrakeState(0), many, None, 1_000).in_shadow
    done = apply_brake(DAILY, BrakeState(0), many, None, DAY_MS)
    assert (done.in_shadow, done.waiting) == (False, {})
    assert describe_brake(DAILY) == (
        "its brake in the first day: 1,000 new locks in 5m, then its locks are in shadow; none later"
    )


def test_policies_that_lock_nothing_and_those_without_a_bound_have_no_brake() -> None:
    assert is_braked_by(DAILY)
    assert not is_braked_by(msgspec.structs.replace(DAILY, mode="shadow"))
    assert not is_braked_by(msgspec.structs.replace(DAILY, action="notify"))
    assert not is_braked_by(braked())
    assert describe_brake(braked()) == "it has no brake"


# The age of a policy


def plan(policy: Quota = DAILY, source: str = "json", meter: str = "bytes") -> Plan:
    meters = [Meter("cost", meter)]
    policy = msgspec.structs.replace(policy, meter="cost")
    return make_plan([], meters, [policy], {"log": SourceMapping(source, {}, ())})


@pytest.mark.parametrize(
    "change", [{"status": 403}, {"on_stale": "allow"}, {"notify": (500,)}, {"brake": Brake(callers=7)}]
)
def test_settings_that_change_no_lock_leave_a_policy_its_age(change: dict[str, Any]) -> None:
    changed = msgspec.structs.replace(DAILY, **change)
    assert unchanged(plan(), plan(changed)) == {"daily"}
    assert with_the_same_brake(plan(), plan(changed), {"daily"}) == (
        set() if "brake" in change else {"daily"}
    )


@pytest.mark.parametrize(
    "change", [{"limit": 6}, {"window": Calendar("hour")}, {"per": "tenant"}, {"mode": "shadow"}]
)
def test_settings_that_change_whom_it_locks_make_it_young(change: dict[str, Any]) -> None:
    assert unchanged(plan(), plan(msgspec.structs.replace(DAILY, **change))) == set()


def test_another_meaning_of_its_meter_or_of_a_source_makes_it_young() -> None:
    assert unchanged(plan(), plan(meter="price")) == set()
    assert unchanged(plan(), plan(source="combined")) == set()
    more = make_plan(
        [],
        plan().meters,
        plan().policies,
        {**plan().sources, "other": SourceMapping("json", {}, ())},
    )
    assert unchanged(plan(), more) == {"daily"}, "a source more changes nothing"


def test_the_stored_plan_has_the_brake_and_an_earlier_one_has_none() -> None:
    stated = make_plan([], [], [braked(callers=7, traffic=50_000)])
    assert plan_from(stated.to_json()) == stated
    assert make_plan([], [], [braked()]) != make_plan([], [], [DAILY])
    assert "brake" not in make_plan([], [], [DAILY]).to_json()


# Against a slow oracle


@dataclass
class Slow:
    """All locks with their times; each question reads them all."""

    policy: Quota
    begun: list[tuple[int, NewLock]] = field(default_factory=list)
    interval_ms: int | None = None
    braked: bool = False

    def decide(self, batch: list[NewLock], total: int | None, now_ms: int) -> tuple[bool, set[str]]:
        """Returns whether the locks are in shadow, and those that wait."""
        assert isinstance(self.policy.brake, Brake)
        length_ms = self.policy.brake.per_s * 1000
        if self.braked:
            return True, set()
        if self.interval_ms is None or now_ms >= self.interval_ms + length_ms:
            self.interval_ms = now_ms
        if now_ms - BORN_MS < DAY_MS:
            if self.is_beyond([*self.present(), *batch], total):
                self.braked = True
                return True, set()
            self.begun += [(now_ms, one) for one in batch]
            return False, set()
        left = list(batch)
        while left and not self.is_full(total):
            heaviest = max(Fraction(one.used, one.limit) for one in left)
            name = min(one.at for one in left if Fraction(one.used, one.limit) == heaviest)
            [one] = [one for one in left if one.at == name]
            left.remove(one)
            self.begun.append((now_ms, one))
        return False, {one.at.key for one in left}

    def present(self) -> list[NewLock]:
        return [one for at_ms, one in self.begun if at_ms >= (self.interval_ms or 0)]

    def is_beyond(self, found: list[NewLock], total: int | None) -> bool:
        bound = self.policy.brake
        assert isinstance(bound, Brake)
        too_many = bound.callers > 0 and len(found) > bound.callers
        requests = sum(one.requests for one in found)
        return too_many or (
            bool(bound.traffic and total)
            and Fraction(requests, total or 1) > Fraction(bound.traffic, 1_000_000)
        )

    def is_full(self, total: int | None) -> bool:
        bound, found = self.policy.brake, self.present()
        assert isinstance(bound, Brake)
        if bound.callers and len(found) >= bound.callers:
            return True
        if not (bound.traffic and total and found):
            return False
        return Fraction(sum(one.requests for one in found), total) >= Fraction(bound.traffic, 1_000_000)


LOCKS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9), st.integers(0, 50)), min_size=1, max_size=6)
BATCHES = st.lists(st.tuples(st.integers(0, 400_000), LOCKS, st.none() | st.integers(0, 300)), max_size=8)
BOUNDS = st.builds(Brake, callers=st.integers(0, 8), traffic=st.sampled_from([0, 100_000, 500_000]))


@given(BOUNDS, BATCHES, st.sampled_from([0, DAY_MS - 300_000, DAY_MS]))
@example(Brake(callers=1), [(0, [(1, 1, 0), (1, 1, 0)], None)], DAY_MS)
@example(Brake(callers=1), [(9, [(1, 1, 0)], None), (299_999, [(1, 1, 0)], None)], 0)
def test_the_brake_decides_as_the_slow_oracle_does(
    bound: Brake, batches: list[tuple[int, list[tuple[int, int, int]], int | None]], begin_ms: int
) -> None:
    policy = msgspec.structs.replace(DAILY, brake=bound)
    slow, state, now_ms, number = Slow(policy), BrakeState(BORN_MS), BORN_MS + begin_ms, 0
    for later_ms, locks, total in batches:
        now_ms += later_ms
        batch = []
        for used, limit, requests in locks:
            number += 1
            batch.append(new(f"c{number:03}", used, requests, limit))
        done = apply_brake(policy, state, batch, total, now_ms)
        assert (done.in_shadow, {at.key for at in done.waiting}) == slow.decide(batch, total, now_ms)
        assert all(due > now_ms for due in done.waiting.values())
        state = done.state
