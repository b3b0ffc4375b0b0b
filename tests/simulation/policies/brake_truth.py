"""The truth about brakes: how many series a policy has begun to lock in each interval, and in shadow or not.

A policy that an operator has released gets its locks back in that transaction, however many they are, and its
brake does not put it in shadow again. Only policies that state a bound of callers are checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from analyzer.plan.plan import Plan
from analyzer.plan.policies import SHADOW, Brake, Policy
from gatekeeper.model import LockKey
from tests.simulation.database import SimulatedDatabase
from tests.simulation.policies.commits import Wrong

BRAKES = "select policy, interval_ms, braked_ms from brakes"
LOCKS = "select scope, key, resource, policy, action from locks where until_ms > ?"


@dataclass
class BrakeTruthState:
    """Goes back with the database when a dump is restored."""

    begun: Counter[tuple[str, int]] = field(default_factory=Counter)  # locks, by policy and interval
    enforced: frozenset[LockKey] = frozenset()  # after the last commit
    in_shadow: frozenset[LockKey] = frozenset()
    braked: dict[str, int] = field(default_factory=dict)  # since when, by policy
    released: dict[str, Policy] = field(default_factory=dict)  # as they were released, by name


class BrakeTruth:
    """Compares brakes and locks after each commit. Raises Wrong."""

    def __init__(self, database: SimulatedDatabase) -> None:
        self.state = BrakeTruthState()
        self._database = database
        self._releasing = ""

    @contextmanager
    def releasing(self, policy: str) -> Iterator[None]:
        """Commits within are of an operator who releases the policy."""
        self._releasing = policy
        try:
            yield
        finally:
            self._releasing = ""

    def check(self, plan: Plan, reached: Mapping[str, int], *, is_clock_believed: bool) -> None:
        """Checks the locks that have begun; `reached` has the number of series at the limit, by policy."""
        bounds = {
            policy.name: policy.brake
            for policy in plan.policies
            if isinstance(policy.brake, Brake) and policy.brake.callers
        }
        state, now_ms = self.state, round(self._database.clock_s() * 1000)
        if not bounds:
            state.enforced, state.in_shadow, state.braked = frozenset(), frozenset(), {}
            return
        rows = {policy: times for policy, *times in self._database.read(BRAKES)}
        found = {LockKey(*row[:4]): row[4] for row in self._database.read(LOCKS, now_ms) if row[3] in bounds}
        enforced = frozenset(at for at, action in found.items() if action != SHADOW)
        new = enforced - state.enforced
        if self._releasing in state.braked:
            new -= state.in_shadow
        before, state.enforced, state.in_shadow = state.braked, enforced, frozenset(found.keys() - enforced)
        state.braked = {policy: rows[policy][1] for policy in bounds if policy in rows and rows[policy][1]}
        self._note_releases(plan, before)
        if not is_clock_believed:
            return
        for at in new:
            if at.policy in state.braked and at.policy in before:
                raise Wrong(f"{at}: enforced, and the brake holds its policy")
            state.begun[at.policy, rows[at.policy][0]] += 1
        for (policy, interval_ms), locks in state.begun.items():
            if policy in bounds and locks > bounds[policy].callers:
                raise Wrong(f"policy {policy} began {locks} locks from {interval_ms} on: {bounds[policy]}")
        for policy in state.braked.keys() - before.keys():
            if reached.get(policy, 0) <= bounds[policy].callers:
                raise Wrong(f"policy {policy} is braked, and {reached.get(policy, 0)} series are over")

    def _note_releases(self, plan: Plan, before: Mapping[str, int]) -> None:
        """Notes a policy that this commit has released; one that changes is young again."""
        state = self.state
        released = {name: was for name, was in state.released.items() if plan.policy(name) == was}
        policy = plan.policy(self._releasing)
        if policy is not None and policy.name in before.keys() - state.braked.keys():
            released[policy.name] = policy
        state.released = released
        if again := released.keys() & state.braked.keys():
            raise Wrong(f"policy {min(again)} is braked again, and was released")

    def unfinished(self) -> str:
        """Returns a lock that its brake must have turned to shadow; "" if there is none."""
        for at in self.state.enforced:
            since_ms = self.state.braked.get(at.policy)
            if since_ms is not None:
                return f"{at}: enforced, and the brake holds its policy since {since_ms}"
        return ""

    def actions(self, policy: str, stated: str) -> set[str]:
        """Returns the actions that locks of a policy may have."""
        return {stated, SHADOW} if policy in self.state.braked else {stated}
