"""How many keys a limiter holds, and which it forgets."""

from __future__ import annotations

import json
import sys

import pytest

from gatekeeper.limits import SlidingLog, TokenBucket
from tests.limits.kinds import KINDS, Kind
from tests.limits.oracles import HandClock


def keys_held(limiter) -> int:
    return len(limiter._keys.young) + len(limiter._keys.old)


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_a_million_idle_keys_are_forgotten_by_the_next_ones(kind: Kind):
    clock = HandClock()
    limiter = kind.make(3, 1000, clock)
    for n in range(5_000):
        limiter.allow(f"key {n}")
    assert keys_held(limiter) == 5_000
    for _ in range(2):
        clock.now_ns += limiter._rule.forget_after_ns
        limiter.allow("somebody else")
    assert keys_held(limiter) <= 1


def test_a_caller_that_is_locked_out_is_not_forgotten_for_others():
    """Thousands of strangers do not buy an attacker a fresh start."""
    clock = HandClock()
    log = SlidingLog(2, 1, max_keys=100, clock=clock)
    assert [log.allow("attacker") for _ in range(3)] == [True, True, False]
    for n in range(5_000):
        log.allow(f"stranger {n}")
        clock.now_ns += 100_000
        assert not log.allow("attacker")
    assert keys_held(log) == 101


@pytest.mark.parametrize(
    ("overflow", "answers"), [("shared", [True, True, False]), ("deny", [False] * 3), ("allow", [True] * 3)]
)
def test_keys_that_find_no_room_are_answered_as_was_chosen(overflow, answers):
    limiters = [SlidingLog(2, 1, max_keys=3, overflow=overflow, clock=HandClock()) for _ in range(3)]
    buckets = [TokenBucket(2, 1, max_keys=3, overflow=overflow, clock=HandClock()) for _ in range(2)]
    asked = [log.allow for log in limiters[:1]] + [limiters[1].check, buckets[0].allow, buckets[1].check]
    for ask in asked:
        assert all(ask(key) for key in ("a", "b", "c"))
        assert [bool(ask(f"stranger {n}")) for n in range(3)] == answers
        assert ask("a"), "those who have a place keep it"
    assert limiters[0].overflowed == 3


def test_a_refusal_for_want_of_room_says_so():
    bucket = TokenBucket(2, 1, max_keys=1, overflow="deny", clock=HandClock())
    bucket.allow("a")
    refused = bucket.check("b")
    assert (refused.allowed, refused.detail) == (False, "no room for another key: 1 are live")
    assert bucket.peek("b") == refused


def test_a_key_is_text_or_a_tuple_and_its_parts_never_meet():
    bucket = TokenBucket(1, 1, clock=HandClock())
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
def test_arguments_that_no_limiter_has_are_refused_with_their_name(limiter, arguments, fault):
    with pytest.raises(ValueError, match=fault):
        limiter(**arguments)


def test_a_token_bucket_holds_a_caller_in_ninety_bytes():
    """The number itself and its place in the dict; the key belongs to the caller."""
    bucket = TokenBucket(100, 60)
    for n in range(100_000):
        bucket.allow(f"key {n}")
    young = bucket._keys.young
    assert (sys.getsizeof(young) + sum(map(sys.getsizeof, young.values()))) / len(young) <= 90


def test_a_ring_is_as_long_as_its_busiest_period_needed():
    clock = HandClock()
    log = SlidingLog(1000, 1, clock=clock)
    for _ in range(50):
        log.allow("calm")
        clock.now_ns += 400_000_000
    assert len(log._keys.young["calm"].stamps) <= 4, "three, and they double"
    for _ in range(1000):
        log.allow("busy")
    clock.now_ns += 1_100_000_000
    log.allow("busy")
    clock.now_ns += 1_100_000_000
    log.allow("busy")
    assert len(log._keys.young["busy"].stamps) <= 2


def test_decisions_can_be_told_as_json():
    assert json.dumps(SlidingLog(1, 1).check()._asdict())
