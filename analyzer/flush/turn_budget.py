"""Bound on what the loop counts before it stores, by what storing has cost on this machine. Pure.

On a machine that gives the process a twentieth of a core, what takes two seconds elsewhere takes forty.
Nothing is wrong with that, except that a stop then cannot store in time, and that the database ends a
transaction which computes for long between two statements. So the bound is one of time: `next_budget_s`.
"""

from __future__ import annotations

from typing import NamedTuple

TURN_S = 2.0  # one turn takes records no longer than this, however many there are
SLOW_S = 2.0  # a flush that computes for longer halves what the next one holds
QUICK_S = 0.5  # one that computes for less doubles it
BUDGET_S_MAX = 5.0
BUDGET_S_MIN = 0.05
# The loop needs this many times its CPU time. Below, other threads of the process may be the cause, and one
# large flush costs less per record than several small ones.
SLOWNESS_MIN = 4.0
LOOP_CPU_S_MIN = 0.01  # less says nothing about the machine


class TurnCost(NamedTuple):
    """Cost of one flush: seconds of counting and draining, and CPU seconds."""

    loop_s: float
    loop_cpu_s: float
    flush_cpu_s: float  # of the thread that stores; what the database computes is not in it

    @property
    def slowness(self) -> float:
        """Seconds for each CPU second of the loop, which only computes in that time: 1 on an idle machine."""
        return max(1.0, self.loop_s / self.loop_cpu_s) if self.loop_cpu_s > 0 else 1.0

    @property
    def is_starved(self) -> bool:
        """Whether the machine gives the loop less of the processor than other threads of it can explain."""
        return self.loop_cpu_s >= LOOP_CPU_S_MIN and self.slowness >= SLOWNESS_MIN


def next_budget_s(budget_s: float, cost: TurnCost) -> float:
    """Returns for how long the loop may count towards the next flush, after one that cost `cost`.

    A flush that computed for more than `SLOW_S`, at the speed at which the loop was given the processor,
    halves it; a quick one doubles it. Waiting for the database counts neither way, because smaller flushes
    would not shorten it.

    >>> next_budget_s(4.0, TurnCost(loop_s=3.0, loop_cpu_s=0.15, flush_cpu_s=0.2))
    1.5
    >>> next_budget_s(1.5, TurnCost(loop_s=1.5, loop_cpu_s=1.4, flush_cpu_s=3.0))
    3.0
    """
    if cost.loop_cpu_s < LOOP_CPU_S_MIN:
        return budget_s
    flush_s = cost.flush_cpu_s * cost.slowness
    if not cost.is_starved or flush_s < QUICK_S:
        return min(BUDGET_S_MAX, 2 * budget_s)
    if flush_s > SLOW_S:
        return max(BUDGET_S_MIN, min(budget_s, cost.loop_s) / 2)
    return budget_s
