"""Runs the orders of named transactions in a world, and checks each."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from analyzer.counting.gaps import NoSuchGap
from analyzer.kernel.errors import ClosingLost, DeliveryLost, PartitionLost, PlanChanged
from tests.interleavings import invariants
from tests.interleavings.actors import TransactionFunction, Transactions
from tests.interleavings.explorer import DoneStep, Explored, explore, replay, sample
from tests.interleavings.transactions import TRANSACTIONS
from tests.interleavings.worlds import Counted, State, World
from tests.support.upkeep import Upkeep

DECLARED = (
    ClosingLost,
    DeliveryLost,
    PartitionLost,
    PlanChanged,
    NoSuchGap,
)  # errors of which the code says that they may come
REPLAY = "INTERLEAVING"  # environment variable with one order to run
LATER = "later"  # name and mark of what is done when all transactions have ended


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
        more: Mapping[str, TransactionFunction] | None = None,
        see: Callable[[State, Mapping[str, object]], None] = lambda _state, _outcomes: None,
    ) -> None:
        """`more` are transactions besides TRANSACTIONS; `see` is called with the outcome of each order."""
        known = {**TRANSACTIONS, **(more or {})}
        self._transactions = transactions
        self._world = world
        self._staged = {
            f"{name}{'' if n == names.index(name) else n}": known[name] for n, name in enumerate(names)
        }
        self._see = see
        transactions.stage(self._staged, self._reset)

    def explore(self, *, reduced: bool = True) -> Explored:
        """Runs all orders. Raises OrderFailed."""
        if order := os.environ.get(REPLAY):
            self._check(replay(self._transactions, map(int, order)))
            return Explored(run=1)
        return explore(self._transactions, self._check, reduced=reduced)

    def sample(self, count: int) -> Explored:
        """Runs so many orders, drawn at random. Raises OrderFailed."""
        if REPLAY in os.environ:
            return self.explore()
        return sample(self._transactions, self._check, count)

    def run(self, *script: tuple[str, str | None]) -> list[str]:
        """Runs one order, and returns its steps: each named transaction until it is ready for a step whose
        label begins so, or with None until it ends or waits; then the rest in turn. Raises OrderFailed.
        """
        system, names = self._transactions, list(self._staged)
        system.begin()
        steps: list[DoneStep] = []
        for name, until in script:
            actor = names.index(name)
            while (label := system.next_label(actor)) and not (until and label.startswith(until)):
                steps.append(system.step(actor))
            assert label or until is None, f"{name} never came to {until}"
        while enabled := system.enabled():
            steps.append(system.step(min(enabled)))
        self._check(steps)
        return [step.label for step in steps]

    def _reset(self) -> None:
        self._world.changed(self._transactions.written)
        self._world.reset()

    def _check(self, steps: Sequence[DoneStep]) -> None:
        try:
            state = self._read()
            self._check_at_once(state)
            committed = list(self._transactions.committed)
            if invariants.has_pending_steps(state):
                committed += self._finish_activation()
                state = self._read()
            if invariants.has_waiting(state, self._world.clock.now_ms):
                committed += self._judge_waiting()
                state = self._read()
            if invariants.has_braked(state):
                committed += self._turn_to_shadow()
                state = self._read()
            self._check_at_end(state, committed)
        except AssertionError as wrong:
            order = "".join(str(step.actor) for step in steps)
            listed = "\n".join(f"  {number:2} {step.label}" for number, step in enumerate(steps))
            outcomes = self._transactions.outcomes
            raise OrderFailed(f"{wrong}\nafter {REPLAY}={order}\n{listed}\n  {outcomes}") from wrong
        self._see(state, self._transactions.outcomes)

    def _read(self) -> State:
        return invariants.named_again(self._world.read(), self._transactions.outcomes)

    def _check_at_once(self, state: State) -> None:
        """Checks what holds also while steps of an activation are left."""
        for name, outcome in self._transactions.outcomes.items():
            if isinstance(outcome, Exception) and not isinstance(outcome, DECLARED):
                raise UndeclaredError(f"{name} failed: {outcome!r}") from outcome
        invariants.check_counts(self._world, state, self._counted())
        invariants.check_facts(state)
        invariants.check_days(state)
        invariants.check_jobs(state, self._transactions.outcomes)
        invariants.check_totals(state, self._world.clock.now_ms)
        is_unchanged = self._world.plan == invariants.plan_in_force(state)
        if is_unchanged and not state["overrides"] and not invariants.has_pending_steps(state):
            invariants.check_set_once(self._world, state)

    def _finish_activation(self) -> list[str]:
        """Does the steps of an activation that are left; returns the name of each that was committed."""
        upkeep = Upkeep(self._world.engine, lambda: LATER)
        committed = []
        while upkeep.continue_activation():
            committed.append(LATER)
        self._world.changed(self._world.tables)
        return committed

    def _turn_to_shadow(self) -> list[str]:
        """Turns locks of braked policies to shadow; returns the name of each transaction that did."""
        upkeep = Upkeep(self._world.engine, lambda: LATER)
        committed = []
        while done := upkeep.apply_brakes():
            committed += [LATER] if done.judged.changes else []
        self._world.changed(self._world.tables)
        return committed

    def _judge_waiting(self) -> list[str]:
        """Judges what waits for the warden; returns the name of each judgement that changed a lock."""
        upkeep = Upkeep(self._world.engine, lambda: LATER)
        committed = []
        while judged := upkeep.judge_waiting():
            committed += [LATER] if judged.judged.changes else []
        self._world.changed(self._world.tables)
        return committed

    def _check_at_end(self, state: State, committed: Sequence[str]) -> None:
        """Checks what holds when no step of an activation is left."""
        now_ms = self._world.clock.now_ms
        invariants.check_totals(state, now_ms)
        invariants.check_locks(self._world, state, self._counted(), now_ms)
        invariants.check_brakes(state)
        invariants.check_polls(self._world, state, self._transactions.outcomes)
        invariants.check_feed(self._world, state, committed)

    def _counted(self) -> list[Counted]:
        """Returns what flushes and retries have counted, in the order of their last commits."""
        outcomes = self._transactions.outcomes
        last = {name: number for number, name in enumerate(self._transactions.committed)}
        found = {name: one for name, one in outcomes.items() if isinstance(one, Counted)}
        return [found[name] for name in sorted(found, key=lambda name: last[name])]
