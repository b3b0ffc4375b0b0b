"""What every limiter promises, in a real Redis: against a slow oracle, by a clock moved by hand.

The scripts are the ones that ship, but for the line that asks the server what time it is. Periods are
minutes, because what a script writes expires by the server's own clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gatekeeper.limits import AllOf, FixedWindow, SlidingCounter, SlidingLog, TokenBucket
from tests.limits.oracles import worst_in_any
from tests.limits.plays import assert_in_order, bookings
from tests.limits.stores import KINDS, HandServer, Kind, new_name
from tests.support.servers.redis import Redis

every_kind = pytest.mark.parametrize("kind", KINDS, ids=repr)
few = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
def hand(redis_server: Redis) -> Iterator[HandServer]:
    server = HandServer(redis_server.url)
    yield server
    server.close()


def start(kind: Kind, hand: HandServer, limit: int, period_us: int):
    return kind.make(limit, period_us / 1e6, store=hand.store, name=new_name())


@every_kind
@few
@given(limits, periods_us, plays)
def test_a_shared_limiter_agrees_with_its_oracle_in_every_step(kind, hand, limit, period_us, play):
    limiter = start(kind, hand, limit, period_us)
    oracles = defaultdict(lambda: kind.oracle(limit, period_us))
    for what, key, cost, periods_pass in play:
        hand.move(int(periods_pass * period_us))
        oracle = oracles[key]
        if what == "refund":
            limiter.refund(key, cost)
            oracle.refund(hand.now_us, cost)
        elif what == "peek":
            assert limiter.peek(key, cost).remaining == oracle.remaining(hand.now_us)
        else:
            decided = getattr(limiter, what)(key, cost)
            assert bool(decided) == oracle.allow(hand.now_us, cost)
            assert limiter.peek(key).remaining == oracle.remaining(hand.now_us)


@every_kind
@few
@given(limits, periods_us, plays, st.integers(1, 4))
def test_retry_after_is_exact_to_the_microsecond(kind, hand, limit, period_us, play, cost):
    limiter = start(kind, hand, limit, period_us)
    for _, _, spent, periods_pass in play[:8]:
        hand.move(int(periods_pass * period_us))
        limiter.allow("a", spent)
    decision = limiter.check("a", cost)
    if decision.allowed:
        assert decision.retry_after == 0.0
    elif decision.retry_after is None:
        hand.move(10 * period_us)
        assert not limiter.check("a", cost), "a fresh key would have room for it"
    else:
        hand.move(round(decision.retry_after * 1e6) - 1)
        assert not limiter.peek("a", cost)
        hand.move(1)
        assert limiter.check("a", cost)


@every_kind
@few
@given(limits, periods_us, plays)
def test_reset_after_is_when_the_key_equals_a_new_one(kind, hand, limit, period_us, play):
    limiter = start(kind, hand, limit, period_us)
    for _, _, cost, periods_pass in play[:8]:
        hand.move(int(periods_pass * period_us))
        limiter.allow("a", cost)
    hand.move(round(limiter.peek("a").reset_after * 1e6))
    decision, new = limiter.peek("a"), limiter.peek("never seen")
    assert (decision.remaining, decision.reset_after) == (new.remaining, 0.0)


@every_kind
@few
@given(st.integers(1, 60), st.integers(600_000_000, 10**12))
def test_a_fresh_burst_admits_exactly_what_remains(kind, hand, limit, period_us):
    """No rate and no period rounds a permit away; all of it happens in one microsecond."""
    limiter = start(kind, hand, limit, period_us)
    promised = limiter.peek().remaining
    assert sum(decision.allowed for decision in limiter.check_many([""] * (limit + 5))) == promised


@every_kind
@few
@given(limits, periods_us, st.lists(st.fractions(0, 1, max_denominator=9), max_size=20))
def test_no_period_holds_more_than_was_promised(kind, hand, limit, period_us, pauses):
    limiter = start(kind, hand, limit, period_us)
    admitted = []
    for pause in pauses:
        hand.move(int(pause * period_us))
        admitted += [hand.now_us] * sum(d.allowed for d in limiter.check_many(["a"] * 3))
    assert worst_in_any(admitted, period_us) <= (limit if kind.exact else 2 * limit)


@every_kind
@few
@given(st.integers(1, 6), periods_us, bookings(most=15))
def test_what_is_booked_keeps_every_promise_and_the_order(kind, hand, limit, period_us, play):
    limiter = start(kind, hand, limit, period_us)
    admitted = assert_in_order(limiter, play, lambda: hand.now_us, hand.move, period_us, 10**6)
    assert worst_in_any(admitted, period_us) <= (limit if kind.exact else 2 * limit)


@every_kind
@few
@given(st.integers(1, 6), st.lists(st.integers(0, 2), max_size=8), st.integers(1, 2))
def test_a_cancelled_reservation_was_never_made(kind, hand, limit, before, cost):
    limiter = start(kind, hand, limit, 600_000_000)
    for spent in before:
        hand.move(70_000_000)
        limiter.allow("a", spent)
    looked = limiter.peek("a")
    booked = limiter.reserve("a", cost)
    if booked:
        assert booked.cancel()
        assert not booked.cancel(), "twice gives nothing more"
    assert limiter.peek("a") == looked


@every_kind
def test_a_clock_that_goes_back_lets_nobody_pass_sooner(kind, hand):
    limiter = start(kind, hand, 2, 600_000_000)
    for _ in range(3):
        limiter.allow("a")
    refused = limiter.check("a")
    hand.move(-100_000_000)
    assert not limiter.check("a")
    assert limiter.check("a").retry_after >= refused.retry_after
    hand.move(800_000_000)
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
def test_another_limit_keeps_what_was_used(hand, before, used, after, remaining):
    name = new_name()
    bucket = TokenBucket(*before, store=hand.store, name=name)
    assert bucket.check("a", used)
    bucket.configure(*after)
    assert bucket.peek("a").remaining == remaining
    assert TokenBucket(*after, store=hand.store, name=name).peek("a").remaining == remaining


def test_another_period_keeps_what_was_used(hand):
    for kind in KINDS:
        if kind.name in {"SlidingLog", "FixedWindow", "SlidingCounter"}:
            limiter = start(kind, hand, 5, 600_000_000)
            limiter.allow("a", 4)
            limiter.configure(limit=6, period=700)
            assert limiter.peek("a").remaining == 2, kind


def test_several_limits_in_one_store_decide_as_one(hand):
    burst = SlidingLog(2, 600, store=hand.store, name=new_name())
    daily = TokenBucket(5, 6000, store=hand.store, name=new_name())
    both = AllOf(burst, daily)
    assert [both.check("a").allowed for _ in range(3)] == [True, True, False]
    assert daily.peek("a").remaining == 3, "what one refuses is spent in none"
    refusal = both.check("a")
    assert (refusal.policy, refusal.retry_after) == (burst.name, 600.0)
    hand.move(600_000_000)
    booked = both.reserve("a", 2)
    assert booked
    assert booked.cancel()
    assert (burst.peek("a").remaining, daily.peek("a").remaining) == (2, 3)
    both.refund("a", 1)
    both.reset("a")
    assert (burst.peek("a").remaining, daily.peek("a").remaining) == (2, 5)


def test_what_is_in_a_store_does_not_mix_with_what_is_in_memory(hand):
    with pytest.raises(ValueError, match="all limiters in one store, or none"):
        AllOf(SlidingLog(1, 1, store=hand.store), SlidingLog(1, 1))
    with pytest.raises(ValueError, match="a name each"):
        AllOf(SlidingLog(1, 1, store=hand.store), SlidingLog(1, 1, store=hand.store))


@pytest.mark.parametrize("limit", [1_000_000, 99_999_999])
def test_products_that_no_double_holds_do_not_round(hand, limit):
    """A million a day by two windows: limit times period is 10**17, and the weighing is exact."""
    day_us = 86_400_000_000
    counter = SlidingCounter(limit, 86_400, store=hand.store, name=new_name())
    hand.move_to((hand.now_us // day_us + 2) * day_us)
    assert counter.check("a", limit)
    hand.move(day_us + 12_345_678_901)
    weighed = limit * (day_us - 12_345_678_901) // day_us
    assert counter.peek("a").remaining == limit - weighed
    assert not counter.check("a", limit - weighed + 1)
    assert counter.check("a", limit - weighed)


def test_what_a_script_cannot_hold_is_refused_when_the_limiter_is_made(hand):
    with pytest.raises(ValueError, match="at most 100 days"):
        FixedWindow(1, 86_400 * 366, store=hand.store)
    with pytest.raises(ValueError, match="within 142 years"):
        TokenBucket(1, 86_400, 100_000, store=hand.store)
