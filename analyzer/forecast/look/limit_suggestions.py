"""A limit that separates the few series that stand out from all others."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil
from typing import NamedTuple

STEPS = (10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100)  # round numbers, times a power of ten
GAP = 2.0  # a series stands out from the next one if its peak is so many times as high
OUTSTANDING_SHARE = 0.01  # at most so many of all series stand out, and
OUTSTANDING_MAX = 20
LIMIT_MIN = 10  # below it, chance decides which series stand out
HEADROOM = 1.5  # over the highest peak, where none stands out


class LimitSuggestion(NamedTuple):
    """A suggested limit, and the peaks around it."""

    limit: int
    above: int | None  # the lowest peak that reaches it; None: no series stands out
    below: int  # the highest peak below it; 0 without any


def suggest_limit(peaks: Sequence[int], floor: int = 1) -> LimitSuggestion:
    """Returns a round limit, at least `floor`, between the peaks of series that stand out and all others.

    The widest gap is taken among the highest peaks. Without a gap the limit is above all of them.

    >>> suggest_limit([900, 700, 60] + [40] * 500)
    LimitSuggestion(limit=250, above=700, below=60)
    >>> suggest_limit([60, 50, 40, 30])
    LimitSuggestion(limit=100, above=None, below=60)
    """
    ordered = sorted(peaks, reverse=True)
    outstanding_max = min(OUTSTANDING_MAX, max(1, int(len(ordered) * OUTSTANDING_SHARE)))
    best, widest = None, GAP
    for number, (above, below) in enumerate(pairwise(ordered), 1):
        if number > outstanding_max:
            break
        limit = round_number((above * below) ** 0.5)
        if above >= widest * below and limit >= LIMIT_MIN and below < limit <= above and above >= floor:
            best, widest = LimitSuggestion(max(limit, floor), above, below), above / below
    if best is not None:
        return best
    highest = ordered[0] if ordered else 0
    return LimitSuggestion(max(floor, round_number(max(LIMIT_MIN, highest * HEADROOM))), None, highest)


def round_number(value: float) -> int:
    """Returns the smallest round number that is not below `value`.

    >>> [round_number(value) for value in (0.5, 7, 61, 601, 12_001)]
    [1, 7, 80, 800, 15000]
    """
    if value <= 10:
        return max(1, ceil(value))
    scale = 1
    while value > STEPS[-1] * scale:
        scale *= 10
    return next(step * scale for step in STEPS if step * scale >= value)
