"""Rolling sums: what the slots of a series add up to in a window that ends at a given moment.

A slot is counted whole as long as a part of it is in the window, so a sum is too high by what the oldest slot
holds at most, and never too low: a limit is reached up to one slot early, and no crossing is missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from analyzer.core.judging.windows import Rolling


class Slot(NamedTuple):
    """The count of one series in [start, start + width)."""

    start_s: int
    value: int


class DistinctSlot(NamedTuple):
    """The distinct values of one series in [start, start + width)."""

    start_s: int
    values: frozenset[int]


# Of one series, each start once, sorted. All of one class: a window holds the sum of counts, or the number of
# different values.
Slots = Sequence[Slot | DistinctSlot]


def sum_at(slots: Slots, rolling: Rolling, at_s: int) -> int:
    """Returns what the window that ends at `at_s` holds."""
    kept_s = rolling.period_s + rolling.slot_s
    if slots and isinstance(slots[0], DistinctSlot):
        inside = [slot for slot in slots if slot.start_s <= at_s < slot.start_s + kept_s]
        return len(frozenset[int]().union(*(one.values for one in inside if isinstance(one, DistinctSlot))))
    return sum(
        slot.value
        for slot in slots
        if isinstance(slot, Slot) and slot.start_s <= at_s < slot.start_s + kept_s
    )


def present_sum(slots: Slots, rolling: Rolling, now_s: int) -> int:
    """Returns the largest sum of the windows that hold `now_s`.

    Those that end later hold what a clock that is ahead has logged.
    """
    ends_s = (slot.start_s for slot in slots if now_s < slot.start_s < now_s + rolling.period_s)
    return _largest(slots, rolling, (now_s, *ends_s))


def largest_sum(slots: Slots, rolling: Rolling, now_s: int) -> int:
    """Returns the largest sum of all windows that end at `now_s` or later.

    Before `limit - largest_sum` more is counted, none of them can reach the limit, for any times of the
    records.
    """
    return _largest(slots, rolling, (now_s, *(slot.start_s for slot in slots if slot.start_s > now_s)))


def growth_to(slots: Slots, rolling: Rolling, limit: int, now_s: int) -> int | None:
    """Returns how much more must be counted before another window reaches `limit`, at the least.

    None if a window that holds `now_s` has reached it. A window of the future that has reached it, by a clock
    that is ahead, says nothing about the present one.
    """
    if present_sum(slots, rolling, now_s) >= limit:
        return None
    ends_s = (now_s, *(slot.start_s for slot in slots if slot.start_s > now_s))
    return limit - max(total for end_s in ends_s if (total := sum_at(slots, rolling, end_s)) < limit)


def begins_s(slots: Slots, rolling: Rolling, limit: int, now_s: int) -> int:
    """Returns when the first window that reaches `limit` and ends after `now_s` begins to hold the present.

    Some window must reach it: see `largest_sum`.
    """
    ends_s = (slot.start_s for slot in slots if slot.start_s > now_s)
    return next(end_s for end_s in ends_s if sum_at(slots, rolling, end_s) >= limit) - rolling.period_s + 1


def below_s(slots: Slots, rolling: Rolling, limit: int, now_s: int) -> int:
    """Returns from when on no window reaches `limit`, if nothing more is counted; `now_s` at least."""
    ends_s = (slot.start_s + rolling.period_s + rolling.slot_s for slot in slots)
    reached = (end_s for end_s in ends_s if end_s > now_s and sum_at(slots, rolling, end_s - 1) >= limit)
    return max(reached, default=now_s)


def _largest(slots: Slots, rolling: Rolling, ends_s: Iterable[int]) -> int:
    return max(sum_at(slots, rolling, end_s) for end_s in ends_s)
