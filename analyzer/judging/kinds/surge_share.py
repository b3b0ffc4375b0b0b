"""Surges by a share: a series whose errors are too large a part of its requests.

The limit of the surge is the floor: below it a flush costs what it costs for any surge, and nothing is
compared. From the floor on, a judgement reads the slots of the other meter, the base, and computes how much
the part must grow before its share can be too large: within half a window, while at least the newer half of
the base stays. The warden looks again after that time, or when so much of the base will have left that the
share is too large without growth (`surge_windows`). So a series with few errors among many requests is
judged twice in a window.
"""

from __future__ import annotations

import msgspec

from analyzer.plan.policies import Surge
from analyzer.plan.sums import Sum


def largest_share(policy: Surge) -> int:
    """Returns the largest share of the base that a series may have, in millionths; 0 for any."""
    return 0 if isinstance(policy.share, msgspec.UnsetType) else policy.share


def part_role(policy: Surge) -> str:
    """Returns the role of the sum that is judged: it began with that of its base."""
    return "" if isinstance(policy.base, msgspec.UnsetType) else f"part of {policy.base}"


def base_sum(policy: Surge) -> Sum | None:
    """Returns the sum of the base, of which only slots are kept; None for a surge without a share."""
    if isinstance(policy.base, msgspec.UnsetType):
        return None
    return Sum(policy.per, policy.base, policy.window, role="base")
