"""The windows of a surge: which of them earn a lock, and after what growth or when another one may.

A window earns a lock when it has reached the limit, exceeds its share of the base (for a policy with a share,
see `surge_share`), and has half the limit without its busiest address (for a network). Growth by n raises
each of the three by n at most: a request of another address raises the rest of the network by one, one of
the busiest address by nothing. Records that leave a window lower its rest, never raise it: they take from the
whole at least what they take from the busiest address. So a network waits for growth alone; only
a share can become too large by time, when requests that succeeded leave the window.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from analyzer.judging.kinds.compared import MILLION
from analyzer.judging.kinds.surge_share import largest_share
from analyzer.judging.rolling import AddressSums, Slots, sums_at, window_ends
from analyzer.judging.totals import Standing
from analyzer.plan.policies import Surge


class SurgeWindow(NamedTuple):
    """The amounts in the window that ends at `end_s`."""

    end_s: int
    used: int
    base: int | None = None  # of a policy with a share
    addresses: AddressSums | None = None  # of a network

    def lacks(self, policy: Surge) -> int:
        """Returns how much more must be counted before it can earn a lock; 0 or less if it earns one."""
        missing = policy.limit - self.used
        if self.base is not None:
            missing = max(missing, largest_share(policy) * self.base // MILLION + 1 - self.used)
        if self.addresses is not None:
            remainder = self.used - self.addresses.largest
            missing = max(missing, half_limit(policy.limit) - remainder)
        return missing


def half_limit(limit: int) -> int:
    """Returns half a limit, rounded up: what a network must have without its busiest address."""
    return -(-limit // 2)


def earning_window(policy: Surge, standing: Standing, now_s: int) -> SurgeWindow | None:
    """Returns the fullest window that holds the present and earns a lock; None if none does."""
    until_s = now_s + policy.window.period_s
    ends_s = [end_s for end_s in window_ends(standing.slots, now_s) if end_s < until_s]
    earning = [window for window in _windows(policy, standing, ends_s, now_s) if window.lacks(policy) <= 0]
    return max(earning, key=lambda window: window.used, default=None)


def look_again_s(policy: Surge, standing: Standing, now_s: int) -> int | None:
    """Returns when the sum must be judged again, grown or not; None: only growth can earn a lock.

    A window that a clock ahead has filled is judged when it begins to hold the present. A share is judged
    when it becomes too large without growth, and in half a window at the latest, because `growth_to` looks
    no further.
    """
    ahead = _ahead_s(standing.slots, now_s)
    period_s = policy.window.period_s
    if largest_share(policy) and not _waits_for_addresses(policy, standing, now_s):
        windows = _later(policy, standing, now_s)
        looks_s = [_horizon_s(policy, now_s)]
    else:
        windows, looks_s = _windows(policy, standing, ahead, now_s), []
    looks_s += [
        window.end_s - period_s + 1 if window.end_s in ahead else window.end_s
        for window in windows
        if window.lacks(policy) <= 0
    ]
    return min(looks_s, default=None)


def growth_to(policy: Surge, standing: Standing, now_s: int) -> int | None:
    """Returns how much the sum must grow, at the least, before it earns a lock, up to the next look.

    None if it earns one now, and for a surge that the limit alone decides: the thresholds of its sum say it.
    """
    is_shared = bool(largest_share(policy)) and standing.base is not None
    if not is_shared and standing.addresses is None:
        return None
    if earning_window(policy, standing, now_s) is not None:
        return None
    ends_s = window_ends(standing.slots, now_s)
    windows = _windows(policy, standing, ends_s, now_s)
    if is_shared and _waits_for_addresses(policy, standing, now_s):
        windows = [window._replace(base=None) for window in windows]  # no time is waited for
    elif is_shared:
        horizon_s, ahead = _horizon_s(policy, now_s), _ahead_s(standing.slots, now_s)
        later = _later(policy, standing, now_s)
        windows += [window for window in later if window.end_s <= horizon_s or window.end_s in ahead]
    lacking = (window.lacks(policy) for window in windows)
    return min((more for more in lacking if more > 0), default=None)


def _waits_for_addresses(policy: Surge, standing: Standing, now_s: int) -> bool:
    """Whether no window can earn a lock before other addresses of the network have more."""
    windows = _windows(policy, standing, window_ends(standing.slots, now_s), now_s)
    return all(
        window.addresses is not None and window.used - window.addresses.largest < half_limit(policy.limit)
        for window in windows
    )


def _windows(policy: Surge, standing: Standing, ends_s: Sequence[int], now_s: int) -> list[SurgeWindow]:
    """Returns the windows that end at these times, which ascend from `now_s` on."""
    rolling = policy.window
    used = sums_at(standing.slots, rolling, ends_s)
    has_base = largest_share(policy) and standing.base is not None
    base = sums_at(standing.base or (), rolling, ends_s) if has_base else [None] * len(ends_s)
    addresses = _addresses_at(standing, ends_s, now_s)
    return list(map(SurgeWindow, ends_s, used, base, addresses))


def _addresses_at(standing: Standing, ends_s: Sequence[int], now_s: int) -> list[AddressSums | None]:
    """Returns what the addresses of a network have in windows, or in the last ones that began to hold more.

    The rest of the network does not grow in a window that ends later and begins to hold nothing new. None of
    a window below the limit: its addresses are not read.
    """
    if standing.addresses is None:
        return [None] * len(ends_s)
    read_s = window_ends(standing.slots, now_s)
    return [standing.addresses.get(read_s[bisect_right(read_s, end_s) - 1]) for end_s in ends_s]


def _horizon_s(policy: Surge, now_s: int) -> int:
    return now_s + max(1, policy.window.period_s // 2)


def _later(policy: Surge, standing: Standing, now_s: int) -> list[SurgeWindow]:
    """Returns the windows after each change that time alone makes: slots leave, or begin."""
    rolling = policy.window
    kept_s = rolling.period_s + rolling.slot_s
    slots = (*standing.slots, *(standing.base or ()))
    leave_s = (slot.start_s + kept_s for slot in slots)
    ends_s = sorted({end_s for end_s in (*leave_s, *_ahead_s(slots, now_s)) if end_s > now_s})
    return _windows(policy, standing, ends_s, now_s)


def _ahead_s(slots: Slots, now_s: int) -> list[int]:
    return [slot.start_s for slot in slots if slot.start_s > now_s]
