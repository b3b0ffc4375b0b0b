"""The time of counting towards one flush follows what a flush computes, not what it waits."""

from __future__ import annotations

import pytest

from analyzer.flush.turn_budget import BUDGET_S_MAX, BUDGET_S_MIN, TurnCost, next_budget_s

TWENTIETH = 0.05  # of a core


def starved(loop_cpu_s: float, flush_cpu_s: float, share: float = TWENTIETH) -> TurnCost:
    return TurnCost(loop_cpu_s / share, loop_cpu_s, flush_cpu_s)


@pytest.mark.parametrize(
    ("cost", "budget_s", "expected_s"),
    [
        (starved(0.1, 0.2), BUDGET_S_MAX, 1.0),  # 4 s of storing: half of the 2 s that were counted
        (starved(0.05, 0.05), 1.0, 1.0),  # 1 s of storing
        (starved(0.05, 0.01), 1.0, 2.0),  # 0.2 s
        (starved(0.05, 0.01), 4.0, BUDGET_S_MAX),
        (starved(0.02, 9.0), BUDGET_S_MIN, BUDGET_S_MIN),
        (starved(0.001, 0.5), 1.0, 1.0),  # too little to tell the machine by
        (TurnCost(1.0, 0.5, 8.0), 1.0, 2.0),  # a large flush, on half a core
        (TurnCost(0.5, 0.4, 0.05), 1.0, 2.0),  # a database that lets every statement wait costs no CPU time
    ],
)
def test_a_flush_that_computes_for_long_on_a_starved_machine_halves_the_next(
    cost: TurnCost, budget_s: float, expected_s: float
) -> None:
    assert next_budget_s(budget_s, cost) == pytest.approx(expected_s)


def test_at_a_twentieth_of_a_core_the_budget_settles_where_a_flush_takes_two_seconds() -> None:
    """A flush that costs 20 ms of CPU time, and 0.8 s for each second of computing that it stores."""
    budget_s, flushes_s = BUDGET_S_MAX, []
    for _ in range(30):
        flush_cpu_s = 0.02 + 0.8 * TWENTIETH * budget_s
        flushes_s.append(flush_cpu_s / TWENTIETH)
        budget_s = next_budget_s(budget_s, starved(TWENTIETH * budget_s, flush_cpu_s))
    assert flushes_s[0] > 4.0
    assert max(flushes_s[2:]) <= 2.0
