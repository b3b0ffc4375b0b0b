"""The truth about capacities: the fewest and heaviest series are locked without which the rest fits.

All sums are known up to one slot on either side, as in `rolling_truth`. The product compares a load with what
the capacity is in the time of its slots, which are up to one longer than the window: `stretched`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from analyzer.plan.policies import CapacityShare
from gatekeeper.model import LockKey
from tests.simulation.policies.sliding_sums import Entry, exact, slot_s_of, widest

Loads = Mapping[LockKey, Sequence[Entry]]


class Locks(NamedTuple):
    """Series that were locked before a commit, that are after it, and that have been over for long enough."""

    before: Collection[LockKey]
    after: Collection[LockKey]
    held: Collection[LockKey]


def stretched(policy: CapacityShare) -> int:
    """Returns the most that may count as the capacity."""
    period_s = policy.window.period_s
    return -(-policy.limit * (period_s + slot_s_of(policy)) // period_s)


def wrong_choice(
    policy: CapacityShare, at: LockKey, whole: Sequence[Entry], loads: Loads, locks: Locks, now_s: int
) -> str:
    """Returns why `at` should not have been locked in this commit; "" if it should."""
    own = widest(policy, loads[at], now_s)
    least = {one: exact(policy, entries, now_s) for one, entries in loads.items() if one != at}
    for one, load in least.items():
        if load > own and load >= policy.floor and one in locks.held and one not in locks.after:
            return f"locked with {own}, and {one.key} with {load} is not"
    locked = sum(load for one, load in least.items() if one in locks.before)
    heavier = sum(
        load for one, load in least.items() if one in locks.after and one not in locks.before and load >= own
    )
    if widest(policy, whole, now_s) - locked - heavier <= policy.limit:
        return f"locked with {own}, and the rest fits without the heavier ones"
    return ""


def is_missing(
    policy: CapacityShare,
    at: LockKey,
    whole: Sequence[Entry],
    loads: Loads,
    locked: Collection[LockKey],
    now_s: int,
) -> bool:
    """Whether `at` must have a lock that it does not have: the rest does not fit."""
    of_locked = sum(widest(policy, loads[one], now_s) for one in loads if one in locked)
    is_over = exact(policy, whole, now_s) - of_locked > stretched(policy)
    return is_over and exact(policy, loads[at], now_s) >= policy.floor
