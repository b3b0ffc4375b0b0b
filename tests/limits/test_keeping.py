"""A limit that changes while it is in force, and one that survives a restart."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gatekeeper.limits import LeakyQueue, Paced, SlidingLog, TokenBucket
from tests.limits.kinds import KINDS, Kind
from tests.limits.oracles import HandClock, LogOracle, worst_in_any

SECOND_NS = 1_000_000_000
every_kind = pytest.mark.parametrize("kind", KINDS, ids=repr)
modest = settings(max_examples=30, deadline=None)
plays = st.lists(st.tuples(st.integers(0, 2), st.fractions(0, 1, max_denominator=7)), max_size=25)


def play(limiter, clock: HandClock, period_ns: int, steps) -> list[int]:
    admitted = []
    for cost, periods_pass in steps:
        clock.now_ns += int(periods_pass * period_ns)
        admitted += [clock.now_ns] * (cost * limiter.allow("a", cost))
    return admitted


@pytest.mark.parametrize(
    ("before", "after", "free", "next_s"),
    [
        ((1, 10), (100, 10), 0, 0.01),
        ((100, 100), (1, 100), 0, 1.0),
        ((10, 100), (10, 10), 0, 0.1),
        ((1, 10), (10, 100), 90, 0.0),
    ],
    ids=["the rate rises", "the rate falls", "the burst shrinks", "both rise"],
)
def test_a_spent_bucket_whose_limit_changes_stays_spent_and_no_more(before, after, free, next_s):
    """Keeping the time instead of the permits would say 9.91 s, 99 free, 9.1 s and 0 free."""
    bucket = TokenBucket(before[0], 1, before[1], clock=HandClock())
    while bucket.allow():
        pass
    bucket.configure(limit=after[0], burst=after[1])
    looked = bucket.peek()
    assert (looked.remaining, looked.retry_after) == (free, next_s)


@modest
@given(st.integers(1, 6), st.integers(1, 6), plays, plays)
def test_a_log_whose_limit_changes_remembers_as_many_as_still_matter(before, after, first, then):
    clock = HandClock()
    log, oracle = SlidingLog(before, 10, clock=clock), LogOracle(before, 10 * SECOND_NS)
    oracle.admitted = play(log, clock, 10 * SECOND_NS, first)
    log.configure(limit=after)
    oracle.limit, oracle.admitted = after, oracle.admitted[-after:]
    for cost, periods_pass in then:
        clock.now_ns += int(periods_pass * 10 * SECOND_NS)
        assert log.allow("a", cost) == oracle.allow(clock.now_ns, cost)


@every_kind
@modest
@given(st.integers(1, 6), plays, plays)
def test_a_limit_that_is_set_to_what_it_is_changes_nothing(kind: Kind, limit, first, then):
    clock = HandClock()
    plain, configured = kind.make(limit, 1000, clock), kind.make(limit, 1000, clock)
    play(plain, clock, 1000, first)
    clock.now_ns = 0
    play(configured, clock, 1000, first)
    configured.configure(limit=limit, period=1e-6)
    assert configured.peek("a") == plain.peek("a")
    for cost, periods_pass in then:
        clock.now_ns += int(periods_pass * 1000)
        assert configured.check("a", cost) == plain.check("a", cost)


@every_kind
@modest
@given(st.integers(2, 6), plays, st.integers(1, 6), st.integers(3, 30), plays)
def test_after_a_change_the_new_promise_holds(kind: Kind, limit, first, new_limit, new_period_ns, then):
    clock = HandClock()
    limiter = kind.make(limit, 12, clock)
    play(limiter, clock, 12, first)
    if isinstance(limiter, Paced):
        new_period_ns += 12
    if kind.name == "TokenBucket, burst 2":
        new_limit = max(new_limit, 2)
    limiter.configure(limit=new_limit, period=new_period_ns / 1e9)
    admitted = play(limiter, clock, new_period_ns, then)
    assert limiter.peek("a").limit == new_limit
    assert worst_in_any(admitted, new_period_ns) <= (new_limit if kind.exact else 2 * new_limit)


def test_a_strict_bucket_stays_strict_and_a_given_burst_stays_given():
    bucket = TokenBucket.strict(10, 1, clock=HandClock())
    bucket.configure(limit=20)
    assert sum(bucket.allow() for _ in range(30)) == 10
    fixed = TokenBucket(10, 1, burst=3, clock=HandClock())
    fixed.configure(limit=20)
    assert sum(fixed.allow() for _ in range(30)) == 3


@pytest.mark.parametrize("arguments", [{"limit": 0}, {"limit": -1}, {"period": 0}, {"burst": 3}])
def test_a_change_that_no_log_has_is_refused_and_nothing_changes(arguments):
    log = SlidingLog(5, 1, clock=HandClock())
    with pytest.raises(ValueError, match=next(iter(arguments))):
        log.configure(**arguments)
    assert log.peek().limit == 5


def test_a_key_is_kept_for_the_longer_period_that_was_set_meanwhile():
    clock = HandClock()
    log = SlidingLog(1, 1, clock=clock)
    log.allow("a")
    clock.now_ns += SECOND_NS // 2
    log.configure(period=100)
    for _ in range(99):
        clock.now_ns += SECOND_NS
        log.allow("somebody else")
        assert not log.allow("a")


@every_kind
@modest
@given(st.integers(1, 6), plays, plays, st.integers(0, 3000))
def test_what_is_saved_counts_on_after_a_restart(kind: Kind, limit, first, then, downtime_ns):
    """By the same clock it is as if nothing had happened."""
    clock = HandClock()
    before = kind.make(limit, 1000, clock)
    play(before, clock, 1000, first)
    before.allow(("b", 7))
    saved = json.loads(json.dumps(before.dump(wall_ns=lambda: clock.now_ns)))
    clock.now_ns += downtime_ns
    after = kind.make(limit, 1000, clock)
    after.load(saved, wall_ns=lambda: clock.now_ns)
    assert after.peek(("b", 7)) == before.peek(("b", 7))
    for cost, periods_pass in then:
        clock.now_ns += int(periods_pass * 1000)
        assert after.check("a", cost) == before.check("a", cost)


@every_kind
@modest
@given(st.integers(1, 6), plays, st.integers(0, 40), st.integers(0, 10**6))
@example(1, [(1, Fraction(0))], 2, 0)  # the pieces of Paced are dealt by the clock, and this is another
def test_after_a_reboot_the_wall_clock_tells_how_much_time_passed(kind: Kind, limit, first, down_s, boot_ns):
    """The clock started anew; the promise holds through it, in real time."""
    period_ns = 10 * SECOND_NS
    clock = HandClock(50_000 * SECOND_NS)
    before = kind.make(limit, period_ns, clock)
    admitted = play(before, clock, period_ns, first)
    saved = before.dump(wall_ns=lambda: 7 * SECOND_NS)
    down_ns = down_s * SECOND_NS
    booted = HandClock(boot_ns)
    after = kind.make(limit, period_ns, booted)
    after.load(saved, wall_ns=lambda: 7 * SECOND_NS + down_ns)
    real_ns = clock.now_ns + down_ns
    for _ in range(30):
        admitted += [real_ns] * after.allow("a")
        booted.now_ns += SECOND_NS
        real_ns += SECOND_NS
    assert worst_in_any(admitted, period_ns) <= (limit if kind.exact else 2 * limit)


def test_a_wall_clock_that_was_set_back_lets_no_time_pass():
    clock = HandClock(10**15)
    log = SlidingLog(1, 10, clock=clock)
    log.allow()
    saved = log.dump(wall_ns=lambda: 10**18)
    after = SlidingLog(1, 10, clock=HandClock())
    after.load(saved, wall_ns=lambda: 5)
    assert after.peek().retry_after == 10.0


def test_what_another_limiter_saved_is_refused():
    saved = TokenBucket(1, 1).dump()
    with pytest.raises(ValueError, match="saved: expected SlidingLog in format 1, got"):
        SlidingLog(1, 1).load(saved)
    with pytest.raises(ValueError, match="saved"):
        TokenBucket(1, 1).load({})


def test_what_was_saved_is_counted_under_the_limit_that_is_now():
    clock = HandClock()
    bucket = TokenBucket(10, 1, clock=clock)
    bucket.allow(cost=10)
    larger = TokenBucket(30, 1, clock=clock)
    larger.load(bucket.dump())
    assert larger.peek().remaining == 20


def test_a_reservation_survives_a_restart():
    clock = HandClock()
    queue = LeakyQueue(1, 10, clock=clock)
    delays = [queue.reserve().delay for _ in range(4)]
    after = LeakyQueue(1, 10, clock=clock)
    after.load(queue.dump())
    assert [*delays, after.reserve().delay] == [0.0, 10.0, 20.0, 30.0, 40.0]
    clock.now_ns = 39 * SECOND_NS
    for _ in range(3):
        after.allow("turns the generations")
    assert Fraction(after.peek().retry_after) == 11
