"""The locks that policies raise: their keys, their values, and what their action does in words."""

from __future__ import annotations

from datetime import datetime

from analyzer.judging.totals import TotalKey
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.meter_units import amount_text, with_noun
from analyzer.plan.meters import DAY_S, JOINS
from analyzer.plan.policies import SHADOW, Policy, limits_by_plan, limits_by_route
from gatekeeper.model import Lock, LockKey

SHARED_SCOPES = ("resource", "everyone", "value")  # of locks on requests of any client


def lock_key(policy: Policy, total: TotalKey) -> LockKey:
    """Returns the key of a policy's lock on the series of a total."""
    return LockKey(parse_grouping(policy.per).lock_scope, total.key, total.resource, policy.name)


def earned_lock(
    policy: Policy, total: TotalKey, *, kind: str, reason: str, detail: str, began: datetime, until: datetime
) -> Lock:
    """Returns a lock on the series of a total, with the effect that the policy gives to its locks.

    No gate gets one with the action "notify" or "shadow".
    """
    return Lock(
        **lock_key(policy, total)._asdict(),
        began=began,
        until=until,
        kind=kind,
        action=SHADOW if policy.is_shadow else policy.action,
        status=policy.status,
        reason=reason,
        detail=detail,
        on_stale=policy.on_stale,
        slow=policy.slow,
    )


def counted_text(policy: Policy, used: int) -> str:
    """Returns what a series has used, in words. Distinct values are not counted far beyond the limit."""
    beyond = not JOINS[policy.meter_join].in_buckets and used > policy.limit
    return f"{'at least ' if beyond else ''}{amount_text(used, policy.meter_unit)} counted"


def duration_text(seconds: int) -> str:
    """Returns whole seconds as text: "5m", "7d"."""
    if seconds > DAY_S and seconds % DAY_S == 0:
        return f"{seconds // DAY_S}d"
    return amount_text(seconds * 10**6, "duration")


def is_of_all_clients(policy: Policy) -> bool:
    """Whether its locks refuse any client: none of them learns how much all together used."""
    return parse_grouping(policy.per).scope in SHARED_SCOPES


def limits_text(policy: Policy) -> str:
    """Returns the limit of a policy, and those of callers with a plan.

    >>> from analyzer.plan.meter_units import UNLIMITED
    >>> from analyzer.plan.policies import Quota
    >>> from analyzer.plan.windows import Calendar
    >>> limits_text(Quota("daily", 9, Calendar("day"), plan_limits=(("free", 0), ("pro", UNLIMITED))))
    '9 requests (none for the plan free, unlimited for the plan pro)'
    >>> limits_text(Quota("trial", UNLIMITED, Calendar("day"), plan_limits=(("free", 100),)))
    'unlimited requests (100 for the plan free)'
    """
    others = [
        *((f"for the plan {plan}", limit) for plan, limit in limits_by_plan(policy).items()),
        *((f"on {glob}", limit) for glob, limit in limits_by_route(policy)),
    ]
    stated = with_noun(policy.limit, policy.meter_unit, policy.meter)
    shown = (
        f"{amount_text(limit, policy.meter_unit) if limit else 'none'} {series}" for series, limit in others
    )
    return f"{stated} ({', '.join(shown)})" if others else stated


def effect(policy: Policy, ends: str) -> str:
    """Returns what locks of a policy do, for `gatelock check`; `ends` says how long: "until it ends"."""
    does = _enforced_effect(policy, ends)
    return f"in shadow: {does}, if it were enforced" if policy.is_shadow else does


def _enforced_effect(policy: Policy, ends: str) -> str:
    if policy.action == "notify":
        return "a notice, and no lock"
    if policy.action == "tag":
        return f"the application is notified {ends}"
    if policy.slow is not None:
        rate = f"{policy.slow.limit:,} in {policy.slow.period:g} s"
        return f"{rate} through each process, and {policy.status} for the rest, {ends}"
    return f"{policy.status} {ends}"
