"""The kinds of policy.

A new kind is a class in `plan.policies` and its `POLICY_CLASSES`, a module with its functions, an entry here,
a table of the configuration in `POLICY_TABLES` with its checks in `KIND_CHECKS`, documentation and tests.
All other code that checks, stores, judges or explains policies reads these tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from analyzer.judging.circumstances import NOTHING_ELSE, Blamed, Circumstances, Needs, Wait
from analyzer.judging.earned_notices import Notice
from analyzer.judging.kinds import capacity, compared, quota, share, surge, surge_share, surge_windows, usual
from analyzer.judging.totals import Standing
from analyzer.plan.policies import CapacityShare, LoadShare, Policy, Quota, RollingQuota, Surge, UsualShare
from analyzer.plan.sums import Sum
from gatekeeper.model import Lock, LockKey


class Kind(NamedTuple):
    """One kind of policy. Each function takes a policy of this kind first.

    Attributes:
        policy: The class that the plan stores.
        judged_sum: Returns the sum that the policy judges.
        thresholds: Returns the values of the sum at which the policy must be judged.
        judge: Returns the lock that a series must have by its total, the lock that it has and the
            circumstances; None for no lock, `Wait` if it must be judged again at a time.
        notices: Returns the notices of the thresholds that a series has reached by its total, those raised
            before among them, and those whose end has changed.
        amounts: Returns what a series has by its total, and the amount that earns it a lock.
        describe: Returns the policy as a phrase.
        needs: Returns what the judgement depends on besides totals and locks.
        locks_last: Whether a lock lasts for its time, also if the limit of its series changes.
        whole_sum: Returns the sum of the whole that series are compared with; None for kinds that judge a sum
            by itself. Only the warden compares, so a total alone says nothing about its lock.
        base_sum: Returns the sum of the base that the series is compared with by itself, None without one.
        growth: Returns how much a total that has reached a threshold must grow before it must be judged
            again, by the policy of the series and the time in seconds; None if that depends on no growth.
        locks_at: Returns the least total of a calendar window that earns a lock, at once or after a time.
        means_attack: Whether its locks are signs of an attack, which the dashboard's banner names.
        widest_bucket_s: Returns the seconds of the widest stored buckets from which it can be simulated; 0 if
            it cannot from any.
        overloads: Returns by resource which of all series above their floor must be locked together, by their
            locks; None for kinds that judge each series by itself.
    """

    policy: type[Any]
    judged_sum: Callable[[Any], Sum]
    thresholds: Callable[[Any], Sequence[int]]
    judge: Callable[[Any, Standing, Lock | None, Circumstances], Lock | Wait | None]
    notices: Callable[[Any, Standing, Circumstances], Sequence[Notice]]
    amounts: Callable[[Any, Standing, Circumstances], tuple[int, int]]
    describe: Callable[[Any], str]
    needs: Callable[[Any], Needs] = lambda _policy: NOTHING_ELSE
    locks_last: bool = False
    whole_sum: Callable[[Any], Sum] | None = None
    base_sum: Callable[[Any], Sum | None] = lambda _policy: None
    growth: Callable[[Any, Standing, int], int | None] = lambda *_: None
    locks_at: Callable[[Any], int] = lambda policy: policy.limit
    means_attack: bool = False
    widest_bucket_s: Callable[[Any], int] = lambda _policy: 0
    overloads: (
        Callable[[Any, Sequence[Standing], Mapping[LockKey, Lock], Circumstances], Mapping[str, Blamed]]
        | None
    ) = None


def no_notices(_policy: Policy, _standing: Standing, _context: Circumstances) -> Sequence[Notice]:
    """Returns no notices: of kinds without thresholds only a lock that is not enforced raises one."""
    return ()


KINDS: Mapping[str, Kind] = {  # by the name in stored plans
    Quota.kind: Kind(
        Quota,
        quota.judged_sum,
        quota.thresholds,
        quota.judge_calendar,
        quota.calendar_notices,
        quota.calendar_amounts,
        quota.describe,
        quota.calendar_needs,
        locks_at=quota.locks_at,
        widest_bucket_s=quota.widest_bucket_s,
    ),
    RollingQuota.kind: Kind(
        RollingQuota,
        quota.judged_sum,
        quota.thresholds,
        quota.judge_rolling,
        quota.rolling_notices,
        quota.rolling_amounts,
        quota.describe,
        quota.rolling_needs,
        growth=quota.growth_to_extend,
        widest_bucket_s=quota.widest_bucket_s,
    ),
    Surge.kind: Kind(
        Surge,
        surge.judged_sum,
        surge.thresholds,
        surge.judge_surge,
        no_notices,
        quota.rolling_amounts,
        surge.describe,
        surge.needs,
        locks_last=True,
        base_sum=surge_share.base_sum,
        means_attack=True,
        growth=surge_windows.growth_to,
        widest_bucket_s=surge.widest_bucket_s,
    ),
    LoadShare.kind: Kind(
        LoadShare,
        compared.judged_sum,
        compared.thresholds,
        share.judge_share,
        no_notices,
        share.amounts,
        share.describe,
        locks_last=True,
        whole_sum=compared.whole_sum,
    ),
    CapacityShare.kind: Kind(
        CapacityShare,
        compared.judged_sum,
        compared.thresholds,
        capacity.judge_capacity,
        no_notices,
        capacity.amounts,
        capacity.describe,
        locks_last=True,
        whole_sum=compared.whole_sum,
        overloads=capacity.overloads,
    ),
    UsualShare.kind: Kind(
        UsualShare,
        compared.judged_sum,
        compared.thresholds,
        usual.judge_usual,
        no_notices,
        usual.amounts,
        usual.describe,
        usual.needs,
        locks_last=True,
        whole_sum=compared.whole_sum,
    ),
}


def policy_kind(policy: Policy) -> Kind:
    return KINDS[policy.kind]
