"""Policies in force, and the plans that came in force."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from analyzer.judging.kinds import policy_kind
from analyzer.judging.locks.lock_outcomes import PolicyOutcome, outcomes_by_policy
from analyzer.judging.sql.braked_policies import brake_texts
from analyzer.judging.sql.plans import plan_in_force
from analyzer.kernel.database.audit_log import PLAN_IN_FORCE, entries
from analyzer.kernel.database.engine import Engine
from analyzer.plan.plan import Plan
from analyzer.plan.policies import Policy
from gatekeeper.feed.feed_json import time_text

HISTORY_COLUMNS = ("at", "plan", "who", "difference")


def listed_policies(engine: Engine) -> list[dict[str, object]]:
    """Returns the policies in force, in the order of the plan. Raises StoreAway, SchemaBehind."""
    plan, brakes = plan_in_force(engine) or Plan(), brake_texts(engine)
    return [policy_fields(policy, policy_kind(policy).describe(policy), brakes) for policy in plan.policies]


def stated_policy(policy: Policy) -> dict[str, object]:
    """Returns a policy that is not in force, as `listed_policies` has those that are."""
    return policy_fields(policy, policy_kind(policy).describe(policy), {})


def shown_policies(engine: Engine, policies: Sequence[Policy], since_s: int) -> list[dict[str, object]]:
    """Returns these policies with what each has done since `since_s`. Raises StoreAway, SchemaBehind."""
    outcomes = outcomes_by_policy(engine, since_s * 1000, [policy.name for policy in policies])
    brakes = brake_texts(engine)
    return [
        policy_fields(policy, policy_kind(policy).describe(policy), brakes)
        | {"outcomes": [_outcome_fields(outcome) for outcome in outcomes if outcome.policy == policy.name]}
        for policy in policies
    ]


def plan_history(engine: Engine) -> Iterator[tuple[str, str, str, str]]:
    """Yields time, plan, name and difference of each plan that came in force, the latest first.

    Raises StoreAway.
    """
    for entry in entries(engine):
        if entry.act == PLAN_IN_FORCE:
            yield time_text(entry.at), entry.about, entry.who, entry.why


def _outcome_fields(outcome: PolicyOutcome) -> dict[str, object]:
    return {name: value for name, value in outcome._asdict().items() if name != "policy"}


def policy_fields(policy: Policy, description: str, brakes: Mapping[str, str]) -> dict[str, object]:
    return {
        "name": policy.name,
        "kind": policy.kind,
        "mode": "shadow" if policy.is_shadow else "enforce",
        "brake": brakes.get(policy.name),
        "per": policy.per,
        "meter": policy.meter,
        "what": description,
    }
