"""Properties of every limiter in memory, compared with a slow oracle, by a clock that the test moves."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gatekeeper.limits import TokenBucket
from tests.limits.memory_kinds import KINDS, Kind
from tests.limits.oracles import StepClock, worst_in_any
from tests.support.depth import deeper

NEVER = None
every_kind = pytest.mark.parametrize("kind", KINDS, ids=repr)
modest = settings(max_examples=deeper(15), deadline=None)

limits = st.integers(1, 7)
periods = st.one_of(st.integers(1, 40), st.sampled_from([10_000_000_000, 999_999_937, 60_000_000_001]))
plays = st.lists(
    st.tuples(
        st.sampled_from(["check", "check", "check", "allow", "peek", "refund"]),
        st.sampled_from(["a", "b", ("a", 1)]),
        st.integers(0, 4),  # cost
        st.fractions(0, 2, max_denominator=12),  # periods that pass before
    ),
    max_size=40,
)


def in_ns(duration: float) -> int:
    return round(duration * 1e9)


def start(kind: Kind, limit: int, period_ns: int, at_ns: int = 0) -> tuple[Any, StepClock]:
    clock = StepClock(at_ns)
    return kind.make(limit, period_ns, clock), clock


@every_kind
@modest
@given(limits, periods, plays)
def test_a_limiter_agrees_with_its_oracle_in_every_step(kind, limit, period_ns, play):
    """Also when keys are forgotten: the oracle forgets nothing, and the limiter's generations rotate in
    almost every step."""
    limiter, clock = start(kind, limit, period_ns)
    oracles = defaultdict(lambda: kind.oracle(limit, period_ns))
    for action, key, cost, periods_pass in play:
        clock.now_ns += int(periods_pass * period_ns)
        oracle = oracles[key]
        if action == "refund":
            limiter.refund(key, cost)
            oracle.refund(clock.now_ns, cost)
        elif action == "peek":
            assert limiter.peek(key, cost).remaining == oracle.remaining(clock.now_ns)
        else:
            peeked = limiter.peek(key, cost)
            decided = getattr(limiter, action)(key, cost)
            assert bool(decided) == peeked.allowed == oracle.allow(clock.now_ns, cost)
            assert limiter.peek(key).remaining == oracle.remaining(clock.now_ns)


@every_kind
@modest
@given(limits, periods, plays, st.integers(1, 4))
def test_retry_after_is_exact_to_the_nanosecond(kind, limit, period_ns, play, cost):
    limiter, clock = start(kind, limit, period_ns)
    for _, key, spent, periods_pass in play:
        clock.now_ns += int(periods_pass * period_ns)
        limiter.allow(key, spent)
    decision = limiter.check("a", cost)
    if decision.allowed:
        assert decision.retry_after == 0.0
    elif decision.retry_after is NEVER:
        clock.now_ns += 10 * period_ns
        assert not limiter.check("a", cost), "a new key would admit it"
    else:
        clock.now_ns += in_ns(decision.retry_after) - 1
        assert not limiter.peek("a", cost)
        clock.now_ns += 1
        assert limiter.check("a", cost)


@every_kind
@modest
@given(limits, periods, plays)
def test_reset_after_is_when_the_key_equals_a_new_one(kind, limit, period_ns, play):
    limiter, clock = start(kind, limit, period_ns)
    for _, key, cost, periods_pass in play:
        clock.now_ns += int(periods_pass * period_ns)
        limiter.allow(key, cost)
    clock.now_ns += in_ns(limiter.peek("a").reset_after)
    decision, new = limiter.peek("a"), limiter.peek("never seen")
    assert (decision.remaining, decision.reset_after) == (new.remaining, 0.0)


@every_kind
@modest
@given(limits, periods, plays)
def test_refusals_peeks_and_a_cost_of_0_change_nothing(kind, limit, period_ns, play):
    """One sequence with and without them ends in the same state."""
    plain, clock = start(kind, limit, period_ns)
    peeked = kind.make(limit, period_ns, clock)
    for action, key, cost, periods_pass in play:
        clock.now_ns += int(periods_pass * period_ns)
        peeked.peek(key, cost)
        peeked.check(key, 0)
        peeked.allow(key, 0)
        peeked.check(key, 1000)
        if action != "peek" and plain.peek(key, cost):
            assert plain.check(key, cost) == peeked.check(key, cost)
        else:
            peeked.peek(key, cost)
    assert [plain.peek(key) for key in ("a", "b")] == [peeked.peek(key) for key in ("a", "b")]


@every_kind
@modest
@given(st.integers(1, 300), st.integers(1, 10**12))
@example(7, 10_000_000_000)
@example(3, 1)
def test_a_new_key_admits_exactly_what_remains(kind, limit, period_ns):
    """No permit is lost to rounding, for any rate and period."""
    limiter, _ = start(kind, limit, period_ns)
    promised = limiter.peek().remaining
    assert sum(limiter.allow() for _ in range(limit + 5)) == promised


@given(st.integers(1, 10**9), st.integers(1, 10**13), st.integers(1, 500))
@modest
def test_a_token_bucket_admits_exactly_its_burst_at_once(limit, period_ns, burst):
    bucket = TokenBucket(limit, period_ns / 1e9, burst, clock=StepClock())
    assert [bucket.allow() for _ in range(burst + 1)] == [True] * burst + [False]


@every_kind
@modest
@given(limits, periods, st.lists(st.fractions(0, 1, max_denominator=9), max_size=60))
def test_no_period_holds_more_than_the_limit(kind, limit, period_ns, pauses):
    limiter, clock = start(kind, limit, period_ns)
    admitted = []
    for pause in pauses:
        clock.now_ns += int(pause * period_ns)
        admitted += [clock.now_ns] * sum(limiter.allow() for _ in range(3))
    assert worst_in_any(admitted, period_ns) <= (limit if kind.exact else 2 * limit)


@every_kind
@modest
@given(limits, periods, st.lists(st.integers(-50, 50), max_size=60))
def test_a_clock_that_goes_back_equals_one_that_stops(kind, limit, period_ns, moves):
    limiter, clock = start(kind, limit, period_ns)
    stopped, stopping_clock = start(kind, limit, period_ns)
    for move in moves:
        clock.now_ns += move * period_ns // 20
        stopping_clock.now_ns = max(stopping_clock.now_ns, clock.now_ns)
        key = f"key {move % 3}"
        assert limiter.check(key) == stopped.check(key)


@every_kind
@pytest.mark.parametrize("at_ns", [0, -50_000, 10**18])
def test_the_first_use_does_not_depend_on_the_clock(kind, at_ns):
    """All of these are whole multiples of every window, and of every cycle of slices."""
    limiter, _ = start(kind, 4, 1000, at_ns)
    other, _ = start(kind, 4, 1000, 120_000)
    assert [limiter.check() for _ in range(6)] == [other.check() for _ in range(6)]


@every_kind
def test_a_cost_above_what_can_ever_pass_has_no_retry_after(kind):
    limiter, _ = start(kind, 5, 1000)
    assert limiter.check(cost=6).retry_after is NEVER


@every_kind
@pytest.mark.parametrize("cost", [-1, 1.5, True, "1"])
def test_a_cost_that_is_not_a_whole_number_from_0_raises(kind, cost):
    limiter, _ = start(kind, 5, 1000)
    if cost is True:
        assert limiter.allow(cost=cost), "True counts as 1, because allow tests for 1 first"
        return
    with pytest.raises(ValueError, match="cost: expected a whole number"):
        limiter.allow(cost=cost)


@every_kind
def test_reset_makes_a_key_new(kind):
    limiter, _ = start(kind, 3, 1000)
    while limiter.allow("a"):
        pass
    limiter.reset("a")
    assert limiter.peek("a") == limiter.peek("new")


@every_kind
def test_a_refusal_has_reason_limit_and_detail(kind):
    limiter, _ = start(kind, 3, 1000)
    limit = 2 if kind.name in {"TokenBucket, burst 2", "TokenBucket.strict"} else 3  # of a bucket its burst
    while (decision := limiter.check()).allowed:
        assert (decision.reason, decision.detail, decision.limit) == ("", "", limit)
    assert (decision.reason, decision.limit, decision.status) == ("limited", limit, 429)
    assert "0.000001 s" in decision.detail
