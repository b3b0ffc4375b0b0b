"""Runs the stories of many seeds, and finds the shortest part of a story that still fails."""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import pytest

from tests.simulation.mutations import MUTATIONS
from tests.simulation.stories import Story, draw
from tests.simulation.world import World

SHOWN_EVENTS = 12  # before the failure
SHRINK_RUNS_MAX = 400


class Result(NamedTuple):
    """The outcome of one run; `wrong` is empty if nothing was wrong."""

    seed: int
    wrong: str
    events: int = 0
    acts: Counter[str] = Counter()  # noqa: RUF012 - never changed
    faults: Counter[str] = Counter()  # noqa: RUF012 - never changed
    raised: Counter[str] = Counter()  # noqa: RUF012 - never changed; locks by policy
    ended: Counter[str] = Counter()  # noqa: RUF012 - never changed
    seen: Counter[str] = Counter()  # noqa: RUF012 - never changed
    locks: int = 0
    denied: int = 0
    flushes: int = 0
    overshoot: int = 0  # the highest, in a story with requests only
    last_events: Sequence[str] = ()


def play(story: Story, shown_events: int = SHOWN_EVENTS) -> Result:
    """Plays a story; an error of the product is as wrong as a wrong result."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # processes log each fault
    world = World(story)
    try:
        world.run()
        wrong = ""
    except Exception as error:  # noqa: BLE001 - reported with its seed
        wrong = f"{type(error).__name__}: {' '.join(str(error).split())}"
    finally:
        logging.disable(level)
    trace = world.scheduler.trace
    return Result(
        story.seed, wrong, world.scheduler.events, world.done, world.faults(),
        world.truth.raised, world.truth.ended, world.truth.rolling.seen, world.truth.crossed,
        sum(one.request.is_denied for one in world.asked),
        sum(analyzer.flushes for analyzer in world.analyzers), world.overshoot, trace[-shown_events:],
    )  # fmt: skip


def play_seed(seed: int) -> Result:
    return play(draw(seed))


def play_mutated(name: str, stories: Iterable[Story], failure: str) -> Result | None:
    """Returns the first run of these stories in which the mutation causes a failure that matches."""
    with pytest.MonkeyPatch.context() as patch:
        MUTATIONS[name](patch)
        return next((found for story in stories if re.match(failure, (found := play(story)).wrong)), None)


def play_all(seeds: Sequence[int], processes: int) -> Iterator[Result]:
    """Yields the results of all seeds, in any order."""
    if processes == 1:
        yield from map(play_seed, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(play_seed, seeds, chunksize=5)


def shrunk(story: Story, still_wrong: Callable[[Story], bool]) -> list[int]:
    """Returns the numbers of acts that suffice for the story to fail.

    Leaves out as many as possible at a time, then fewer. (Zeller, Hildebrandt: Simplifying and isolating
    failure-inducing input, IEEE TSE 2002)
    """
    kept = list(range(len(story.acts)))
    size, runs = len(kept) // 2, 0
    while size and runs < SHRINK_RUNS_MAX:
        for first in range(0, len(kept), size):
            shorter = kept[:first] + kept[first + size :]
            runs += 1
            if still_wrong(part_of(story, shorter)):
                kept = shorter
                break
        else:
            size //= 2
    return kept


def part_of(story: Story, numbers: Iterable[int]) -> Story:
    """Returns the story with these acts alone."""
    return story._replace(acts=tuple(story.acts[number] for number in numbers))


def report(result: Result, mutation: str = "") -> str:
    """Returns the failure, the command that repeats it, and the acts that suffice."""
    story = draw(result.seed)
    numbers = shrunk(story, lambda shorter: bool(play(shorter).wrong))
    shortest = play(part_of(story, numbers))
    only = ",".join(map(str, numbers)) or "none"
    mutated = f" --mutation {mutation}" if mutation else ""
    acts = [f"  {at_s:6.3f} s  {act}" for at_s, act in part_of(story, numbers).acts]
    return "\n".join(
        [
            f"seed {result.seed} is wrong: {result.wrong[:1_000]}",
            f'to repeat: make simulation ARGS="--seed {result.seed}{mutated}"',
            f'shortened: make simulation ARGS="--seed {result.seed} --only {only}{mutated}"',
            f"analyzers have the plans {story.plans}; {story.size.partitions} partitions",
            *acts,
            f"then {shortest.wrong[:1_000]}, after",
            *(f"  {event[:160]}" for event in shortest.last_events),
        ]
    )


def summary(results: Sequence[Result], began_s: float) -> str:
    """Returns what the runs contained, in a few lines."""
    acts = sum((result.acts for result in results), Counter[str]())
    faults = sum((result.faults for result in results), Counter[str]())
    raised = sum((result.raised for result in results), Counter[str]())
    ended = sum((result.ended for result in results), Counter[str]())
    seen = sum((result.seen for result in results), Counter[str]())
    events, wrong = sum(r.events for r in results), sum(bool(r.wrong) for r in results)
    return (
        f"stories: {len(results)}; {events:,} simulation steps ({min(r.events for r in results)} to "
        f"{max(r.events for r in results)} each), {sum(r.flushes for r in results):,} flushes, "
        f"{sum(r.locks for r in results):,} locks, {sum(r.denied for r in results):,} requests denied, "
        f"at most {max(r.overshoot for r in results)} beyond a limit in stories without faults, "
        f"{wrong} wrong, in {time.monotonic() - began_s:.0f} s\n"
        f"locks that were set: {counts_text(raised)}\n"
        f"locks that have ended: {counts_text(ended)}\n"
        f"of rolling windows: {counts_text(seen)}\n"
        f"acts that had an effect: {counts_text(acts)}\n"
        f"faults that had an effect: {counts_text(faults)}"
    )


def counts_text(counts: Counter[str]) -> str:
    """Returns names with their counts, the highest first."""
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def repeat_with_fixed_hashes() -> None:
    """Starts this command again with a fixed order of sets of names, without which runs differ."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
