"""Properties of every limiter in a real Redis, compared with a slow oracle, by a clock that the test moves.

The scripts are those of the package, except for the line that reads the server's clock. Periods are minutes,
because keys expire by the server's real clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gatekeeper.limits import AllOf, FixedWindow, SlidingCounter, SlidingLog, TokenBucket
from tests.limits.booking_plays import assert_in_order, assert_refunds_give_nothing_back, bookings
from tests.limits.memory_kinds import KINDS as MEMORY_KINDS
from tests.limits.oracles import StepClock, worst_in_any
from tests.limits.redis_kinds import KINDS, Kind, SteppedRedis, new_name
from tests.support.depth import deeper
from tests.support.servers.redis import Redis

every_kind = pytest.mark.parametrize("kind", KINDS, ids=repr)
few = settings(
    max_examples=deeper(8), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
limits = st.integers(1, 7)
periods_us = st.sampled_from([600_000_000, 999_999_937, 8_000_000_000_001])
plays = st.lists(
    st.tuples(
        st.sampled_from(["check", "check", "check", "allow", "peek", "refund"]),
        st.sampled_from(["a", ("a", 1)]),
        st.integers(0, 4),  # cost
        st.fractions(0, 2, max_denominator=12),  # periods that pass before
    ),
    max_size=25,
)


@pytest.fixture(scope="module")
def stepped(redis_server: Redis) -> Iterator[SteppedRedis]:
    server = SteppedRedis(redis_server.url)
    yield server
    server.close()


def start(kind: Kind, stepped: SteppedRedis, limit: int, period_us: int):
    return kind.make(limit, period_us / 1e6, store=stepped.store, name=new_name())


@every_kind
@few
@given(limits, periods_us, plays)
def test_a_shared_limiter_agrees_with_its_oracle_in_every_step(kind, stepped, limit, period_us, play):
    limiter = start(kind, stepped, limit, period_us)
    oracles = defaultdict(lambda: kind.oracle(limit, period_us))
    for action, key, cost, periods_pass in play:
        stepped.move(int(periods_pass * period_us))
        oracle = oracles[key]
        if action == "refund":
            limiter.refund(key, cost)
            oracle.refund(stepped.now_us, cost)
        elif action == "peek":
            assert limiter.peek(key, cost).remaining == oracle.remaining(stepped.now_us)
        else:
            decided = getattr(limiter, action)(key, cost)
            assert bool(decided) == oracle.allow(stepped.now_us, cost)
            assert limiter.peek(key).remaining == oracle.remaining(stepped.now_us)


@every_kind
@few
@given(limits, periods_us, plays, st.integers(1, 4))
def test_retry_after_is_exact_to_the_microsecond(kind, stepped, limit, period_us, play, cost):
    limiter = start(kind, stepped, limit, period_us)
    for _, _, spent, periods_pass in play[:8]:
        stepped.move(int(periods_pass * period_us))
        limiter.allow("a", spent)
    decision = limiter.check("a", cost)
    if decision.allowed:
        assert decision.retry_after == 0.0
    elif decision.retry_after is None:
        stepped.move(10 * period_us)
        assert not limiter.check("a", cost), "a new key would admit it"
    else:
        stepped.move(round(decision.retry_after * 1e6) - 1)
        assert not limiter.peek("a", cost)
        stepped.move(1)
        assert limiter.check("a", cost)


@every_kind
@few
@given(limits, periods_us, plays)
def test_reset_after_is_when_the_key_equals_a_new_one(kind, stepped, limit, period_us, play):
    limiter = start(kind, stepped, limit, period_us)
    for _, _, cost, periods_pass in play[:8]:
        stepped.move(int(periods_pass * period_us))
        limiter.allow("a", cost)
    stepped.move(round(limiter.peek("a").reset_after * 1e6))
    decision, new = limiter.peek("a"), limiter.peek("never seen")
    assert (decision.remaining, decision.reset_after) == (new.remaining, 0.0)


@every_kind
@few
@given(st.integers(1, 60), st.integers(600_000_000, 10**12))
def test_a_new_key_admits_exactly_what_remains(kind, stepped, limit, period_us):
    """No permit is lost to rounding, for any rate and period, within one microsecond."""
    limiter = start(kind, stepped, limit, period_us)
    promised = limiter.peek().remaining
    assert sum(decision.allowed for decision in limiter.check_many([""] * (limit + 5))) == promised


@every_kind
@few
@given(limits, periods_us, st.lists(st.fractions(0, 1, max_denominator=9), max_size=20))
def test_no_period_holds_more_than_the_limit(kind, stepped, limit, period_us, pauses):
    limiter = start(kind, stepped, limit, period_us)
    admitted = []
    for pause in pauses:
        stepped.move(int(pause * period_us))
        admitted += [stepped.now_us] * sum(d.allowed for d in limiter.check_many(["a"] * 3))
    assert worst_in_any(admitted, period_us) <= (limit if kind.exact else 2 * limit)


@every_kind
@few
@given(st.integers(1, 6), periods_us, bookings(most=15))
def test_bookings_keep_the_limit_and_their_order(kind, stepped, limit, period_us, play):
    limiter = start(kind, stepped, limit, period_us)
    admitted = assert_in_order(limiter, play, lambda: stepped.now_us, stepped.move, period_us, 10**6)
    assert worst_in_any(admitted, period_us) <= (limit if kind.exact else 2 * limit)


@every_kind
@few
@given(st.integers(1, 6), st.lists(st.integers(0, 2), max_size=8), st.integers(1, 2))
def test_a_cancelled_reservation_leaves_no_trace(kind, stepped, limit, before, cost):
    limiter = start(kind, stepped, limit, 600_000_000)
    for spent in before:
        stepped.move(70_000_000)
        limiter.allow("a", spent)
    before_booking = limiter.peek("a")
    booked = limiter.reserve("a", cost)
    if booked:
        assert booked.cancel()
        assert not booked.cancel(), "a second call gives nothing back"
    assert limiter.peek("a") == before_booking


@every_kind
def test_a_clock_that_goes_back_admits_no_request_sooner(kind, stepped):
    limiter = start(kind, stepped, 2, 600_000_000)
    for _ in range(3):
        limiter.allow("a")
    refused = limiter.check("a")
    stepped.move(-100_000_000)
    assert not limiter.check("a")
    assert limiter.check("a").retry_after >= refused.retry_after
    stepped.move(800_000_000)
    assert limiter.check("a")


@pytest.mark.parametrize(
    ("before", "used", "after", "remaining"),
    [
        ((1, 600, 10), 10, (100, 600, 10), 0),  # limit, period, burst
        ((100, 600, 100), 100, (1, 600, 100), 0),
        ((10, 600, 100), 100, (10, 600, 10), 0),
        ((1, 600, 10), 10, (10, 600, 100), 90),
        ((7, 900, 7), 3, (14, 900, 14), 11),
    ],
)
def test_another_limit_keeps_the_permits_that_were_used(stepped, before, used, after, remaining):
    name = new_name()
    bucket = TokenBucket(*before, store=stepped.store, name=name)
    assert bucket.check("a", used)
    bucket.configure(*after)
    assert bucket.peek("a").remaining == remaining
    assert TokenBucket(*after, store=stepped.store, name=name).peek("a").remaining == remaining


def test_another_period_keeps_the_permits_that_were_used(stepped):
    for kind in KINDS:
        if kind.name in {"SlidingLog", "FixedWindow", "SlidingCounter"}:
            limiter = start(kind, stepped, 5, 600_000_000)
            limiter.allow("a", 4)
            limiter.configure(limit=6, period=700)
            assert limiter.peek("a").remaining == 2, kind


@pytest.mark.parametrize("period", [100, 300, 400, 700, 1200])
def test_an_aligned_window_that_is_not_over_counts_under_another_period(stepped, period):
    stepped.move_to((stepped.now_us // 4_200_000_000 + 1) * 4_200_000_000 + 450_000_000)
    window = FixedWindow(5, 600, aligned=True, store=stepped.store, name=new_name())
    assert window.allow("a", 4)
    window.configure(limit=6, period=period)
    for _ in range(2):
        assert window.peek("a").remaining == 2
    assert window.allow("a", 2)
    assert not window.allow("a")


def test_windows_that_were_not_aligned_are_aligned_by_a_limiter_that_aligns(stepped):
    stepped.move_to((stepped.now_us // 600_000_000 + 1) * 600_000_000 + 450_000_000)
    before, after = (
        FixedWindow(5, 600, aligned=aligned, store=stepped.store, name="one") for aligned in (False, True)
    )
    assert before.allow("a", 5)
    assert not after.allow("a")
    assert after.peek("a").retry_after == 150


@every_kind
@few
@given(
    limits,
    st.integers(2, 6),
    st.sampled_from([600, 700, 1000, 1500]),
    st.lists(st.fractions(0, 1, max_denominator=7), max_size=6),
    st.lists(st.fractions(0, 1, max_denominator=7), max_size=12),
)
@example(2, 2, 1000, [Fraction(1)], [Fraction(99, 100), Fraction(6, 100), Fraction(30, 100)])  # aligned
def test_after_a_change_the_new_limit_holds(kind, stepped, limit, new_limit, new_period, first, then):
    stepped.move_to((stepped.now_us // 7_000_000_000 + 2) * 7_000_000_000)
    limiter = start(kind, stepped, limit, 700_000_000)
    for pause in first:
        stepped.move(int(pause * 700_000_000))
        limiter.allow("a")
    limiter.configure(limit=new_limit, period=new_period)
    admitted = []
    for pause in then:
        stepped.move(int(pause * new_period * 1_000_000))
        admitted += [stepped.now_us] * sum(limiter.allow("a") for _ in range(3))
    assert worst_in_any(admitted, new_period * 1_000_000) <= new_limit * (1 if kind.exact else 2)


def test_several_limits_in_one_store_decide_as_one(stepped):
    burst = SlidingLog(2, 600, store=stepped.store, name=new_name())
    daily = TokenBucket(5, 6000, store=stepped.store, name=new_name())
    both = AllOf(burst, daily)
    assert [both.check("a").allowed for _ in range(3)] == [True, True, False]
    assert daily.peek("a").remaining == 3, "a request that one part refuses is counted in none"
    refusal = both.check("a")
    assert (refusal.policy, refusal.retry_after) == (burst.name, 600.0)
    stepped.move(600_000_000)
    booked = both.reserve("a", 2)
    assert booked
    assert booked.cancel()
    assert (burst.peek("a").remaining, daily.peek("a").remaining) == (2, 3)
    both.refund("a", 1)
    both.reset("a")
    assert (burst.peek("a").remaining, daily.peek("a").remaining) == (2, 5)


def test_limiters_in_a_store_and_in_memory_do_not_mix(stepped):
    with pytest.raises(ValueError, match="all limiters in one store, or none"):
        AllOf(SlidingLog(1, 1, store=stepped.store), SlidingLog(1, 1))
    with pytest.raises(ValueError, match="a name each"):
        AllOf(SlidingLog(1, 1, store=stepped.store), SlidingLog(1, 1, store=stepped.store))


@pytest.mark.parametrize("limit", [1_000_000, 99_999_999])
def test_products_beyond_a_double_do_not_round(stepped, limit):
    """A million a day in two windows: limit times period is 10**17, and the weighted sum is exact."""
    day_us = 86_400_000_000
    counter = SlidingCounter(limit, 86_400, store=stepped.store, name=new_name())
    stepped.move_to((stepped.now_us // day_us + 2) * day_us)
    assert counter.check("a", limit)
    stepped.move(day_us + 12_345_678_901)
    weighed = limit * (day_us - 12_345_678_901) // day_us
    assert counter.peek("a").remaining == limit - weighed
    assert not counter.check("a", limit - weighed + 1)
    assert counter.check("a", limit - weighed)


def test_numbers_that_a_script_cannot_hold_raise_on_creation(stepped):
    with pytest.raises(ValueError, match="at most 100 days"):
        FixedWindow(1, 86_400 * 366, store=stepped.store)
    with pytest.raises(ValueError, match="within 142 years"):
        TokenBucket(1, 86_400, 100_000, store=stepped.store)


def life_s(stepped: SteppedRedis, name: str) -> float:
    """Returns how long the only key of the limiter `name` lives by the server's clock; below 0 for none."""
    keys = list(stepped.client.scan_iter(f"*:{name}:*"))
    assert len(keys) <= 1
    return stepped.client.pttl(keys[0]) / 1000 if keys else -1.0


