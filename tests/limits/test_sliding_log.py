"""SlidingLog: the ring, and its compact form."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gatekeeper.limits import SlidingLog
from tests.limits.oracles import LogOracle, StepClock, worst_in_any
from tests.support.depth import deeper

SECOND_NS = 1_000_000_000


def test_the_full_limit_passes_at_first_and_after_an_idle_time():
    clock = StepClock()
    log = SlidingLog(limit=20, period=10, clock=clock)
    for _ in range(3):
        assert sum(log.allow() for _ in range(30)) == 20
        clock.now_ns += 30 * SECOND_NS


def test_a_permit_comes_back_exactly_one_period_after_it_was_used():
    #   0 s   1 s   2 s        10 s  11 s
    #   |  a  |  b  |  full ...  | a^  |      half-open: at 10 s the admission of 0 s has left
    clock = StepClock()
    log = SlidingLog(limit=2, period=10, clock=clock)
    assert log.allow()
    clock.now_ns = SECOND_NS
    assert log.allow()
    clock.now_ns = 10 * SECOND_NS - 1
    assert not log.allow()
    clock.now_ns += 1
    assert [log.allow(), log.allow()] == [True, False]
    assert log.check().retry_after == 1.0


@settings(max_examples=deeper(15), deadline=None)
@given(
    st.integers(1, 6),
    st.sampled_from([1, 10 * SECOND_NS, 86_400 * SECOND_NS, 999_999_937]),
    st.lists(st.tuples(st.fractions(0, 3, max_denominator=30), st.integers(1, 3)), max_size=120),
)
def test_a_compact_log_never_admits_more_and_refuses_two_ticks_longer_at_most(limit, period_ns, play):
    clock = StepClock(2**63)
    log = SlidingLog(limit, period_ns / SECOND_NS, compact=True, clock=clock)
    slack_ns = 2 * log._rule.tick_ns
    admitted: list[int] = []
    for pause, cost in play:
        clock.now_ns += int(pause * period_ns)
        if log.allow(cost=cost):
            admitted += [clock.now_ns] * cost
        else:
            longer = LogOracle(limit, period_ns + slack_ns, list(admitted))
            assert not longer.allow(clock.now_ns, cost), "an unnecessary refusal"
    assert worst_in_any(admitted, period_ns) <= limit


def test_a_compact_log_stays_right_while_its_stamps_wrap_again_and_again():
    """A stamp wraps after 64 periods. One key has a request now and then over 1,000 periods, with a burst
    left in its ring; another has requests only after each whole wrap."""
    clock = StepClock()
    log = SlidingLog(limit=5, period=10, compact=True, clock=clock)
    admitted: list[int] = []
    for n in range(2_000):
        clock.now_ns += 5 * SECOND_NS
        passed = sum(log.allow("often") for _ in range(6 if n % 40 == 0 else 1))
        admitted += [clock.now_ns] * passed
        if n % 128 == 0:
            assert sum(log.allow("after a wrap") for _ in range(6)) == 5
    assert worst_in_any(admitted, 10 * SECOND_NS) <= 5
    assert len(admitted) > 1_990
    assert log._keys.young["often"].stamps.itemsize == 4


def test_a_compact_log_that_is_idle_for_a_whole_wrap_counts_nothing():
    for wraps in range(1, 4):
        clock = StepClock()
        log = SlidingLog(limit=3, period=10, compact=True, clock=clock)
        while log.allow():
            pass
        clock.now_ns += wraps * log._rule.tick_ns * 2**32
        assert log.peek().remaining == 3
        assert sum(log.allow() for _ in range(5)) == 3
