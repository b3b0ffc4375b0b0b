"""The sentence of a noisy neighbour's lock tells how all others fared, as a second count says."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import ceil
from random import Random
from typing import NamedTuple

import msgspec
import pytest
import sqlalchemy as sa

from analyzer.counting.counter import outcomes
from analyzer.judging.kinds import victims
from analyzer.judging.sql import victim_slots
from analyzer.kernel.tables.schema import lock_changes
from analyzer.plan.mapping import NumberField, TextField
from analyzer.plan.policies import LoadShare
from analyzer.plan.windows import Rolling
from tests.oracle.compared_stories import BEGIN_S, LOOK_MS, SOURCE, world_of

EXPORT, SEARCH = "/v1/export", "/v1/search"
POLICY = LoadShare("neighbour", 500_000, 60, Rolling(24), 5, 250_000, per="caller+resource")
FIELDS = {"status": TextField(("status",)), "duration": NumberField(("took",), "duration", "ms")}
WITH_OUTCOMES = msgspec.structs.replace(SOURCE, fields=SOURCE.fields | FIELDS)
SENTENCE = re.compile(
    r"all others: (\d+) requests \((\d+) before\), ([\d.]+) % errors \(([\d.]+) %\), "
    r"mean ([\d.]+) ms \(([\d.]+) ms\), p95 ([\d.]+) ms \(([\d.]+) ms\)$"
)
SECONDS = 80
SLOT_S, PERIOD_S = POLICY.window.slot_s, POLICY.window.period_s
assert SLOT_S == 2


class Request(NamedTuple):
    """A request, as the log has it."""

    at_s: int
    key: str
    path: str
    status: int
    took: int  # ms


class Fared(NamedTuple):
    """The numbers of the sentence, of one window."""

    requests: int
    errors: float  # per cent
    mean_ms: float
    p95_ms: float


def story_of(seed: int) -> list[Request]:
    """Returns a story in which a noisy caller makes the route slow for the others from the 50th second on."""
    random, found = Random(seed), []
    for second in range(SECONDS):
        is_noisy = second >= 50
        for n in range(random.randint(2, 5)):
            took = int(random.lognormvariate(4.5, 0.8) * (4 if is_noisy else 1)) + 20
            status = 503 if random.random() < (0.3 if is_noisy else 0.05) else 200
            found.append(Request(BEGIN_S + second, f"other-{n}", EXPORT, status, took))
        found += [Request(BEGIN_S + second, "noisy", EXPORT, 200, 9_000)] * (12 if is_noisy else 0)
        found.append(Request(BEGIN_S + second, "noisy", SEARCH, 500, 1))
    return found


def fared(story: list[Request], at_s: int) -> Fared:
    """Returns how all but the noisy caller fared in the window that ends at a time; counts them again."""
    first_s = next(s for s in range(at_s - PERIOD_S - SLOT_S + 1, at_s) if s % SLOT_S == 0)
    last_s = at_s - at_s % SLOT_S + SLOT_S - 1  # the slot that it ends in counts whole
    others = [
        one for one in story if one.key != "noisy" and one.path == EXPORT and first_s <= one.at_s <= last_s
    ]
    took = sorted(one.took for one in others)
    failed = sum(one.status >= 500 for one in others)
    return Fared(
        len(others),
        failed / len(others) * 100,
        sum(took) / len(took),
        took[ceil(0.95 * len(took)) - 1],
    )


def sentence_of(url: str, story: list[Request]) -> tuple[str, int]:
    """Returns the sentence of the first lock, and when it was set."""
    with world_of(url, POLICY, WITH_OUTCOMES) as world:
        for at_s in range(BEGIN_S, BEGIN_S + SECONDS):
            for one in story:
                if one.at_s == at_s:
                    world.log.write(key=one.key, path=one.path, status=one.status, took=one.took)
            world.clock.advance(LOOK_MS / 1000)
            for _ in range(3):
                world.daemon.run_once()
            world.jobs.run_once()
            with world.engine.connect() as db:
                detail = db.execute(sa.select(lock_changes.c.detail)).scalar()
            if detail is not None:
                return detail, at_s
            world.clock.advance(1 - LOOK_MS / 1000)
    raise AssertionError("the noisy caller is not locked")


def differences(url: str, story: list[Request]) -> list[str]:
    """Returns in which numbers the sentence differs from those that are counted again."""
    detail, at_s = sentence_of(url, story)
    found = SENTENCE.search(detail)
    if found is None:
        return [detail]
    story = [one for one in story if one.at_s <= at_s]
    during, before = fared(story, at_s), fared(story, at_s - POLICY.hold_s - PERIOD_S - SLOT_S)
    wanted = [number for pair in zip(during, before, strict=True) for number in pair]
    bounds = [0, 0, 0.006, 0.006, 0.01, 0.01, 0.07, 0.07]  # of rounding; of the classes of durations
    return [
        f"{float(text)} is not {number}"
        for text, number, bound in zip(found.groups(), wanted, bounds, strict=True)
        if abs(float(text) - number) > bound * number
    ]


@pytest.mark.parametrize("seed", range(3))
def test_the_sentence_has_the_numbers_of_all_others(migrated_url: str, seed: int) -> None:
    assert differences(migrated_url, story_of(seed)) == []


MUTATIONS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "the noisy caller is one of the others": lambda patch: patch.setattr(
        victim_slots, "without", lambda whole, _part: whole
    ),
    "the 90th percentile": lambda patch: patch.setattr(victims, "P95", 0.9),
    "errors are not told": lambda patch: patch.setattr(outcomes, "ERRORS", "-1"),
    "four classes": lambda patch: patch.setattr(outcomes, "CLASS_BITS", 1),
    "before is during": lambda patch: patch.setattr(
        victim_slots, "earlier_end_s", lambda _rolling, since_s: since_s
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_wrong_number_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch, new_sqlite_url: Callable[[], str]
) -> None:
    MUTATIONS[name](monkeypatch)
    assert any(differences(new_sqlite_url(), story_of(seed)) for seed in range(2))
