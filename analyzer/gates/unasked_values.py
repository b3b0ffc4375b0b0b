"""Policies by named values that gates are not asked by: such a gate admits what the policy would deny."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from analyzer.gates.gate_health import GateHealth
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.plan import Plan
from analyzer.plan.policies import Policy


class UnaskedValue(NamedTuple):
    """A policy in force by a named value, and the living gates that do not take this value.

    Attributes:
        policy: The name of the policy.
        value: The named value.
        gates: Application and instance of each of these gates.
        others: How many living gates take it.
    """

    policy: str
    value: str
    gates: tuple[str, ...]
    others: int

    @property
    def sentence(self) -> str:
        first, *more = self.gates
        which = f"{first} and {len(more)} more do" if more else f"{first} does"
        none = "" if self.others else ", and no other gate does"
        return f"{self.policy} cannot be enforced: {which} not take the named value {self.value}{none}"

    @property
    def cure(self) -> str:
        return (
            f'write Gate(..., values=["{self.value}"]) there and pass {self.value} to its checks; until then '
            f'write mode = "shadow" in {self.policy}'
        )

    @property
    def text(self) -> str:
        """The sentence with its cure."""
        return f"{self.sentence}; {self.cure}"


def unasked_values(policies: Iterable[Policy], gates: Iterable[GateHealth]) -> list[UnaskedValue]:
    """Returns the policies in force that some of the living gates cannot enforce."""
    living = [gate.status for gate in gates if gate.is_alive]
    unasked = []
    for policy in policies:
        value = parse_grouping(policy.per).named_value
        if not value or not _sets_locks(policy):
            continue
        lacking = [status for status in living if value not in status.values]
        if lacking:
            names = tuple(f"{status.application} {status.instance}".strip() for status in lacking)
            unasked.append(UnaskedValue(policy.name, value, names, len(living) - len(lacking)))
    return unasked


def newly_unasked(in_force: Plan | None, plan: Plan, gates: Iterable[GateHealth]) -> list[UnaskedValue]:
    """Returns those that `plan` enforces and the plan in force does not: what an activation refuses."""
    before = {policy.name for policy in (in_force or Plan()).policies if _sets_locks(policy)}
    return unasked_values((policy for policy in plan.policies if policy.name not in before), gates)


def _sets_locks(policy: Policy) -> bool:
    return not policy.is_shadow and policy.action != "notify"
