"""The truth about notices and graces of rolling quotas, recounted record by record.

- A notice is raised when a window may have reached its threshold, and ends when none holds it. It is
  raised again only after it has ended, and not within the length of the window, except where a grace of time
  begins with it; else it continues.
- A series that has grown, and whose window surely holds the threshold, has a notice that lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from analyzer.judging.earned_notices import LASTS_S, WHOLE, NoticeKey
from analyzer.judging.kinds import policy_kind
from analyzer.plan.policies import RollingQuota
from tests.simulation.policies.commits import Commit, SeenNotice
from tests.simulation.policies.series import Series

Last = Mapping[NoticeKey, tuple[NoticeKey, SeenNotice]]  # by the key without its time


def last_of(notices: Mapping[NoticeKey, SeenNotice]) -> Last:
    """Returns the last notice of each threshold."""
    return {at._replace(window_s=0): (at, found) for at, found in sorted(notices.items())}


def wrong_notices(
    before: Mapping[NoticeKey, SeenNotice],
    commit: Commit,
    policies: Mapping[str, RollingQuota],
    sums: Callable[[RollingQuota, Series, int], tuple[int, int]],
) -> str:
    """Returns what is wrong about the notices that a commit has written; "" if nothing is.

    `policies` are those that are checked, by name. `sums` returns what a window surely holds, and the most
    that it may hold, of a series at a time.
    """
    if gone := before.keys() - commit.notices.keys():
        return f"a notice is gone: {sorted(gone)}"
    was = last_of(before)
    for at, found in commit.notices.items():
        policy = policies.get(at.policy)
        if policy is None or found == before.get(at):
            continue
        amount = -(-found.limit * at.threshold // WHOLE)
        now_s = commit.now_s if found.until_s == LASTS_S else found.until_s
        least, most = sums(policy, (at.key, at.resource), now_s)
        if found.until_s != LASTS_S:
            if least >= amount:
                return f"a notice that has ended with {least} of {amount}: {at}"
            continue
        if most < amount or at.threshold not in policy.thresholds:
            return f"a notice that is not earned by {most} of {amount}: {at}"
        if at not in before and (last := was.get(at._replace(window_s=0))) is not None:
            rest_s = 0 if has_grace(policy) and at.threshold == WHOLE else policy.window.period_s
            if last[1].until_s == LASTS_S or at.window_s < last[0].window_s + rest_s:
                return f"a notice that was raised again: {at}, and before {last}"
    return ""


def missing_notice(
    commit: Commit, policy: RollingQuota, series: Iterable[tuple[Series, int]], name: str
) -> str:
    """Returns which series has no notice that lasts by what its window surely holds; "" if all have."""
    last = last_of(commit.notices)
    for (key, resource), least in series:
        for threshold in policy.thresholds:
            at = NoticeKey(policy.name, name, key, resource, 0, threshold)
            if least * WHOLE >= policy.limit * threshold:
                found = last.get(at)
                if found is None or found[1].until_s != LASTS_S:
                    return f"no notice of {at} by {least} of {policy.limit}: {found}"
    return ""


def lasting_notice(commit: Commit, policy: RollingQuota, name: str, most: Mapping[Series, int]) -> str:
    """Returns which notice lasts, though no window holds its threshold any more; "" if none."""
    for at, found in commit.notices.items():
        held = most.get((at.key, at.resource), 0)
        is_of = at.policy == policy.name and at.sum == name and found.until_s == LASTS_S
        if is_of and held * WHOLE < policy.limit * at.threshold and at.threshold in policy.thresholds:
            return f"a notice that lasts, with {held} of {policy.limit}: {at}"
    return ""


def has_grace(policy: Any) -> bool:
    """Whether a lock begins a while after its limit was reached."""
    return isinstance(policy, RollingQuota) and policy.grace_given.time_s > 0


def is_over(commit: Commit, policy: RollingQuota, series: Series) -> bool:
    """Whether the grace of a series is over, by the notice at its limit."""
    name = " ".join((policy.per, policy.meter, str(policy_kind(policy).judged_sum(policy).window)))
    found = last_of(commit.notices).get(NoticeKey(policy.name, name, *series, 0, WHOLE))
    if found is None or found[1].until_s != LASTS_S:
        return False
    return found[1].at_ms + policy.grace_given.time_s * 1000 <= commit.now_ms
