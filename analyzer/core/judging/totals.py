"""Running totals: what is added up per series and window, shared by all policies with the same sum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from analyzer.core.counting.caller_budget import OVERFLOW
from analyzer.core.counting.groupings import grouping_of
from analyzer.core.judging.windows import Calendar, Window, window_at
from analyzer.core.model import CountRow

NEVER = 2**63 - 1  # as the `next` of a total: no policy has anything more to judge in this window


class Sum(NamedTuple):
    """A meter of a grouping, added up over windows. Policies with equal sums share their totals."""

    grouping: str
    meter: str
    window: Calendar


SeriesWindow = tuple[str, str, Window]  # key, resource, window: a total of a given sum


class TotalKey(NamedTuple):
    """One running total: a sum, for one series and one window."""

    sum: Sum
    key: str
    resource: str
    window: Window


class Standing(NamedTuple):
    """A total as the database has it, the current flush included."""

    total: TotalKey
    used: int


def growth_of(sums: Iterable[Sum], rows: Iterable[CountRow]) -> dict[Sum, dict[SeriesWindow, int]]:
    """Returns how much each total of `sums` grows by `rows`, in the order in which row locks are taken.

    Denied requests add to no total, so that they never lock a caller again; nor does the overflow, which is
    not a caller.
    """
    counted: dict[tuple[str, str], list[CountRow]] = {}
    for row in rows:
        if row.value and not (row.key == OVERFLOW and grouping_of(row.grouping).is_of_callers):
            counted.setdefault((row.grouping, row.meter), []).append(row)
    growth: dict[Sum, dict[SeriesWindow, int]] = {}
    for sum_ in sorted(sums, key=order_of):
        windows: dict[int, Window] = {}  # a flush has few buckets, and many rows of each
        grown: dict[SeriesWindow, int] = {}
        for row in counted.get((sum_.grouping, sum_.meter), ()):
            window = windows.get(row.bucket_s)
            if window is None:
                window = windows[row.bucket_s] = window_at(sum_.window, row.bucket_s)
            at = (row.key, row.resource, window)
            grown[at] = grown.get(at, 0) + row.value
        if grown:
            growth[sum_] = dict(sorted(grown.items()))
    return growth


def order_of(sum_: Sum) -> tuple[str, str, str]:
    """Returns the sum's key in the table of totals, which is also the order of its row locks."""
    return sum_.grouping, sum_.meter, str(sum_.window)
