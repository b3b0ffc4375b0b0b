"""Bounds of the keys that a limiter holds, and forgetting of idle keys."""

from __future__ import annotations

import json
import sys

import pytest

from gatekeeper.limits import AllOf, ByPlan, Concurrency, Sharded, SlidingLog, TokenBucket
from tests.limits.memory_kinds import KINDS, Kind
from tests.limits.oracles import StepClock


def keys_held(limiter) -> int:
    return len(limiter._keys.young) + len(limiter._keys.old)


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_idle_keys_are_forgotten_when_later_requests_rotate_the_generations(kind: Kind):
    clock = StepClock()
    limiter = kind.make(3, 1000, clock)
    for n in range(5_000):
        limiter.allow(f"key {n}")
    assert keys_held(limiter) == 5_000
    for _ in range(2):
        clock.now_ns += limiter._rule.forget_after_ns
        limiter.allow("another")
    assert keys_held(limiter) <= 1


@pytest.mark.parametrize("look", ["allow", "check", "peek", "reserve", "refund", "reset", "configure"])
@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_a_key_that_is_always_in_use_is_not_forgotten_when_a_rotation_comes_late(kind: Kind, look: str):
    """A bucket that is never full is written without a rotation, for many periods."""
    clock = StepClock()
    limiter, oracle = kind.make(5, 1000, clock), kind.oracle(5, 1000)
    for step in range(200):
        clock.now_ns += 50
        if step % 100 == 99:
            getattr(limiter, look)(*([] if look == "configure" else ["another"]))
        assert limiter.allow("busy") == oracle.allow(clock.now_ns, 1), step


def test_a_busy_bucket_is_not_forgotten_after_it_started_over_by_another_clock():
    clock = StepClock()
    bucket = TokenBucket(5, 1e-6)
    restore = bucket.start_over(clock)
    admitted = 0
    for step in range(100):
        clock.now_ns += 50
        if step == 90:
            bucket.peek("another")
        admitted += bucket.allow("busy")
    assert admitted == 5 + 5 * 99 // 20
    restore()


def test_a_refused_caller_is_not_forgotten_in_favour_of_new_keys():
    """Thousands of unknown callers do not reset an attacker's limit."""
    clock = StepClock()
    log = SlidingLog(2, 1, max_keys=100, clock=clock)
    assert [log.allow("attacker") for _ in range(3)] == [True, True, False]
    for n in range(5_000):
        log.allow(f"new {n}")
        clock.now_ns += 100_000
        assert not log.allow("attacker")
    assert keys_held(log) == 101


@pytest.mark.parametrize(
    ("overflow", "answers"), [("shared", [True, True, False]), ("deny", [False] * 3), ("allow", [True] * 3)]
)
def test_overflow_decides_about_keys_without_a_slot(overflow, answers):
    limiters = [SlidingLog(2, 1, max_keys=3, overflow=overflow, clock=StepClock()) for _ in range(3)]
    buckets = [TokenBucket(2, 1, max_keys=3, overflow=overflow, clock=StepClock()) for _ in range(2)]
    calls = [log.allow for log in limiters[:1]] + [limiters[1].check, buckets[0].allow, buckets[1].check]
    for ask in calls:
        assert all(ask(key) for key in ("a", "b", "c"))
        assert [bool(ask(f"new {n}")) for n in range(3)] == answers
        assert ask("a"), "a key with a slot keeps it"
    assert limiters[0].overflowed == 3


def test_overflowed_counts_the_requests_of_keys_without_a_slot():
    def make() -> TokenBucket:
        return TokenBucket(9, 1, max_keys=1, clock=StepClock())

    bucket, both = make(), AllOf(make(), SlidingLog(9, 1, max_keys=2, clock=StepClock()))
    plans = ByPlan({"free": make()}, default="free")
    cut = Sharded(make, shards=1)
    for limiter in (bucket, both, plans, cut):
        assert limiter.overflowed == 0
        for key in ("a", "b", "b", "a"):
            limiter.check(key)
        assert limiter.overflowed == 2, "b, twice"
        limiter.peek("c")
        assert limiter.overflowed == 2, "looking counts nothing"
    both.check("c")
    assert both.overflowed == 4, "both parts have no room for it"
    assert Concurrency(1).overflowed == 0


def test_a_refusal_without_a_slot_gives_the_reason():
    bucket = TokenBucket(2, 1, max_keys=1, overflow="deny", clock=StepClock())
    bucket.allow("a")
    refused = bucket.check("b")
    assert (refused.allowed, refused.detail) == (False, "no room for another key: 1 are live")
    assert bucket.peek("b") == refused


def test_keys_of_text_and_tuples_never_collide():
    bucket = TokenBucket(1, 1, clock=StepClock())
    keys = ["a", ("a",), ("a", "b"), ("a_b",), ("ab",), ("a", 1), ("a", "1"), ("", "a")]
    assert all(bucket.allow(key) for key in keys)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"limit": 0, "period": 1}, "limit: expected a whole number of at least 1"),
        ({"limit": 1.5, "period": 1}, "limit"),
        ({"limit": 1, "period": 0}, "period: expected seconds above 0"),
        ({"limit": 1, "period": -1}, "period"),
        ({"limit": 1, "period": float("nan")}, "period"),
        ({"limit": 1, "period": float("inf")}, "period"),
        ({"limit": 1, "period": 1e-10}, "period"),
        ({"limit": 1, "period": 1, "max_keys": 0}, "max_keys"),
        ({"limit": 1, "period": 1, "overflow": "evict"}, "overflow: expected 'shared', 'deny' or 'allow'"),
    ],
)
@pytest.mark.parametrize("limiter", [SlidingLog, TokenBucket, TokenBucket.strict])
def test_invalid_arguments_raise_with_their_name(limiter, arguments, fault):
    with pytest.raises(ValueError, match=fault):
        limiter(**arguments)


def test_a_token_bucket_holds_a_key_in_ninety_bytes():
    """The number and its entry in the dict; the key itself belongs to the caller."""
    bucket = TokenBucket(100, 60)
    for n in range(100_000):
        bucket.allow(f"key {n}")
    young = bucket._keys.young
    assert (sys.getsizeof(young) + sum(map(sys.getsizeof, young.values()))) / len(young) <= 90


def test_a_ring_is_as_long_as_its_busiest_period_requires():
    clock = StepClock()
    log = SlidingLog(1000, 1, clock=clock)
    for _ in range(50):
        log.allow("calm")
        clock.now_ns += 400_000_000
    assert len(log._keys.young["calm"].stamps) <= 4, "three, and the ring doubles"
    for _ in range(1000):
        log.allow("busy")
    clock.now_ns += 1_100_000_000
    log.allow("busy")
    clock.now_ns += 1_100_000_000
    log.allow("busy")
    assert len(log._keys.young["busy"].stamps) <= 2


def test_a_decision_can_be_written_as_json():
    assert json.dumps(SlidingLog(1, 1).check()._asdict())
