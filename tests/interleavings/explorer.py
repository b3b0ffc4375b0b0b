"""Explores every order of the steps of several transactions, up to orders that cannot differ.

Two neighbouring steps that do not depend on each other give one outcome in either order. So it is enough to
run one order of each class of orders that such swaps connect (a Mazurkiewicz trace). This is dynamic partial
order reduction: run an order to its end, find the pairs of steps that raced in it, and run the orders in
which such a pair is reversed. By source sets, with sleep sets, after

    Flanagan, Godefroid: Dynamic partial-order reduction for model checking software. POPL 2005.
    Abdulla, Aronis, Jonsson, Sagonas: Optimal dynamic partial order reduction. POPL 2014, algorithm 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import factorial, prod
from random import Random
from typing import NamedTuple, Protocol

from tests.interleavings.footprints import Footprint, are_dependent

ORDERS_MAX = 10_000  # of one set of transactions: more would take minutes


class DoneStep(NamedTuple):
    """One step that was done.

    Attributes:
        actor: Number of the transaction that did it.
        label: The step for display.
        footprint: What the step touched.
        woken: The transactions whose statements had waited for it, with what these touched then.
    """

    actor: int
    label: str
    footprint: Footprint
    woken: tuple[tuple[int, Footprint], ...] = ()

    @property
    def whole(self) -> Footprint:
        """The footprint of the step, with that of the statements that had waited for it."""
        return self.footprint.union(*(footprint for _, footprint in self.woken))


class Part(NamedTuple):
    """The share of one transaction in a step."""

    actor: int
    footprint: Footprint
    at: int  # number of the step


class System(Protocol):
    """Several transactions of which one does a step at a time."""

    revised: Mapping[int, Footprint]  # what steps have touched, by number, where more is known by now

    def begin(self) -> None:
        """Begins an order: every transaction waits before its first step."""

    def enabled(self) -> frozenset[int]:
        """Returns the transactions that can do a step: those that neither wait for a lock nor have ended."""

    def step(self, actor: int) -> DoneStep:
        """Does one step, and returns it."""

    def abandon(self) -> None:
        """Rolls every open transaction back."""


@dataclass
class Node:
    """A moment in an order, and what remains to be tried from it."""

    enabled: frozenset[int]
    sleep: dict[int, Footprint]  # transactions whose next step first is covered by another order
    wanted: set[int]
    # The first step of each transaction that was tried.
    done: dict[int, DoneStep] = field(default_factory=dict)
    chosen: int | None = None

    def choose(self) -> bool:
        """Chooses the transaction that goes first in the next order; returns False when none is left."""
        self.chosen = min(self.wanted - self.done.keys() - self.sleep.keys(), default=None)
        return self.chosen is not None


@dataclass
class Explored:
    """Numbers of orders."""

    run: int = 0  # to their end
    cut_short: int = 0  # begun, and found equivalent to an earlier one
    possible: int = 0  # of as many steps as the first order had

    def __str__(self) -> str:
        equivalent = max(0, self.possible - self.run)
        return f"{self.run} orders run, {self.cut_short} cut short, {equivalent:,} equivalent to one of them"


class NotRepeatable(AssertionError):
    """Equal choices led to other steps: the transactions depend on more than their order."""


def explore(system: System, check: Callable[[Sequence[DoneStep]], None], *, reduced: bool = True) -> Explored:
    """Runs the orders of `system`, and calls `check` with the steps of each that came to its end.

    Without `reduced` every order is run. Raises AssertionError for more than ORDERS_MAX.
    """
    explored, path = Explored(), list[Node]()
    while True:
        steps = _run(system, path, reduced=reduced)
        if system.enabled():
            explored.cut_short += 1
            system.abandon()
        else:
            explored.run += 1
            explored.possible = explored.possible or possible_orders(steps)
            check(steps)
        assert explored.run + explored.cut_short <= ORDERS_MAX, f"more than {ORDERS_MAX} orders"
        if reduced:
            _want_reversed_races(path, steps)
        while path and not path[-1].choose():
            path.pop()
        if not path:
            return explored


def sample(system: System, check: Callable[[Sequence[DoneStep]], None], count: int) -> Explored:
    """Runs `count` orders, each step of which is drawn from those that are possible; the same ones each time.

    Calls `check` with the steps of each.
    """
    explored, random = Explored(), Random(count)
    for _ in range(count):
        system.begin()
        steps: list[DoneStep] = []
        while enabled := system.enabled():
            steps.append(system.step(random.choice(sorted(enabled))))
        explored.run += 1
        explored.possible = explored.possible or possible_orders(steps)
        check(steps)
    return explored


def replay(system: System, actors: Iterable[int]) -> list[DoneStep]:
    """Runs one order, given as the transaction of each step; what it leaves out is done in turn."""
    system.begin()
    steps = [system.step(actor) for actor in actors]
    while enabled := system.enabled():
        steps.append(system.step(min(enabled)))
    return steps


def possible_orders(steps: Sequence[DoneStep]) -> int:
    """Returns in how many orders these steps could be done, if none of them waited."""
    by_actor = Counter(step.actor for step in steps)
    return factorial(len(steps)) // prod(map(factorial, by_actor.values()))


def _run(system: System, path: list[Node], *, reduced: bool) -> list[DoneStep]:
    """Runs one order: by the choices in `path`, then by new ones, which are added to it."""
    system.begin()
    steps: list[DoneStep] = []
    while enabled := system.enabled():
        if len(steps) == len(path):
            sleep = _sleep_after(path[-1]) if path and reduced else {}
            free = enabled - sleep.keys()
            path.append(Node(enabled, sleep, {min(free)} if reduced and free else set(free)))
            if not path[-1].choose():
                break
        node = path[len(steps)]
        if node.enabled != enabled or node.chosen is None:
            raise NotRepeatable(f"step {len(steps)}: {sorted(enabled)} are free, not {sorted(node.enabled)}")
        step = system.step(node.chosen)
        before = node.done.setdefault(node.chosen, step)
        if before.label != step.label:
            raise NotRepeatable(f"step {len(steps)}: {step.label}, not {before.label}")
        steps.append(step)
    for number, footprint in system.revised.items():
        step = steps[number] = steps[number]._replace(footprint=footprint)
        path[number].done[step.actor] = step
    return steps


def _sleep_after(node: Node) -> dict[int, Footprint]:
    """Returns the transactions that need not go first behind the step that `node` has chosen."""
    if node.chosen is None:
        return {}
    chosen = node.done[node.chosen]
    asleep = node.sleep | {actor: step.whole for actor, step in node.done.items()}
    return {
        actor: footprint
        for actor, footprint in asleep.items()
        if actor != chosen.actor and not are_dependent(footprint, chosen.whole)
    }


def _want_reversed_races(path: Sequence[Node], steps: Sequence[DoneStep]) -> None:
    """Adds to `path` an order in which each pair of steps that raced in `steps` is reversed.

    Two steps race when one happens before the other, and nothing else happens between them.
    """
    parts = [
        Part(actor, footprint, at)
        for at, step in enumerate(steps)
        for actor, footprint in ((step.actor, step.footprint), *step.woken)
    ]
    before: list[int] = []  # of each part the parts that happen before it, as bits
    for late, part in enumerate(parts):
        before.append(0)
        for early in range(late - 1, -1, -1):
            if before[late] >> early & 1:
                continue
            other = parts[early]
            # A statement continues behind the commit that it has waited for, and nothing can come between.
            is_forced = part.actor == other.actor or part.at == other.at
            if not is_forced and not are_dependent(part.footprint, other.footprint):
                continue
            if not is_forced:
                _want_first(path[other.at], _first_without(other.at, late, parts, before))
            before[late] |= before[early] | 1 << early


def _first_without(at: int, late: int, parts: Sequence[Part], before: Sequence[int]) -> set[int]:
    """Returns the transactions that can go first where the part `late` comes instead of the step `at`."""
    begin = next(number for number, part in enumerate(parts) if part.at == at)
    first: set[int] = set()
    seen = 0
    for number in (*range(begin + 1, late), late):
        if parts[number].at == at or (number != late and before[number] >> begin & 1):
            continue  # happens behind the step
        if not before[number] & seen:
            first.add(parts[number].actor)
        seen |= 1 << number
    return first


def _want_first(node: Node, first: set[int]) -> None:
    if not first & (node.wanted | node.sleep.keys()):
        node.wanted |= {min(first & node.enabled)} if first & node.enabled else node.enabled
