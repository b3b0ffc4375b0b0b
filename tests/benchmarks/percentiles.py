"""Percentiles of waits, as measurements print them. One wait is enough: the smallest forms have no more."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import quantiles


def percentile(waits_s: Sequence[float], at: int) -> float:
    """Returns the percentile `at` (1 to 99), between the two nearest waits; 0.0 without a wait.

    Example:
        >>> percentile([1.0, 3.0], 50), percentile([2.0], 99), percentile([], 50)
        (2.0, 2.0, 0.0)
    """
    if len(waits_s) < 2:
        return max(waits_s, default=0.0)
    return quantiles(waits_s, n=100, method="inclusive")[at - 1]


def percentiles(waits_s: Sequence[float], *which: int) -> str:
    """Returns the percentiles `which`, and the longest wait, as a row of a table."""
    cells = [f"p{at} {percentile(waits_s, at):.3f}" for at in which]
    return "   ".join([*cells, f"max {max(waits_s, default=0.0):.3f}"])
