"""The helpers for the tests of applications."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gatekeeper import Gate, SlidingLog
from gatekeeper.testing import ManualClock, locked
from tests.support.feed import HandFeed, a_lock


def test_a_manual_clock_does_not_move_by_itself() -> None:
    clock = ManualClock(datetime(2026, 3, 1, tzinfo=UTC))
    assert (clock(), clock.uptime_s(), clock.now()) == (0, 0.0, datetime(2026, 3, 1, tzinfo=UTC))
    clock.advance(1.5)
    assert (clock(), clock.uptime_s()) == (1_500_000_000, 1.5)
    clock.jump(-60)
    assert (clock.uptime_s(), clock.now()) == (1.5, datetime(2026, 2, 28, 23, 59, 1, 500_000, tzinfo=UTC))


def test_periodic_functions_are_called_in_order_at_their_moments() -> None:
    clock, seen = ManualClock(), []
    clock.run(lambda: seen.append(("a", clock.uptime_s())) or 3.0, "a")
    clock.run(lambda: seen.append(("b", clock.uptime_s())) or 2.0, "b")
    clock.advance(6.5)
    assert seen == [("a", 0), ("b", 0), ("b", 2), ("a", 3), ("b", 4), ("a", 6), ("b", 6)]


def test_a_function_that_is_always_due_at_once_raises() -> None:
    clock = ManualClock()
    clock.run(lambda: 0.0, "busy")
    with pytest.raises(RuntimeError, match="at the same moment"):
        clock.advance(1.0)


def test_a_function_that_advances_the_clock_lets_others_be_called() -> None:
    clock, seen = ManualClock(), []

    def slow() -> float:
        seen.append(("slow", clock.uptime_s()))
        clock.advance(2.5)
        return 1.0

    clock.run(slow, "slow")
    clock.run(lambda: seen.append(("quick", clock.uptime_s())) or 1.0, "quick")
    clock.advance(4.0)
    assert seen == [("slow", 0), ("quick", 0), ("quick", 1), ("quick", 2), ("quick", 3), ("slow", 3.5),
                    ("quick", 4), ("quick", 5), ("quick", 6)]  # fmt: skip
    assert clock.uptime_s() == 6.0


def test_one_clock_serves_gates_and_limiters() -> None:
    clock = ManualClock()
    burst = SlidingLog(limit=1, period=10, clock=clock)
    assert [burst.allow(), burst.allow()] == [True, False]
    clock.advance(10.0)
    assert burst.allow()


def test_callers_are_locked_inside_the_with_statement_only() -> None:
    gate = Gate(HandFeed())
    with locked(gate, "api_key:acme", "user:bob", policy="daily", status=503):
        assert gate.check("api_key:acme")[:2] == (False, "daily")
        assert gate.check("user:bob").status == 503
        assert gate.allow("user:eve")
        assert gate.healthy
    assert gate.allow("api_key:acme")
    gate.close()


def test_a_gate_without_its_database_can_lock_callers_too() -> None:
    gate = Gate("sqlite:////nowhere/gatelock.db")
    with locked(gate, "api_key:acme"):
        assert not gate.allow("api_key:acme")
    assert gate.version == 0


def test_a_running_gate_continues_afterwards() -> None:
    clock, feed = ManualClock(), HandFeed(a_lock("user:eve"))
    gate = Gate(feed, clock=clock)
    assert gate.ready(1.0)
    with locked(gate, "api_key:acme"):
        assert gate.allow("user:eve")
    assert not gate.allow("user:eve")
    feed.set(a_lock("user:bob"))
    clock.advance(1.0)
    assert not gate.allow("user:bob")
