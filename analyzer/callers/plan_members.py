"""The numbers of known callers and tenants by their plan, and so by the limits of a policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.judging.sql.directory import HELD
from analyzer.kernel.database.engine import slow_reading
from analyzer.kernel.sentences import plural
from analyzer.kernel.tables.schema import callers
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.mapping import TENANT
from analyzer.plan.meter_units import amount_text
from analyzer.plan.policies import Policy, limits_by_plan

Members = Mapping[str, Mapping[str, int]]  # the number of names by scope and plan


class PlanMembers(NamedTuple):
    """The members of one plan that a policy names, or of all others."""

    plan: str  # "": of none, or of one that the policy does not name
    limit: int
    known: int


def members_by_plan(engine: sa.Engine) -> Members:
    """Returns how many known callers and tenants have each plan; callers without one have their tenant's.

    Reads all that are known. Raises StoreAway.
    """
    is_tenant = callers.c.caller.startswith(TENANT, autoescape=True)
    plan, tenant = (HELD[name].element for name in ("plan", "tenant"))
    own = sa.select(plan.label("plan")).where(is_tenant).subquery()
    tenants = sa.select(callers.c.caller.label("name"), plan.label("plan")).where(is_tenant).subquery()
    held = sa.func.coalesce(sa.func.nullif(plan, ""), tenants.c.plan, "").label("plan")
    of_tenant = tenants.c.name == TENANT + tenant
    inherited = sa.select(held).select_from(callers.outerjoin(tenants, of_tenant)).where(sa.not_(is_tenant))
    plans = {"tenant": own, "caller": inherited.subquery()}
    with slow_reading(engine) as db:
        return {
            scope: {
                row.plan: row.number
                for row in db.execute(
                    sa.select(held.c.plan, sa.func.count().label("number")).group_by(held.c.plan)
                )
            }
            for scope, held in plans.items()
        }


def policy_members(policy: Policy, members: Members) -> list[PlanMembers]:
    """Returns who has which limit of a policy; nothing of one with one limit for all."""
    limits = limits_by_plan(policy)
    numbers = members.get(parse_grouping(policy.per).scope, {})
    if not limits:
        return []
    rows = [PlanMembers(plan, limit, numbers.get(plan, 0)) for plan, limit in limits.items()]
    unnamed = sum(number for plan, number in numbers.items() if plan not in limits)
    return [*rows, PlanMembers("", policy.limit, unnamed)]


def members_text(policy: Policy, members: Members) -> str:
    """Returns that as a sentence: "daily: free (100): 3 callers, others (10): 0 callers"."""
    scope = parse_grouping(policy.per).scope
    parts = (
        f"{row.plan or 'others'} ({amount_text(row.limit, policy.meter_unit)}): {plural(row.known, scope)}"
        for row in policy_members(policy, members)
    )
    return f"{policy.name}: {', '.join(parts)}"
