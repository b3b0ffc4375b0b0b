"""How a source is, over time: drawn beforehand for a simulated clock, noted as it happens for a real one."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import Random

from tests.cuts.bound import Answers, Stretch

# What becomes of a question, and whether any is answered then.
KINDS: dict[str, Answers] = {
    "well": "all",
    "away": "none",  # says so at once
    "silent": "none",  # says nothing, until the client gives it up
    "lost": "none",  # the question arrives; the answer does not
    "busy": "none",  # asks to be asked later, much later
    "mad": "none",  # raises what no source should
    "shredded": "none",  # of each answer only a part arrives
    "breaking": "some",  # an answer breaks off while it is applied, unless it is empty
    "slow": "some",
    "flapping": "some",
    "crossed": "some",  # each answer is the one to the question before
    "frozen": "some",  # a file that nobody writes any longer
}
OF_FILES = ("away", "shredded", "frozen", "mad")
NOT_OF_FILES = tuple(kind for kind in KINDS if kind not in ("well", "frozen"))


def drawn(random: Random, seconds: float, kinds: Sequence[str]) -> list[Stretch]:
    """Well and not, in turn; some of both longer than any bound, most of them short."""
    sky: list[Stretch] = []
    at_s, well = 0.0, random.random() < 0.7
    while at_s < seconds:
        kind = "well" if well else random.choice(kinds)
        longest_s = random.choice((2.0, 12.0, 60.0, 90.0) if well else (1.0, 5.0, 20.0, 70.0))
        end_s = at_s + random.uniform(0.05, longest_s)
        sky.append(Stretch(at_s, end_s, KINDS[kind], kind))
        at_s, well = end_s, not well or random.random() < 0.2
    sky.append(Stretch(at_s, inf, "all", "well"))
    return sky


def at(sky: Sequence[Stretch], now_s: float) -> Stretch:
    """The stretch in which this moment lies."""
    return next(stretch for stretch in reversed(sky) if stretch.begin_s <= now_s)
