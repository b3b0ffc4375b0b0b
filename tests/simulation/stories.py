"""Stories: a size, a beginning, and acts with their times, drawn from a seed before anything happens."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import NamedTuple

from tests.simulation.acts import (
    AcceptGaps,
    Act,
    AnswerFaults,
    Backlog,
    BadRecords,
    ClockLeap,
    DeleteOld,
    Dump,
    Fault,
    Kill,
    NewApplication,
    Outage,
    Pause,
    Rebalance,
    Reload,
    Requests,
    Restore,
    Retry,
    Size,
    Sleep,
    SlowFlush,
    Stop,
    WrongClock,
)
from tests.simulation.operator_acts import ClearLocks, EndOverrides, Override, Resume, SetLock, Suspend
from tests.simulation.policies.plans import PLANS

SECONDS = 12.0  # of a story, without what it sleeps
ACTS = 40
BEGINNINGS_S = (
    1_792_879_185,  # 2026-10-24T21:59:45Z: midnight in Berlin, before the night in which clocks change
    1_792_889_985,  # 2026-10-25T00:59:45Z: three o'clock is two o'clock again
    1_796_079_585,  # 2026-11-30T22:59:45Z: the end of a month
    1_795_176_010,  # 2026-11-20T12:00:10Z: nothing
)
KINDS: tuple[type[Act], ...] = (
    Requests, Backlog, BadRecords, Retry, Fault, Kill, Stop, Pause, SlowFlush, Rebalance, Outage,
    AnswerFaults, NewApplication, WrongClock, ClockLeap, Dump, Restore, DeleteOld, AcceptGaps, Suspend,
    Resume, Sleep, Override, EndOverrides, SetLock, ClearLocks,
)  # fmt: skip


class Story(NamedTuple):
    """Everything that the run of a simulation depends on."""

    seed: int
    begins_s: int
    size: Size
    plans: tuple[int, ...]  # of each analyzer at first
    acts: tuple[tuple[float, Act], ...]  # with seconds from the beginning
    is_calm: bool  # requests only: bounds on delays hold
    has_small_steps: bool  # activations and jobs take several transactions for a few rows


def draw(seed: int) -> Story:
    """Returns the story of a seed."""
    random = Random(seed)
    size = Size(random.choice((1, 2, 2, 3)), random.choice((1, 2, 3)))
    is_calm = random.random() < 0.1
    # Each story has some kinds of acts often and others not at all: faults are found that way which need
    # several of a kind. (Groce, Zhang, Eide, Chen, Regehr: Swarm testing, ISSTA 2012)
    weights = [kind.weight * random.choice((0, 0, 1, 2, 4)) for kind in KINDS]
    weights[KINDS.index(Requests)] = Requests.weight
    times = sorted(random.uniform(0.5, SECONDS) for _ in range(ACTS))
    if is_calm:
        acts: list[Act] = [Requests.calm(random, size) for _ in times]
    else:
        kinds = after_causes(random.choices(KINDS, weights, k=ACTS))
        acts = [kind.drawn(random, size) for kind in kinds]
    plans = random.choices(range(len(PLANS)), k=size.analyzers)
    if is_calm or random.random() < 0.5:
        plans = [plans[0]] * size.analyzers
    return Story(
        seed,
        random.choice(BEGINNINGS_S),
        size,
        tuple(plans),
        tuple(zip(times, acts, strict=True)),
        is_calm,
        has_small_steps=random.random() < 0.6,
    )


def with_reloads(story: Story) -> Story:
    """Returns the story in which files change in running processes, and no process is stopped for it."""
    acts = [
        (at_s, Reload(act.analyzer, act.plan) if isinstance(act, Stop) else act) for at_s, act in story.acts
    ]
    return story._replace(acts=tuple(acts))


def after_causes(kinds: Iterable[type[Act]]) -> list[type[Act]]:
    """Returns the kinds, with its cause in place of each whose cause is missing."""
    found: list[type[Act]] = []
    unused: set[type[Act]] = set()
    for drawn in kinds:
        kind = drawn if drawn.cause is None or drawn.cause in unused else drawn.cause
        unused.add(kind)
        if kind.cause is not None:
            unused.remove(kind.cause)
        found.append(kind)
    return found
