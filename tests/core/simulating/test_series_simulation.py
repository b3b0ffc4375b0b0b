"""One policy on the buckets of one series."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from analyzer.forecast.simulation.policy_locks import PolicyLocks, SeriesLocks, changes
from analyzer.forecast.simulation.series_simulation import (
    SeriesBucket,
    SeriesSimulation,
    SimulatedLock,
    SimulatedPolicy,
)
from analyzer.judging.caller_limits import Directory, Limits, Override, Profile, Subject
from analyzer.plan.plan import Plan
from analyzer.plan.policies import Grace, Policy, Quota, RollingQuota, Surge
from analyzer.plan.windows import Calendar, Rolling

DAY_S, HOUR_S, QUARTER_S, MINUTE_S = 86_400, 3_600, 900, 60
BEGIN_S = 1_795_219_200  # 2026-11-21T00:00:00Z
ACME = "api_key:acme"


def bucket(
    after_s: int, admitted: int, denied: int = 0, width_s: int = MINUTE_S, requests: int | None = None
) -> SeriesBucket:
    total = admitted + denied if requests is None else requests
    return SeriesBucket(BEGIN_S + after_s, width_s, admitted, denied, total)


def simulated(
    policy: Policy, buckets: Iterable[SeriesBucket], directory: Directory | None = None
) -> SeriesSimulation:
    plan = Plan(policies=(policy,))
    one = SeriesSimulation(SimulatedPolicy(plan, Limits(plan, directory or Directory())), ACME, "")
    for counted in buckets:
        one.add(counted)
    one.pass_to(BEGIN_S + 40 * DAY_S)
    return one


def shown(one: SeriesSimulation) -> list[tuple[int, int, int]]:
    """Returns begin, end and requests of the locks, in seconds after BEGIN_S."""
    return [(lock.began_s - BEGIN_S, lock.until_s - BEGIN_S, lock.requests) for lock in one.locks]


def test_a_day_is_locked_from_the_bucket_that_reaches_the_limit_until_it_ends() -> None:
    policy = Quota("daily", 10, Calendar("day"), notify=(500,))
    one = simulated(policy, [bucket(60, 4), bucket(600, 10), bucket(DAY_S - 60, 5), bucket(DAY_S, 9)])
    # Of the ten in the second bucket six reach the limit, four come after it.
    assert shown(one) == [(600, DAY_S, 9)]
    assert one.notices == {500: 2}


def test_denied_requests_count_except_during_a_simulated_lock() -> None:
    policy = RollingQuota("rolling", 10, Rolling(HOUR_S))
    refused_before = simulated(policy, [bucket(0, 4, denied=6)])
    assert shown(refused_before) == [(0, HOUR_S + 300, 0)]
    refused_by_it = simulated(policy, [bucket(0, 10), bucket(1_800, 0, denied=50), bucket(2 * HOUR_S, 9)])
    assert shown(refused_by_it) == [(0, HOUR_S + 300, 50)]


def test_admitted_requests_during_a_lock_make_it_last() -> None:
    policy = RollingQuota("rolling", 10, Rolling(HOUR_S))
    one = simulated(policy, [bucket(0, 10), bucket(1_800, 12), bucket(2 * HOUR_S, 1)])
    assert shown(one) == [(0, 1_800 + HOUR_S + 300, 12)]


def test_offences_make_the_locks_of_a_surge_longer_until_they_are_forgotten() -> None:
    policy = Surge("flood", 10, Rolling(720), (1_200, 7_200), forget_after_s=DAY_S)
    one = simulated(policy, [bucket(0, 10), bucket(HOUR_S, 10), bucket(3 * DAY_S, 10)])
    lengths = [lock.until_s - lock.began_s for lock in one.locks]
    assert lengths == [1_259, 7_259, 1_259], "each is judged at the last second of its bucket"


def test_a_grace_of_time_begins_with_the_limit() -> None:
    policy = Quota("daily", 10, Calendar("day"), grace=Grace(time_s=HOUR_S))
    one = simulated(policy, [bucket(0, 10), bucket(1_800, 1), bucket(2 * HOUR_S, 4)])
    assert shown(one) == [(HOUR_S, DAY_S, 4)]


def test_callers_have_their_own_limits_zones_and_anchors() -> None:
    directory = Directory()
    directory.set_profile(ACME, Profile(plan="pro", zone="Asia/Tokyo"))
    policy = Quota("daily", 5, Calendar("day", "UTC", ("zone",)), plan_limits=(("pro", 20),))
    one = simulated(policy, [bucket(0, 19), bucket(15 * HOUR_S, 19), bucket(16 * HOUR_S, 1)], directory)
    assert shown(one) == [(16 * HOUR_S, 39 * HOUR_S, 0)], "a day begins at 15:00 UTC"
    directory.set_override("a", Subject("caller", ACME), Override("exempt"))
    assert shown(simulated(policy, [bucket(0, 100)], directory)) == []


def test_days_are_simulated_from_days() -> None:
    policy = Quota("monthly", 100, Calendar("month"))
    one = simulated(policy, [bucket(day * DAY_S, 40, width_s=DAY_S) for day in range(5)])
    assert shown(one) == [(2 * DAY_S, 10 * DAY_S, 20 + 80)]


@given(
    st.sampled_from([300, 600, 900]),
    st.lists(st.tuples(st.integers(0, 3 * HOUR_S), st.integers(1, 9)), min_size=1, max_size=40),
    st.integers(5, 60),
)
def test_buckets_that_are_wider_than_slots_show_no_lock_too_many(
    period_s: int, records: list[tuple[int, int]], limit: int
) -> None:
    minutes: dict[int, int] = {}
    for at_s, amount in records:
        minutes[at_s // 60 * 60] = minutes.get(at_s // 60 * 60, 0) + amount
    policy = RollingQuota("rolling", limit, Rolling(period_s))
    one = simulated(policy, [bucket(start_s, minutes[start_s]) for start_s in sorted(minutes)])
    live_s = period_s + policy.window.slot_s  # a live window holds its oldest slot whole
    ends_s = {at_s for at_s, _ in records}
    sums = {end_s: sum(n for at_s, n in records if end_s - live_s < at_s <= end_s) for end_s in ends_s}
    for lock in one.locks:
        began_s = lock.began_s - BEGIN_S
        assert any(sums[end_s] >= limit for end_s in ends_s if began_s <= end_s < began_s + MINUTE_S)


def test_changes_are_those_between_two_policies() -> None:
    def locks(**until_s: int) -> PolicyLocks:
        series = {
            (key, ""): SeriesLocks(key, "", [SimulatedLock(0, end_s, 5)]) for key, end_s in until_s.items()
        }
        return PolicyLocks(series, simulated(Quota("q", 1, Calendar("day")), []).notices)

    found = changes(locks(a=5, b=5, c=5, d=5), locks(b=5, c=9, d=2, e=1))
    assert [(one.change, one.of.key) for one in found] == [
        ("newly locked", "a"),
        ("longer", "d"),
        ("shorter", "c"),
        ("no longer locked", "e"),
        ("as before", "b"),
    ]
