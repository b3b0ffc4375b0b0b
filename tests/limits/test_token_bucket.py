"""TokenBucket: redis-cell's numbers, strict buckets, and high rates."""

from __future__ import annotations

import pytest

from gatekeeper.limits import TokenBucket
from tests.limits.oracles import StepClock


def test_a_max_burst_of_15_in_redis_cell_is_a_burst_of_16_here():
    """The example in redis-cell's README: CL.THROTTLE user123 15 30 60 1."""
    clock = StepClock()
    bucket = TokenBucket(limit=30, period=60, burst=16, clock=clock)
    assert bucket.as_cl_throttle("user123") == (0, 16, 15, -1, 2)
    for _ in range(15):
        assert bucket.as_cl_throttle("user123")[0] == 0
    assert bucket.as_cl_throttle("user123") == (1, 16, 0, 2, 32)


def test_whole_seconds_are_rounded_up_so_that_waiting_them_is_enough():
    clock = StepClock()
    bucket = TokenBucket(limit=1, period=1.5, clock=clock)
    bucket.allow()
    clock.now_ns += 200_000_000
    assert bucket.as_cl_throttle() == (1, 1, 0, 2, 2)
    clock.now_ns += 2_000_000_000
    assert bucket.as_cl_throttle()[0] == 0


def test_a_cost_of_0_peeks_and_one_above_the_burst_never_passes():
    bucket = TokenBucket(limit=3, period=60, clock=StepClock())
    assert bucket.as_cl_throttle(cost=0) == (0, 3, 3, -1, 0)
    assert bucket.as_cl_throttle(cost=4) == (1, 3, 3, -1, 0)


@pytest.mark.parametrize("limit", [1, 2, 3, 20, 1000])
def test_a_strict_bucket_with_a_burst_of_one_admits_its_whole_limit(limit):
    """Spread evenly, all of the limit passes in one half-open period."""
    clock = StepClock()
    bucket = TokenBucket.strict(limit, 1, burst=1, clock=clock)
    passed = 0
    for _ in range(limit):
        passed += bucket.allow()
        clock.now_ns += -(-1_000_000_000 // limit)
    assert passed == limit


def test_a_strict_burst_above_the_limit_raises():
    with pytest.raises(ValueError, match="burst: expected at most the limit of 5, got 6"):
        TokenBucket.strict(5, 1, burst=6)


def test_limits_above_one_per_nanosecond_hold():
    clock = StepClock()
    bucket = TokenBucket(limit=3_000_000_000, period=1, burst=6, clock=clock)
    while bucket.allow():
        pass
    clock.now_ns += 1
    assert bucket.peek().remaining == 3
