"""Actions of locks: deny with a status, slow to a rate, tag; and the off switches."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatekeeper import ALLOWED, Gate
from gatekeeper.gate_options import SWITCH
from gatekeeper.model import SUSPENSION, Lock, Rate, Set
from gatekeeper.testing import ManualClock
from tests.support.feed import NOON, HandFeed, a_lock

ACME, BOB = "api_key:acme", "user:bob"
POLL_S = 0.44  # the longest time until the next poll


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def feed() -> HandFeed:
    return HandFeed()


@pytest.fixture
def gate(feed: HandFeed, clock: ManualClock) -> Gate:
    gate = Gate(feed, clock=clock)
    assert gate.ready(1.0)
    return gate


def set_locks(feed: HandFeed, clock: ManualClock, *locks: Lock) -> None:
    """Sets locks and lets the gate poll."""
    feed.set(*locks)
    clock.advance(POLL_S)


# -- deny -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 503, 403])
def test_a_denial_has_the_status_of_its_policy(
    gate: Gate, feed: HandFeed, clock: ManualClock, status: int
) -> None:
    set_locks(feed, clock, a_lock(ACME, status=status))
    decision = gate.check(ACME)
    assert (decision.allowed, decision.status, decision.policy) == (False, status, "daily")


# -- slow -----------------------------------------------------------------------------------------


def slowing(limit: int, period: float = 1.0, policy: str = "slowed", **others: object) -> Lock:
    return a_lock(ACME, policy, action="slow", slow=Rate(limit, period), ends_in=10**7, **others)


@given(st.integers(1, 50), st.sampled_from([0.5, 1.0, 60.0]), st.lists(st.floats(0, 30), max_size=60))
def test_a_lock_that_slows_allows_its_rate_and_no_more(limit: int, period: float, waits: list[float]) -> None:
    """In any interval at most a burst of the limit, plus the limit per period, as a TokenBucket does."""
    clock, feed = ManualClock(), HandFeed(slowing(limit, period))
    gate = Gate(feed, clock=clock)
    assert gate.ready(1.0)
    passed: list[float] = []
    for wait in waits:
        clock.advance(wait)
        while gate.allow(ACME):
            passed.append(clock.uptime_s())
            assert len(passed) < 100_000
    for first, since in enumerate(passed[:: max(1, len(passed) // 50)]):
        for until in {clock.uptime_s(), since, *passed[-1:]}:
            inside = sum(since <= moment <= until for moment in passed)
            assert inside <= limit + floor((until - since) * limit / period + 1e-6), first


def test_a_slowed_caller_passes_after_retry_after_and_not_before(
    gate: Gate, feed: HandFeed, clock: ManualClock
) -> None:
    set_locks(feed, clock, slowing(2, 10.0, detail="40 % of the load"))
    assert [gate.allow(ACME), gate.allow(ACME)] == [True, True]
    decision = gate.check(ACME)
    assert (decision.allowed, decision.policy, decision.limit, decision.remaining) == (False, "slowed", 2, 0)
    assert decision.detail == "40 % of the load; slowed to 2 in 10 s"
    assert decision.retry_after == 5.0
    clock.advance(decision.retry_after - 0.001)
    assert not gate.allow(ACME)
    clock.advance(0.001)
    assert gate.check(ACME)[:2] == (True, "slowed")


def test_over_a_long_time_the_whole_rate_passes(gate: Gate, feed: HandFeed, clock: ManualClock) -> None:
    set_locks(feed, clock, slowing(3))
    passed = 0
    for _ in range(1000):
        passed += sum(gate.allow(ACME) for _ in range(5))
        clock.advance(0.1)
    assert 300 <= passed <= 303


def test_each_lock_has_a_separate_rate(gate: Gate, feed: HandFeed, clock: ManualClock) -> None:
    set_locks(
        feed, clock, slowing(1), replace(slowing(1), key=BOB), replace(slowing(1), resource="/v1/export")
    )
    assert [gate.allow(ACME), gate.allow(BOB), gate.allow(ACME), gate.allow(BOB)] == [
        True,
        True,
        False,
        False,
    ]


def test_all_locks_that_slow_must_allow_a_request_and_a_denial_counts_for_none(
    gate: Gate, feed: HandFeed, clock: ManualClock
) -> None:
    set_locks(feed, clock, slowing(4, 1000.0, "wide"), slowing(2, 10.0, "narrow"))
    assert [gate.allow(ACME) for _ in range(9)] == [True, True] + [False] * 7
    assert gate.check(ACME).policy == "narrow"
    clock.advance(10.0)
    assert [gate.allow(ACME) for _ in range(9)] == [True, True] + [False] * 7
    clock.advance(10.0)
    assert gate.check(ACME)[:2] == (False, "wide")


def test_the_memory_for_locks_that_slow_is_bounded(
    gate: Gate, feed: HandFeed, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gatekeeper.slow_locks.KEYS_MAX", 5)
    monkeypatch.setattr("gatekeeper.slow_locks.RATES_MAX", 3)
    for n in range(20):
        set_locks(feed, clock, replace(slowing(1 + n), key=f"user:{n}"))
        assert gate.check(f"user:{n}").policy == "slowed"
    clock.advance(POLL_S)
    assert len(gate._runtime.slow_locks._last_rates) <= 5
    assert len(gate._runtime.slow_locks._limiters) <= 3


def test_a_lock_that_is_set_again_gives_no_new_burst(gate: Gate, feed: HandFeed, clock: ManualClock) -> None:
    """Nor does another end, another detail, or a snapshot; of a new rate the same share is used."""
    set_locks(feed, clock, slowing(4, 1000.0))
    assert sum(gate.allow(ACME) for _ in range(9)) == 4
    again = replace(slowing(4, 1000.0, detail="later"), until=NOON + timedelta(days=200))
    set_locks(feed, clock, again)
    assert not gate.allow(ACME)
    feed.publish(Set(again))
    feed.prune()
    clock.advance(POLL_S)
    assert not gate.allow(ACME)
    set_locks(feed, clock, slowing(8, 1000.0))
    assert sum(gate.allow(ACME) for _ in range(9)) <= 1


def test_a_lock_that_denies_comes_first_and_uses_nothing_of_the_rate(
    gate: Gate, feed: HandFeed, clock: ManualClock
) -> None:
    set_locks(feed, clock, slowing(1, 1000.0), a_lock(ACME, "daily", ends_in=10))
    decision = gate.check(ACME)
    assert (decision.policy, decision.also) == ("daily", ())
    clock.advance(10)
    assert gate.allow(ACME)


def test_a_lock_that_slows_ends_and_becomes_stale_like_any_other(
    gate: Gate, feed: HandFeed, clock: ManualClock
) -> None:
    set_locks(feed, clock, replace(slowing(1, 1000.0), on_stale="allow"))
    assert [gate.allow(ACME), gate.allow(ACME)] == [True, False]
    feed.away = True
    clock.advance(31.0)
    assert gate.check(ACME) is ALLOWED
    feed.away = False
    clock.advance(15.0)
    assert not gate.allow(ACME)
    clock.jump(10**7)
    assert gate.check(ACME) is ALLOWED


# -- tag ------------------------------------------------------------------------------------------


def test_a_tag_denies_no_request_and_is_named(gate: Gate, feed: HandFeed, clock: ManualClock) -> None:
    set_locks(feed, clock, a_lock(ACME, "beta", action="tag", detail="an early customer"))
    decision = gate.check(ACME)
    assert (decision.allowed, decision.tags, decision.policy, decision.retry_after) == (
        True,
        ("beta",),
        "beta",
        0.0,
    )
    assert gate.allow(ACME)
    set_locks(feed, clock, a_lock(ACME, "daily"))
    decision = gate.check(ACME)
    assert (decision.allowed, decision.policy, decision.also, decision.tags) == (
        False,
        "daily",
        (),
        ("beta",),
    )


def test_a_tag_does_not_allow_a_caller_that_a_stale_gate_denies(feed: HandFeed, clock: ManualClock) -> None:
    gate = Gate(feed, clock=clock, on_stale="deny")
    gate.ready(1.0)
    set_locks(feed, clock, a_lock(ACME, "beta", action="tag"))
    feed.away = True
    clock.advance(31.0)
    assert gate.check(ACME).reason == "stale"


# -- off ------------------------------------------------------------------------------------------


def a_suspension(ends_in: float) -> Lock:
    until = NOON + timedelta(seconds=ends_in)
    return Lock(**SUSPENSION._asdict(), began=NOON, until=until, action="suspend")


EVERY_KIND = [
    a_lock(ACME),
    slowing(1, 1000.0),
    a_lock("", "all", scope="everyone"),
    a_lock("192.0.2.0/24", "flood", scope="range", status=503),
]


@pytest.mark.parametrize("word", ["off", " OFF "])
def test_GATEKEEPER_off_switches_off_the_gates_of_one_process(
    feed: HandFeed, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setenv(SWITCH, word)
    gate = Gate(feed, clock=clock)
    feed.set(*EVERY_KIND)
    assert gate.ready(1.0)
    assert gate.check(ACME, address="192.0.2.1") is ALLOWED
    assert (gate.off, gate.healthy, gate.version) == ("process", True, 1)


def test_GATEKEEPER_is_read_at_each_poll(
    gate: Gate, feed: HandFeed, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_locks(feed, clock, *EVERY_KIND)
    assert not gate.allow(BOB)
    monkeypatch.setenv(SWITCH, "off")
    clock.advance(POLL_S)
    assert [gate.allow(BOB), gate.allow(ACME)] == [True, True]
    monkeypatch.setenv(SWITCH, "on")
    clock.advance(POLL_S)
    assert [gate.allow(BOB), gate.allow(ACME), gate.off] == [False, False, ""]


def test_a_gate_that_is_off_allows_requests_although_its_view_is_stale_and_on_stale_is_deny(
    feed: HandFeed, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(feed, clock=clock, on_stale="deny")
    assert gate.ready(1.0)
    feed.away = True
    clock.advance(60.0)
    assert not gate.allow(BOB)
    monkeypatch.setenv(SWITCH, "off")
    clock.advance(15.0)
    assert gate.allow(BOB)


def test_a_suspension_opens_every_gate_until_its_end(gate: Gate, feed: HandFeed, clock: ManualClock) -> None:
    set_locks(feed, clock, *EVERY_KIND)
    set_locks(feed, clock, a_suspension(600))
    assert gate.check(ACME, address="192.0.2.1") is ALLOWED
    assert gate.off == "fleet"
    feed.away = True
    clock.jump(598)
    assert gate.allow(ACME)
    clock.jump(2)
    assert (gate.allow(ACME), gate.off) == (False, "")


def test_a_suspension_is_part_of_snapshots_and_is_cleared_like_a_lock(
    feed: HandFeed, clock: ManualClock
) -> None:
    feed.set(*EVERY_KIND, a_suspension(10**6))
    feed.prune()
    gate = Gate(feed, clock=clock)
    assert gate.ready(1.0)
    assert gate.allow(ACME)
    feed.clear(a_suspension(1))
    clock.advance(POLL_S)
    assert not gate.allow(ACME)


def test_only_a_suspension_of_everyone_opens_the_gates(
    gate: Gate, feed: HandFeed, clock: ManualClock
) -> None:
    """Not one of a single caller or of a single resource."""
    narrowed = replace(a_suspension(600), resource="/v1/export")
    set_locks(feed, clock, a_lock(ACME), a_lock(ACME, ":suspended", action="suspend"), narrowed)
    assert not gate.allow(ACME)
    assert gate.off == ""
