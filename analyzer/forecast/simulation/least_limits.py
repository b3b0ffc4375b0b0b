"""Policies with another limit, and the least limit that any series has."""

from __future__ import annotations

from collections.abc import Iterable

from analyzer.judging.kinds import policy_kind
from analyzer.plan.policies import Policy, limits_by_plan, limits_by_route, with_limit
from analyzer.plan.sums import NEVER


def least_threshold(policy: Policy, overridden: Iterable[int] = ()) -> int:
    """Returns the least value at which the policy must be judged for any series.

    `overridden` are the limits of series with an override.

    >>> from analyzer.plan.policies import Quota
    >>> from analyzer.plan.windows import Calendar
    >>> least_threshold(Quota("daily", 1_000, Calendar("day"), notify=(800,)), [5_000])
    800
    >>> least_threshold(Quota("daily", 1_000, Calendar("day"), plan_limits=(("free", 100),)), [50])
    50
    """
    limits = [
        policy.limit,
        *overridden,
        *limits_by_plan(policy).values(),
        *dict(limits_by_route(policy)).values(),
    ]
    kind = policy_kind(policy)
    return min(next(iter(kind.thresholds(with_limit(policy, limit))), NEVER) for limit in limits)
