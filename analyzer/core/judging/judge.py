"""The one place that decides about locks, for daemon, activation, retry, commands and tests alike.

Pure: what a judgement needs comes in as arguments, what must change comes out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime

from analyzer.core.counting.groupings import grouping_of
from analyzer.core.judging.kinds import kind_of
from analyzer.core.judging.plan import Plan
from analyzer.core.judging.policies import Policy
from analyzer.core.judging.totals import Standing, is_judged
from gatekeeper.model import Change, Clear, Lock, LockKey, Set


def judge(
    plan: Plan, standings: Iterable[Standing], locks: Mapping[LockKey, Lock], now: datetime
) -> list[Set]:
    """Returns the changes that make `locks` agree with how the totals stand.

    `locks` holds the present locks at `lock_keys(plan, standings)`. A total that earns no lock clears none: a
    lock ends by its time, or by `lapsed`.
    """
    return [
        Set(wanted)
        for policy, standing in _judgements(plan, standings)
        if (wanted := kind_of(policy).wanted_lock(policy, standing, now)) is not None
        and not _holds(locks.get(wanted.at), wanted)
    ]


def judge_policies(
    plan: Plan,
    policies: Collection[str],
    standings: Iterable[Standing],
    locks: Mapping[LockKey, Lock],
    now: datetime,
) -> list[Change]:
    """Returns the changes that make all locks of `policies` agree with a plan that changed these policies.

    `standings` are all totals that have reached one of their thresholds, `locks` all present locks of these
    policies. Each lock that is earned is written again, because it carries the policy's settings.
    """
    wanted = [
        lock
        for policy, standing in _judgements(plan, standings)
        if policy.name in policies
        and (lock := kind_of(policy).wanted_lock(policy, standing, now)) is not None
    ]
    keep = {lock.at for lock in wanted}
    cleared: list[Change] = [Clear(key) for key in locks if key not in keep]
    return cleared + [Set(lock) for lock in wanted]


def lapsed(locks: Iterable[Lock], now: datetime) -> list[Change]:
    """Returns the changes that clear the locks whose time is over."""
    return [Clear(lock.at) for lock in locks if lock.until <= now]


def lock_keys(plan: Plan, standings: Iterable[Standing]) -> list[LockKey]:
    """Returns the keys of all locks that these totals may have earned."""
    return [
        kind_of(policy).lock_key(policy, standing.total) for policy, standing in _judgements(plan, standings)
    ]


def _judgements(plan: Plan, standings: Iterable[Standing]) -> Iterator[tuple[Policy, Standing]]:
    for standing in standings:
        total = standing.total
        if not is_judged(grouping_of(total.sum.grouping), total.key, total.resource):
            continue  # an earlier version kept totals of series with an empty part
        for policy in plan.policies_of.get(standing.total.sum, ()):
            yield policy, standing


def _holds(lock: Lock | None, wanted: Lock) -> bool:
    """Whether the present lock lasts long enough."""
    return lock is not None and lock.until >= wanted.until
