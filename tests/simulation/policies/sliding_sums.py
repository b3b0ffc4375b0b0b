"""Contents of rolling windows, recounted record by record; `rolling_truth` compares them with the product."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from analyzer.plan.policies import ComparedLoad, Policy, RollingQuota, Surge


class Entry(NamedTuple):
    """One record in a rolling sum."""

    at_s: int
    amount: int
    part: str  # the address of the request


def inside(entries: Iterable[Entry], after_s: int, to_s: int) -> list[Entry]:
    """Returns the records in (after, to]."""
    return [one for one in entries if after_s < one.at_s <= to_s]


def value(policy: Policy, entries: Iterable[Entry]) -> int:
    if policy.meter_join == "distinct":
        return len({one.part for one in entries})
    return sum(one.amount for one in entries)


def by_address(entries: Iterable[Entry]) -> Counter[str]:
    found: Counter[str] = Counter()
    for one in entries:
        found[one.part] += one.amount
    return found


def exact(policy: Policy, entries: Sequence[Entry], now_s: int) -> int:
    """Returns what the window that ends now holds."""
    return value(policy, inside(entries, now_s - period_s(policy), now_s))


def widest(policy: Policy, entries: Sequence[Entry], now_s: int) -> int:
    """Returns what the window that ends now holds, and a slot on either side."""
    slot_s = slot_s_of(policy)
    return value(policy, inside(entries, now_s - period_s(policy) - slot_s, now_s + slot_s))


def at_most(policy: Policy, entries: Sequence[Entry], now_s: int) -> int:
    """Returns the largest sum of the windows that hold the present, and a slot on either side."""
    reach_s, slot_s = period_s(policy), slot_s_of(policy)
    ends_s = {now_s, *(one.at_s for one in entries if now_s < one.at_s < now_s + reach_s + slot_s)}
    return max(
        value(policy, inside(entries, end_s - reach_s - 2 * slot_s, end_s + slot_s)) for end_s in ends_s
    )


def period_s(policy: Policy) -> int:
    assert isinstance(policy, RollingQuota | Surge | ComparedLoad)
    return policy.window.period_s


def slot_s_of(policy: Policy) -> int:
    """Seconds of a slot, as a slot's edge may cut a minute of the buckets."""
    assert isinstance(policy, RollingQuota | Surge | ComparedLoad)
    return policy.window.slot_s + (0 if policy.window.has_slots else 60)
