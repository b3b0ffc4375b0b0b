"""The bounds of a gate: which changes it must know and how old its view may be, by when its source worked.

docs/guards.md states them: a poll comes at the pace of the source, plus or minus a tenth; after failures
at most CEILING_S after the last one; no fetch takes longer than the source's time-out.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Literal, NamedTuple

from gatekeeper.feed.poller import CEILING_S, PACE_MIN_S

Answers = Literal["all", "some", "none"]


class Period(NamedTuple):
    """A period in which the source behaved in one way. Periods follow each other without gaps."""

    begin_s: float
    end_s: float  # infinite for the last
    answers: Answers  # "none": no request in this period is answered; "some": not known
    kind: str = ""


class SourceTiming(NamedTuple):
    """The timing of a working source, and of a gate that polls it."""

    pace_s: float  # `next_poll` of its answers
    answer_s: float  # from a request to the whole answer, without a long poll
    wait_s: float  # the longest poll
    fetch_s: float  # the time-out of a fetch
    stale_after_s: float

    @property
    def pause_s(self) -> float:
        """The longest pause between two polls while it answers."""
        return 1.1 * min(max(PACE_MIN_S, self.pace_s), self.stale_after_s / 2)

    @property
    def recovery_s(self) -> float:
        """The longest time from the recovery of the source to the first answer.

        The fetch that was running times out, the pause after it ends, and the next fetch is answered.
        """
        return self.fetch_s + max(CEILING_S, 1.1 * self.stale_after_s / 2) + self.wait_s + self.answer_s

    @property
    def news_s(self) -> float:
        """The longest time from a change to its enforcement while all works.

        The change just missed one answer; then come a pause and the next answer, which has news and does not
        wait.
        """
        return self.answer_s + self.pause_s + self.answer_s

    @property
    def confirmed_s(self) -> float:
        """The highest age of the view while all works."""
        return self.wait_s + self.news_s


def surely_known(
    timeline: Sequence[Period], timing: SourceTiming, begun_s: float, now_s: float
) -> tuple[float, float]:
    """The moment up to which a gate that started at `begun_s` must know all changes at `now_s`, and the
    earliest moment at which its view was confirmed. -inf when it may know nothing."""
    for period in reversed(timeline):
        well_s, until_s = max(period.begin_s, begun_s), min(period.end_s, now_s)
        if period.answers == "all" and until_s >= well_s + timing.recovery_s:
            return until_s - timing.news_s, until_s - timing.confirmed_s
    return -inf, -inf


def youngest_possible(timeline: Sequence[Period], now_s: float) -> float:
    """The last moment up to `now_s` of a request that could be answered: the view cannot be younger."""
    youngest_s = now_s
    for period in reversed(timeline):
        if period.begin_s > now_s:
            continue
        if period.answers != "none":
            return min(youngest_s, period.end_s)
        youngest_s = period.begin_s
    return -inf


def staleness(
    confirmed: tuple[float, float], begun_s: float, now_s: float, stale_after_s: float, slack_s: float
) -> list[tuple[bool, bool]]:
    """All possible states of a view that was confirmed between these two moments.

    A state is whether the view is stale for locks, and whether it is stale for callers without one, which
    counts from the start of the gate at the earliest.
    """
    oldest_s, youngest_s = confirmed
    edge_s = now_s - stale_after_s
    found = []
    if youngest_s >= edge_s - slack_s:
        found.append((False, False))
    if oldest_s < edge_s + slack_s and begun_s >= edge_s - slack_s:
        found.append((True, False))
    if max(oldest_s, begun_s) < edge_s + slack_s:
        found.append((True, True))
    return found
