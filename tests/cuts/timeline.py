"""The timeline of a source's faults, drawn in advance for simulated time."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import Random

from tests.cuts.bound import Answers, Period

# What happens to a fetch, and whether any is answered meanwhile.
ANSWERS_BY_KIND: dict[str, Answers] = {
    "well": "all",
    "away": "none",  # fails at once
    "silent": "none",  # does not answer until the fetch times out
    "lost": "none",  # the request arrives, the answer does not
    "busy": "none",  # answers 503 with a long Retry-After
    "buggy": "none",  # raises an unexpected exception
    "shredded": "none",  # answers arrive incomplete
    "breaking": "some",  # an exception while the changes are applied, if there are any
    "slow": "some",
    "flapping": "some",
    "crossed": "some",  # each answer is the one to the previous request
    "frozen": "some",  # a file that is no longer written
}
FILE_KINDS = ("away", "shredded", "frozen", "buggy")
OTHER_KINDS = tuple(kind for kind in ANSWERS_BY_KIND if kind not in ("well", "frozen"))


def draw_timeline(random: Random, seconds: float, kinds: Sequence[str]) -> list[Period]:
    """Working and faulty periods in turn; some of both longer than any bound, most of them short."""
    timeline: list[Period] = []
    at_s, well = 0.0, random.random() < 0.7
    while at_s < seconds:
        kind = "well" if well else random.choice(kinds)
        longest_s = random.choice((2.0, 12.0, 60.0, 90.0) if well else (1.0, 5.0, 20.0, 70.0))
        end_s = at_s + random.uniform(0.05, longest_s)
        timeline.append(Period(at_s, end_s, ANSWERS_BY_KIND[kind], kind))
        at_s, well = end_s, not well or random.random() < 0.2
    timeline.append(Period(at_s, inf, "all", "well"))
    return timeline


def period_at(timeline: Sequence[Period], now_s: float) -> Period:
    """The period that contains this moment."""
    return next(period for period in reversed(timeline) if period.begin_s <= now_s)
