"""Runs the orders of named transactions in a world, and checks each."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from analyzer.errors import PartitionLost, PlanChanged
from analyzer.store.operations.upkeep import SqlUpkeep
from analyzer.store.transaction.gaps import NoSuchGap
from tests.interleavings import invariants
from tests.interleavings.actors import Act, Transactions
from tests.interleavings.explorer import Event, Explored, explore, replay
from tests.interleavings.transactions import TRANSACTIONS
from tests.interleavings.worlds import Counted, State, World

DECLARED = (PartitionLost, PlanChanged, NoSuchGap)  # errors of which the code says that they may come
REPLAY = "INTERLEAVING"  # environment variable with one order to run


class UndeclaredError(AssertionError):
    """A transaction has raised an error of which the code does not say that it may come."""


class OrderFailed(AssertionError):
    """An order after which something does not hold; the message has its steps, and how to run it again."""


class Orders:
    """The orders of some transactions in a world."""

    def __init__(
        self,
        transactions: Transactions,
        world: World,
        names: Sequence[str],
        more: Mapping[str, Act] | None = None,
        see: Callable[[State, Mapping[str, object]], None] = lambda _state, _outcomes: None,
    ) -> None:
        """`more` are transactions besides TRANSACTIONS; `see` is called with the outcome of each order."""
        acts = {**TRANSACTIONS, **(more or {})}
        self._transactions = transactions
        self._world = world
        self._acts = {
            f"{name}{'' if n == names.index(name) else n}": acts[name] for n, name in enumerate(names)
        }
        self._see = see
        transactions.stage(self._acts, self._reset)

    def explore(self, *, reduced: bool = True, most: int = 10_000) -> Explored:
        """Runs all orders. Raises OrderFailed."""
        if order := os.environ.get(REPLAY):
            self._check(replay(self._transactions, map(int, order)))
            return Explored(run=1)
        return explore(self._transactions, self._check, reduced=reduced, most=most)

    def run(self, *script: tuple[str, str | None]) -> list[str]:
        """Runs one order, and returns its steps: each named transaction until it is ready for a step whose
        label begins so, or with None until it ends or waits; then the rest in turn. Raises OrderFailed.
        """
        system, names = self._transactions, list(self._acts)
        system.begin()
        events: list[Event] = []
        for name, until in script:
            actor = names.index(name)
            while (label := system.next_label(actor)) and not (until and label.startswith(until)):
                events.append(system.step(actor))
            assert label or until is None, f"{name} never came to {until}"
        while enabled := system.enabled():
            events.append(system.step(min(enabled)))
        self._check(events)
        return [event.label for event in events]

    def _reset(self) -> None:
        self._world.changed(self._transactions.written)
        self._world.reset()

    def _check(self, events: Sequence[Event]) -> None:
        try:
            state = self._checked_state()
        except AssertionError as wrong:
            order = "".join(str(event.actor) for event in events)
            steps = "\n".join(f"  {number:2} {event.label}" for number, event in enumerate(events))
            outcomes = self._transactions.outcomes
            raise OrderFailed(f"{wrong}\nafter {REPLAY}={order}\n{steps}\n  {outcomes}") from wrong
        self._see(state, self._transactions.outcomes)

    def _checked_state(self) -> State:
        world, outcomes = self._world, self._transactions.outcomes
        for name, outcome in outcomes.items():
            if isinstance(outcome, Exception) and not isinstance(outcome, DECLARED):
                raise UndeclaredError(f"{name} failed: {outcome!r}") from outcome
        committed = list(self._transactions.committed)
        last = {name: number for number, name in enumerate(committed)}
        found = {name: one for name, one in outcomes.items() if isinstance(one, Counted)}
        counted = [found[name] for name in sorted(found, key=lambda name: last[name])]
        state = world.read()
        now_ms = world.clock.now_ms
        invariants.check_counts(world, state, counted)
        invariants.check_totals(state, now_ms)
        if invariants.has_pending_steps(state):
            upkeep = SqlUpkeep(world.engine, "later", lambda: "later")
            while upkeep.continue_activation():
                pass
            committed += ["later"] * 10
            world.changed(world.tables)
            state = world.read()
            invariants.check_totals(state, now_ms)
        elif world.plan == invariants.plan_in_force(state):
            invariants.check_set_once(world, state)
        invariants.check_locks(world, state, counted, now_ms)
        invariants.check_polls(world, state, outcomes)
        invariants.check_feed(world, state, committed)
        return state
