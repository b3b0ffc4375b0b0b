"""One policy of each kind besides the quotas, and whom their rolling windows lock, by the raw log."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from analyzer.plan.plan import Plan
from analyzer.plan.policies import LoadShare, RollingQuota, Surge

FURTHER = """
[[meters]]
name = "items"
distinct = "item"
[[policies]]
name = "noticed"
limit = 300
window = { per = "week" }
notify = [0.5, 1.0]
soft = true
[[policies]]
name = "items"
meter = "items"
limit = 12
window = { per = "month" }
[[policies]]
name = "hours"
limit = 400
window = { rolling = "2h" }
[[policies]]
name = "flood"
kind = "surge"
limit = 300
window = { rolling = "60s" }
lock_for = "1d"
[[policies]]
name = "neighbour"
kind = "share"
per = "caller"
of = "everyone"
limit = 0.10
floor = "1/s"
hold = "2s"
release = 0.06
window = { rolling = "5m" }
"""
AHEAD_S = 900
QUICK_S = 20  # a burst within this time is seen by a surge of a minute, however late it is counted here
WHOLE = 1_000_000
MARGIN = 1.25  # of a share, for slots

Bounds = tuple[set[str], set[str]]


class Second(NamedTuple):
    """Requests of one caller in one second."""

    at_s: int
    number: int


def bounds(plan: Plan, seconds: Mapping[tuple[str, int], int], now_s: int) -> dict[str, Bounds]:
    """Returns by policy the callers that must be locked, and those that may be."""
    by_caller: dict[str, list[Second]] = defaultdict(list)
    for (caller, at_s), number in seconds.items():
        by_caller[caller].append(Second(at_s, number))
    for of_caller in by_caller.values():
        of_caller.sort()
    found: dict[str, Bounds] = {}
    for policy in plan.policies:
        match policy:
            case RollingQuota():
                found[policy.name] = of_quota(policy, by_caller, now_s)
            case Surge():
                reach_s = policy.window.period_s + 2 * policy.window.slot_s
                found[policy.name] = (
                    {at for at, one in by_caller.items() if most_in(one, QUICK_S) >= 2 * policy.limit},
                    {at for at, one in by_caller.items() if most_in(one, reach_s) >= policy.limit},
                )
            case LoadShare():
                found[policy.name] = of_share(policy, by_caller, now_s)
    return found


def of_quota(policy: RollingQuota, by_caller: Mapping[str, Sequence[Second]], now_s: int) -> Bounds:
    period_s, slot_s = policy.window.period_s, policy.window.slot_s
    must = {at for at, one in by_caller.items() if between(one, now_s - period_s, now_s) >= policy.limit}
    wide = (now_s - period_s - 2 * slot_s, now_s + AHEAD_S)
    return must, {at for at, one in by_caller.items() if between(one, *wide) >= policy.limit}


def of_share(policy: LoadShare, by_caller: Mapping[str, Sequence[Second]], now_s: int) -> Bounds:
    began_s = now_s - policy.window.period_s
    loads = Counter({at: between(one, began_s, now_s) for at, one in by_caller.items()})
    whole = loads.total()
    must = {
        at
        for at, load in loads.items()
        if load >= MARGIN * policy.floor and load * WHOLE > MARGIN * policy.limit * whole
    }
    return must, {at for at, load in loads.items() if MARGIN * load * WHOLE > policy.release * whole}


def between(seconds: Sequence[Second], after_s: int, to_s: int) -> int:
    return sum(one.number for one in seconds if after_s < one.at_s <= to_s)


def most_in(seconds: Sequence[Second], length_s: int) -> int:
    """Returns the most that any stretch of this length has."""
    most = total = first = 0
    for one in seconds:
        total += one.number
        while seconds[first].at_s <= one.at_s - length_s:
            total -= seconds[first].number
            first += 1
        most = max(most, total)
    return most
