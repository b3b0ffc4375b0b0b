"""One policy, simulated beside the policy of its name that is in force, and beside what that has locked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.forecast.simulation.policy_locks import PolicyLocks
from analyzer.forecast.simulation.policy_simulation import (
    KnownLocks,
    NotSimulated,
    Progress,
    Simulation,
    known_locks,
    simulate,
)
from analyzer.judging.kinds import policy_kind
from analyzer.plan.meters import Meter
from analyzer.plan.plan import Plan, meaning_digest
from analyzer.plan.policies import Policy, base_name


class PolicyComparison(NamedTuple):
    """A policy on the stored counts.

    Attributes:
        policy: The policy that is simulated.
        present: The policy of its name that is in force; None without one.
        refusal: Why it cannot be simulated; "" if it can.
        simulation: What was counted, and in which time; None if it cannot be simulated.
        proposed: The locks that it would have set.
        before: The locks that the present policy would have set, by the same counts; None without one, or if
            that cannot be simulated.
        in_force: The locks that the present policy has set, those in shadow among them.
    """

    policy: Policy
    present: Policy | None
    refusal: str = ""
    simulation: Simulation | None = None
    proposed: PolicyLocks | None = None
    before: PolicyLocks | None = None
    in_force: KnownLocks | None = None


def compare(
    engine: sa.Engine,
    policy: Policy,
    meters: Sequence[Meter],
    plan: Plan | None,
    from_s: int,
    progress: Progress,
) -> PolicyComparison:
    """Returns a policy on the counts since `from_s`, and the one of its name in `plan`, which is in force.

    `meters` are those of the file with the policy. Raises StoreAway.
    """
    present = None if plan is None else plan.policy(base_name(policy.name))
    try:
        _require_equal_meter(policy, meters, plan)
        together = [policy] if present is None else [policy, present]
        if present is not None and policy_kind(present).judged_sum(present) != policy_kind(policy).judged_sum(
            policy
        ):
            together = [policy]
        simulation = simulate(engine, together, from_s, progress)
    except NotSimulated as refused:
        return PolicyComparison(policy, present, str(refused))
    comparison = PolicyComparison(policy, present, "", simulation, simulation.of[policy])
    if present is None:
        return comparison
    present_locks = simulation.of.get(present)
    if present_locks is None:
        try:
            present_locks = simulate(engine, [present], simulation.span.from_s, progress).of[present]
        except NotSimulated:  # only what it has locked is known
            present_locks = None
    in_force = known_locks(engine, present, simulation.span.from_s)
    return comparison._replace(before=present_locks, in_force=in_force)


def _require_equal_meter(policy: Policy, meters: Sequence[Meter], plan: Plan | None) -> None:
    """Raises NotSimulated if the policy's meter is not the one that was counted under its name."""
    proposed = {meter.name: meaning_digest(meter) for meter in meters}
    counted = {} if plan is None else {meter.name: meaning_digest(meter) for meter in plan.meters}
    name = policy.meter
    if name in proposed and name in counted and proposed[name] != counted[name]:
        raise NotSimulated(f"its meter {name} is not the one that was counted under this name")
