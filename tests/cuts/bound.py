"""For how long a gate may not know, and how old what it knows may be: functions of nothing but when its
source could be read.

docs/gatekeeper.md states the bounds: a poll comes at the pace of the source, give or take a tenth; after
failures at most CEILING_S after the last one; no fetch takes longer than the source's own time-out.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Literal, NamedTuple

from gatekeeper.feed.poller import CEILING_S, PACE_MIN_S

Answers = Literal["all", "some", "none"]


class Stretch(NamedTuple):
    """How the source was, for a while; stretches follow each other without a gap."""

    begin_s: float
    end_s: float  # infinite for the last
    answers: Answers  # "none": no question that is asked here is ever answered; "some": who knows
    kind: str = ""


class Manner(NamedTuple):
    """How a source behaves while it answers, and a gate that asks it."""

    pace_s: float  # what it asks for, between an answer and the next question
    answer_s: float  # from a question to its whole answer, news kept back not counted
    wait_s: float  # for so long it keeps an answer back when there is no news
    fetch_s: float  # after so long the client gives a question up
    stale_after_s: float

    @property
    def pause_s(self) -> float:
        """Between two questions, at most, while it answers."""
        return 1.1 * min(max(PACE_MIN_S, self.pace_s), self.stale_after_s / 2)

    @property
    def comes_back_s(self) -> float:
        """From the moment that the source is well again to the first answer: the question that was under
        way is given up, the pause after it ends, and the next one is answered."""
        return self.fetch_s + max(CEILING_S, 1.1 * self.stale_after_s / 2) + self.wait_s + self.answer_s

    @property
    def news_s(self) -> float:
        """From a change to its being enforced, while all is well: it just missed the answer that is under
        way; then come a pause and an answer, which news do not keep waiting."""
        return self.answer_s + self.pause_s + self.answer_s

    @property
    def confirmed_s(self) -> float:
        """The age of the view, at most, while all is well."""
        return self.wait_s + self.news_s


def certain(sky: Sequence[Stretch], manner: Manner, begun_s: float, now_s: float) -> tuple[float, float]:
    """A gate that began at `begun_s` knows at `now_s` all that was published up to the first of these, and
    its view was confirmed at the second or later. -inf when it may know nothing."""
    for stretch in reversed(sky):
        well_s, until_s = max(stretch.begin_s, begun_s), min(stretch.end_s, now_s)
        if stretch.answers == "all" and until_s >= well_s + manner.comes_back_s:
            return until_s - manner.news_s, until_s - manner.confirmed_s
    return -inf, -inf


def possible(sky: Sequence[Stretch], now_s: float) -> float:
    """The last moment up to `now_s` at which a question could be asked that was answered: the youngest that
    the view can be."""
    youngest_s = now_s
    for stretch in reversed(sky):
        if stretch.begin_s > now_s:
            continue
        if stretch.answers != "none":
            return min(youngest_s, stretch.end_s)
        youngest_s = stretch.begin_s
    return -inf


def staleness(
    confirmed: tuple[float, float], begun_s: float, now_s: float, stale_after_s: float, slack_s: float
) -> list[tuple[bool, bool]]:
    """Of a view that was confirmed between these two moments: whether it is stale for locks, and whether
    for callers without one, who are given as long after the gate began. All that may be."""
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
