"""Surges by a share: a series whose errors are too large a part of its requests.

The limit of the surge is the floor: below it a flush costs what it costs for any surge, and nothing is
compared. From the floor on, a judgement reads the slots of the other meter, the base, and computes how much
the part must grow before its share can be too large: within half a window, while at least the newer half of
the base stays. The warden looks again after that time, or when so much of the base will have left that the
share is too large without growth. So a series with few errors among many requests is judged twice in a
window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from analyzer.core.judging.kinds.compared import MILLION
from analyzer.core.judging.policies import Surge
from analyzer.core.judging.rolling import Slots, sum_at
from analyzer.core.judging.totals import Standing, Sum


class PartOfBase(NamedTuple):
    """The amounts in a window: of the meter of a policy, and of its base."""

    part: int
    base: int

    def is_over(self, policy: Surge) -> bool:
        """Whether the part has reached the floor, and is more than its share of the base."""
        return self.part >= policy.limit and self.part * MILLION > share_of(policy) * self.base


def share_of(policy: Surge) -> int:
    """Returns the largest share of the base that a series may have, in millionths; 0 for any."""
    return 0 if isinstance(policy.share, msgspec.UnsetType) else policy.share


def part_role(policy: Surge) -> str:
    """Returns the role of the sum that is judged: it began with that of its base."""
    return "" if isinstance(policy.base, msgspec.UnsetType) else f"part of {policy.base}"


def base_of(policy: Surge) -> Sum | None:
    """Returns the sum of the base, of which only slots are kept; None for a surge without a share."""
    if isinstance(policy.base, msgspec.UnsetType):
        return None
    return Sum(policy.per, policy.base, policy.window, role="base")


def shares_at(policy: Surge, standing: Standing, ends_s: Sequence[int]) -> list[PartOfBase]:
    """Returns the shares in the windows that end at these times."""
    slots, base, rolling = standing.slots, standing.base or (), policy.window
    return [PartOfBase(sum_at(slots, rolling, end_s), sum_at(base, rolling, end_s)) for end_s in ends_s]


def present_share(policy: Surge, standing: Standing, now_s: int) -> PartOfBase | None:
    """Returns the largest share that is over, of the windows that hold `now_s`; None if none is."""
    latest_s = now_s + _period_s(policy)
    ends_s = [now_s, *(end_s for end_s in _ahead_s(standing.slots, now_s) if end_s < latest_s)]
    over = [share for share in shares_at(policy, standing, ends_s) if share.is_over(policy)]
    return max(over, default=None)


def look_again_s(policy: Surge, standing: Standing, now_s: int) -> int:
    """Returns when the share must be judged again, grown or not: in half a window at the latest."""
    rolling, ahead = policy.window, {*_ahead_s(standing.slots, now_s)}
    # A window that a clock ahead has filled begins to hold the present before it ends.
    over_s = (
        end_s - rolling.period_s + 1 if end_s in ahead else end_s
        for end_s, share in _later(policy, standing, now_s)
        if share.is_over(policy)
    )
    return min((*over_s, _horizon_s(policy, now_s)))


def growth_to(policy: Surge, standing: Standing, now_s: int, floor: int) -> int | None:
    """Returns how much the part must grow, at the least, before its share is over, up to the next look.

    `floor` is that of the series. None if the present share is over.
    """
    if present_share(policy, standing, now_s) is not None:
        return None
    horizon_s, ahead = _horizon_s(policy, now_s), {*_ahead_s(standing.slots, now_s)}
    later = _later(policy, standing, now_s)
    shares = [share for end_s, share in later if end_s <= horizon_s or end_s in ahead]
    shares += shares_at(policy, standing, [now_s])
    return min(
        max(1, floor - share.part, share_of(policy) * share.base // MILLION + 1 - share.part)
        for share in shares
        if not share.is_over(policy)
    )


def _horizon_s(policy: Surge, now_s: int) -> int:
    return now_s + max(1, policy.window.period_s // 2)


def _later(policy: Surge, standing: Standing, now_s: int) -> list[tuple[int, PartOfBase]]:
    """Returns the shares after each change that time alone makes: slots leave, or begin."""
    rolling = policy.window
    kept_s = rolling.period_s + rolling.slot_s
    slots = (*standing.slots, *(standing.base or ()))
    leave_s = (slot.start_s + kept_s for slot in slots)
    ends_s = sorted({end_s for end_s in (*leave_s, *_ahead_s(slots, now_s)) if end_s > now_s})
    return list(zip(ends_s, shares_at(policy, standing, ends_s), strict=True))


def _ahead_s(slots: Slots, now_s: int) -> list[int]:
    return [slot.start_s for slot in slots if slot.start_s > now_s]


def _period_s(policy: Surge) -> int:
    return policy.window.period_s
