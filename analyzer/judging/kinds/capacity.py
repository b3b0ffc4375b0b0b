"""The policy kind `share` with a capacity: a resource with too much load, and the callers that explain it.

While the load of a whole is above its capacity, the smallest number of series is locked without which the
rest is at or below it: the heaviest first, of equal ones the first by name. Only series above the floor are
chosen. The load of those that are locked already is left out, however much of it the window still holds.

See `compared` for what it has in common with the other policies about noisy neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from analyzer.judging.circumstances import Blamed, Circumstances
from analyzer.judging.kinds.compared import (
    MILLION,
    ComparisonRule,
    LoadFinding,
    judge_compared,
    percent,
    series_load,
    series_noun,
    series_plural,
    whole_load,
    within_span,
)
from analyzer.judging.kinds.earned_locks import duration_text, effect, lock_key
from analyzer.judging.kinds.quota import as_phrase
from analyzer.judging.totals import Standing, TotalKey
from analyzer.plan.groupings import BY_RESOURCE, parse_grouping
from analyzer.plan.meter_units import amount_text, with_noun
from analyzer.plan.policies import CapacityShare
from gatekeeper.model import Lock, LockKey


def resource_capacity(policy: CapacityShare, resource: str) -> int:
    """Returns the capacity of a resource in a window; 0 for one that has none."""
    return dict(policy.capacities).get(resource, policy.limit)


def overloads(
    policy: CapacityShare,
    standings: Sequence[Standing],
    locks: Mapping[LockKey, Lock],
    context: Circumstances,
) -> dict[str, Blamed]:
    """Returns by resource which series explain what it has beyond its capacity; "" where all are one whole.

    `standings` are all series that may be above the floor; a resource at or below its capacity is left out.
    """
    by_resource: dict[str, list[Standing]] = {}
    for standing in standings:
        by_resource.setdefault(standing.total.resource, []).append(standing)
    blamed: dict[str, Blamed] = {}
    for resource, series in by_resource.items():
        capacity = resource_capacity(policy, resource)
        excess = whole_load(series[0], policy, context) - within_span(capacity, policy, context)
        loads: dict[TotalKey, int] = {}
        for standing in series:
            load = series_load(standing, policy, context)
            lock = locks.get(lock_key(policy, standing.total))
            if lock is not None and lock.until > context.now:
                excess -= load
            elif load >= policy.floor:
                loads[standing.total] = load
        if capacity and excess > 0:
            blamed[resource] = frozenset(smallest_set(loads, excess))
    return blamed


def smallest_set(loads: Mapping[TotalKey, int], excess: int) -> Iterator[TotalKey]:
    """Yields the smallest number of series that together have at least `excess`; all if they have less.

    Of sets of equal size that of the heaviest series, of equal series the first by name.
    """
    for total in sorted(loads, key=lambda total: (-loads[total], total.key)):
        if excess <= 0:
            return
        excess -= loads[total]
        yield total


def find(policy: CapacityShare, standing: Standing, context: Circumstances) -> LoadFinding:
    """Returns whether the whole has too much, whether the series is to blame, and whether a lock must end."""
    resource = standing.total.resource
    capacity = resource_capacity(policy, resource)
    blamed = context.overloads.get((policy.name, resource))
    most = within_span(capacity, policy, context)
    released = not capacity or whole_load(standing, policy, context) * MILLION < policy.release * most
    if blamed is None:
        return LoadFinding(is_over=False, is_released=released)
    return LoadFinding(True, released, is_to_blame=standing.total in blamed)


def amounts(policy: CapacityShare, standing: Standing, context: Circumstances) -> tuple[int, int]:
    """Returns what a series has in the window that ends now, and the amount from which it may be locked."""
    return series_load(standing, policy, context), policy.floor


def explain(policy: CapacityShare, resource: str, load: int, whole: int) -> str:
    """Returns the sentence that a refusal shows.

    >>> from analyzer.plan.windows import Rolling
    >>> policy = CapacityShare("overload", 150_000, 9_000, Rolling(300), per="caller+resource")
    >>> explain(policy, "/v1/export", 90_000, 201_000).partition("; ")[0]
    '201,000 requests of the resource in 5m, 90,000 of them from this caller'
    >>> explain(policy, "/v1/export", 90_000, 201_000).partition("; ")[2]
    'its capacity is 150,000, and callers from 9,000 on are locked, the heaviest first'
    """
    unit, all_of = policy.meter_unit, "the resource" if policy.whole == "resource" else "everyone"
    noun = series_noun(policy)
    return (
        f"{with_noun(whole, unit, policy.meter)} of {all_of} in {duration_text(policy.window.period_s)}, "
        f"{amount_text(load, unit)} of them from this {noun}; its capacity is "
        f"{amount_text(resource_capacity(policy, resource), unit)}, and {series_plural(policy)} from "
        f"{amount_text(policy.floor, unit)} on are locked, the heaviest first"
    )


def _explain(policy: CapacityShare, standing: Standing, context: Circumstances) -> str:
    load, whole = series_load(standing, policy, context), whole_load(standing, policy, context)
    return explain(policy, standing.total.resource, load, whole)


judge_capacity = partial(judge_compared, ComparisonRule(find, _explain))


def describe(policy: CapacityShare) -> str:
    """Returns the sentence that `gatelock check` shows.

    >>> from analyzer.plan.windows import Rolling
    >>> policy = CapacityShare(
    ...     "overload", 150_000, 9_000, Rolling(300), release=750_000, per="caller+resource",
    ...     capacities=(("/v1/export", 30_000),),
    ... )
    >>> describe(policy).partition("; ")[0]
    'overload: at most 150,000 requests of a resource (30,000 of /v1/export) in any 5m'
    >>> describe(policy).partition("; ")[2]
    'above it for 1m, then for the heaviest, each caller from 9,000 on, 429 until it is below 75 % of that'
    """
    unit, all_of = policy.meter_unit, "a resource" if policy.whole == "resource" else "everyone"
    capacities = [f"{amount_text(value, unit)} of {name}" for name, value in policy.capacities]
    if policy.limit:
        capacity = f"{with_noun(policy.limit, unit, policy.meter)} of {all_of}"
        capacity += f" ({', '.join(capacities)})" if capacities else ""
    else:
        capacity = f"{policy.meter}: {', '.join(capacities)}"
    phrase = parse_grouping(policy.per.removesuffix(BY_RESOURCE)).phrase
    return (
        f"{policy.name}: at most {capacity} {as_phrase(policy.window)}; above it for "
        f"{duration_text(policy.hold_s)}, then for the heaviest, {phrase} from "
        f"{amount_text(policy.floor, unit)} on, "
        + effect(policy, f"until it is below {percent(policy.release)} of that")
    )