@every_kind
@pytest.mark.parametrize("look", ["peek", "check", "allow"])
@pytest.mark.parametrize("bookings_ahead", [0, 20])
def test_a_key_lives_as_long_as_the_slower_limit_needs(kind, stepped, look, bookings_ahead):
    name = new_name()
    fast = kind.make(10, 60, store=stepped.store, name=name)
    while fast.allow("a"):
        pass
    for _ in range(bookings_ahead):
        assert fast.reserve("a")
    slow = kind.make(10, 60, store=stepped.store, name=name)
    slow.configure(limit=2, period=600)
    getattr(slow, look)("a")
    needed = slow.peek("a").reset_after
    assert life_s(stepped, name) > needed - 5
    stepped.move(round(fast.peek("a").retry_after * 1e6))
    fast.allow("a")
    assert life_s(stepped, name) > needed - 5, "the faster one does not shorten it"


@every_kind
def test_a_changed_limit_recovers_at_its_own_rate_from_the_first_look_on(kind, stepped):
    """In memory, all keys are converted at once."""
    stepped.move_to((stepped.now_us // 4_200_000_000 + 1) * 4_200_000_000)
    clock = StepClock(stepped.now_us * 1000)
    memory = next(other for other in MEMORY_KINDS if other.name == kind.name)
    here, shared = memory.make(10, 600 * 10**9, clock), start(kind, stepped, 10, 600_000_000)
    while here.allow("a"):
        assert shared.allow("a")
    for limiter in (here, shared):
        limiter.configure(limit=3, period=1400)
    for _ in range(40):
        expected, found = here.peek("a"), shared.peek("a")
        assert found.remaining == expected.remaining
        assert found.retry_after == pytest.approx(expected.retry_after, abs=3e-6)
        clock.now_ns += 50 * 10**9
        stepped.move(50_000_000)


@every_kind
@pytest.mark.parametrize("bookings_ahead", [1, 3, 30])
def test_a_refund_while_a_booking_lies_ahead_gives_nothing_of_the_present_back(kind, stepped, bookings_ahead):
    assert_refunds_give_nothing_back(start(kind, stepped, 10, 600_000_000), bookings_ahead)
