"""Rolling sums: what the slots of a series add up to in a window that ends at a given moment.

A slot is counted whole as long as a part of it is in the window, so a sum is too high by what the oldest slot
holds at most, and never too low: a limit is reached up to one slot early, and no crossing is missed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from analyzer.plan.windows import Rolling


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


class AddressSums(NamedTuple):
    """The addresses of a network that took part in a window."""

    number: int
    largest: int  # sum of the address that has most


def sum_at(slots: Slots, rolling: Rolling, at_s: int) -> int:
    """Returns what the window that ends at `at_s` holds."""
    return sums_at(slots, rolling, (at_s,))[0]


def sums_at(slots: Slots, rolling: Rolling, ends_s: Sequence[int]) -> list[int]:
    """Returns what the windows hold that end at each of these moments, which ascend.

    In one pass: a window of months has thousands of slots, and judgements compare as many windows.
    """
    kept_s = rolling.period_s + rolling.slot_s
    if slots and isinstance(slots[0], DistinctSlot):
        return _numbers_at(slots, kept_s, ends_s)
    starts_s = [slot.start_s for slot in slots]
    until = [0, *accumulate(slot.value for slot in slots if isinstance(slot, Slot))]
    return [
        until[bisect_right(starts_s, end_s)] - until[bisect_right(starts_s, end_s - kept_s)]
        for end_s in ends_s
    ]


def _numbers_at(slots: Slots, kept_s: int, ends_s: Sequence[int]) -> list[int]:
    """Returns how many different values the windows hold."""
    sets = [(slot.start_s, slot.values) for slot in slots if isinstance(slot, DistinctSlot)]
    inside = Counter[int]()  # in how many slots of the window each value is
    numbers, first, next_ = [], 0, 0
    for end_s in ends_s:
        while next_ < len(sets) and sets[next_][0] <= end_s:
            inside.update(sets[next_][1])
            next_ += 1
        while first < next_ and sets[first][0] <= end_s - kept_s:
            for value in sets[first][1]:
                inside[value] -= 1
                if not inside[value]:
                    del inside[value]
            first += 1
        numbers.append(len(inside))
    return numbers


def addresses_at(
    cells: Sequence[tuple[int, str, int]], rolling: Rolling, ends_s: Sequence[int]
) -> dict[int, AddressSums]:
    """Returns what the addresses of a network have in the windows that end at these times, which ascend.

    `cells` has the start of a slot, an address, and what that has in the slot; sorted. In one pass.
    """
    kept_s = rolling.period_s + rolling.slot_s
    inside = Counter[str]()
    sums, first, next_ = {}, 0, 0
    for end_s in ends_s:
        while next_ < len(cells) and cells[next_][0] <= end_s:
            inside[cells[next_][1]] += cells[next_][2]
            next_ += 1
        while first < next_ and cells[first][0] <= end_s - kept_s:
            address, value = cells[first][1:]
            inside[address] -= value
            if not inside[address]:
                del inside[address]
            first += 1
        sums[end_s] = AddressSums(len(inside), max(inside.values(), default=0))
    return sums


def present_sum(slots: Slots, rolling: Rolling, now_s: int) -> int:
    """Returns the largest sum of the windows that hold `now_s`.

    Those that end later hold what a clock that is ahead has logged.
    """
    ends_s = (slot.start_s for slot in slots if now_s < slot.start_s < now_s + rolling.period_s)
    return max(sums_at(slots, rolling, (now_s, *ends_s)))


def largest_sum(slots: Slots, rolling: Rolling, now_s: int) -> int:
    """Returns the largest sum of all windows that end at `now_s` or later.

    Before `limit - largest_sum` more is counted, none of them can reach the limit, for any times of the
    records.
    """
    return max(sums_at(slots, rolling, window_ends(slots, now_s)))


def growth_to(slots: Slots, rolling: Rolling, limit: int, now_s: int) -> int | None:
    """Returns how much more must be counted before another window reaches `limit`, at the least.

    None if a window that holds `now_s` has reached it. A window of the future that has reached it, by a clock
    that is ahead, says nothing about the present one.
    """
    if present_sum(slots, rolling, now_s) >= limit:
        return None
    return limit - max(total for total in sums_at(slots, rolling, window_ends(slots, now_s)) if total < limit)


def begins_s(slots: Slots, rolling: Rolling, limit: int, now_s: int) -> int:
    """Returns when the first window that reaches `limit` and ends after `now_s` begins to hold the present.

    Some window must reach it: see `largest_sum`.
    """
    ends_s = window_ends(slots, now_s)[1:]
    totals = zip(ends_s, sums_at(slots, rolling, ends_s), strict=True)
    return next(end_s for end_s, total in totals if total >= limit) - rolling.period_s + 1


def below_s(slots: Slots, rolling: Rolling, limit: int, now_s: int) -> int:
    """Returns from when on no window reaches `limit`, if nothing more is counted; `now_s` at least."""
    kept_s = rolling.period_s + rolling.slot_s
    lasts_s = [slot.start_s + kept_s - 1 for slot in slots if slot.start_s + kept_s > now_s]
    totals = zip(lasts_s, sums_at(slots, rolling, lasts_s), strict=True)
    return max((last_s + 1 for last_s, total in totals if total >= limit), default=now_s)


def window_ends(slots: Slots, now_s: int) -> Sequence[int]:
    """Returns the ends of the present window, and of those later ones that begin to hold another slot."""
    return now_s, *(slot.start_s for slot in slots if slot.start_s > now_s)
