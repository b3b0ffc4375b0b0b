"""The limits of each series: by the plan of its caller, overrides, grants and exemptions.

A policy has a limit, and may have others for the plans that callers are sold. The directory says which caller
has which plan, and which callers have an override. `Limits` joins both: the policies as they
apply to one series. Kinds judge such a policy like any other, so that locks and sentences name the limit of
this caller.

The directory depends on no clock: an override begins and ends when the warden says so in the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from ipaddress import ip_network
from sys import intern
from typing import Any, NamedTuple

import msgspec

from analyzer.core.counting.groupings import Grouping, grouping_of
from analyzer.core.judging.kinds import kind_of
from analyzer.core.judging.plan import Plan
from analyzer.core.judging.policies import OverrideKind, Policy, SubjectKind
from analyzer.core.judging.totals import NEVER, Standing, Sum
from analyzer.core.judging.windows import Calendar

ADDRESS = "address:"  # beginning of the names of callers that are known by their address
LIMIT_MAX = 1 << 62
KEYS_CACHED = 1 << 16


class Subject(NamedTuple):
    """The callers that an override is for: one, those of a tenant, or those of an address or range."""

    kind: SubjectKind
    name: str


class Profile(NamedTuple):
    """Facts about one caller; "" for those that are not stated."""

    plan: str = ""
    tenant: str = ""


class Override(NamedTuple):
    """An exception from a policy: another limit, an amount added to the limit, or no limit at all."""

    kind: OverrideKind
    policy: str = ""  # "": of an exemption from all policies
    amount: int = 0
    from_ms: int = 0  # of several limits the one that began last holds

    def is_for(self, policy: str) -> bool:
        return self.policy in ("", policy)


NO_PROFILE = Profile()


class Directory:
    """Profiles of callers, and the overrides in force by their subject and id. Changed in place.

    Equal profiles are one object: a million callers share a few.
    """

    def __init__(self) -> None:
        self.profiles: dict[str, Profile] = {}
        self.overrides: dict[Subject, dict[str, Override]] = {}
        self._known: dict[Profile, Profile] = {}

    def set_profile(self, caller: str, profile: Profile) -> None:
        if profile == NO_PROFILE:
            self.profiles.pop(caller, None)
            return
        known = self._known.get(profile)
        if known is None:
            known = Profile(*map(intern, profile))
            self._known[known] = known
        self.profiles[caller] = known

    def set_override(self, id_: str, subject: Subject, override: Override | None) -> None:
        """Stores an override under its id; None: it has ended."""
        if override is not None:
            self.overrides.setdefault(subject, {})[id_] = override
        elif self.overrides.get(subject, {}).pop(id_, None) and not self.overrides[subject]:
            del self.overrides[subject]


EMPTY = Directory()


class Limits:
    """The policies of a plan as they apply to each series.

    Made for one state of the directory: when that changes, another one must be made.
    """

    def __init__(self, plan: Plan, directory: Directory = EMPTY) -> None:
        self._plan = plan
        self._directory = directory
        self._exempt_ranges = [
            ip_network(subject.name)
            for subject, overrides in directory.overrides.items()
            if subject.kind == "address" and any(one.kind == "exempt" for one in overrides.values())
        ]
        self._named = {name for found in directory.overrides.values() for name in _policies(found.values())}
        # Most series have no override: what applies to them depends on the caller's plan alone.
        self._by_plan: dict[tuple[str, str], Policy] = {}
        self._thresholds: dict[tuple[Sum, str], Sequence[int]] = {}
        self._has_own: dict[Sum, bool] = {}
        self._is_in_range = lru_cache(KEYS_CACHED)(self._in_range)

    def policy_for(self, policy: Policy, key: str) -> Policy | None:
        """Returns the policy with the limit of the series `key`; None if that is exempt."""
        grouping = grouping_of(policy.per)
        profile = self._profile(grouping, key)
        of_plan = self._of_plan(policy, profile.plan)
        found = [one for one in self._overrides(grouping, key, profile) if one.is_for(policy.name)]
        if any(one.kind == "exempt" for one in found) or self._is_exempt_address(grouping, key):
            return None
        if not found or kind_of(policy).whole_of is not None:
            return of_plan  # only amounts can be granted, not shares of a whole
        # The caller's own override comes before its tenant's.
        limit = next((one.amount for one in found if one.kind == "limit"), _limit_of(of_plan))
        granted = sum(one.amount for one in found if one.kind == "grant")
        return _with_limit(policy, min(limit + granted, LIMIT_MAX))

    def thresholds_of(self, sum_: Sum, key: str) -> Sequence[int]:
        """Returns the values of the sum at which one of its policies must be judged for `key`, ascending."""
        if not self.has_own(sum_):
            return self._plan.thresholds_of[sum_]
        grouping = grouping_of(sum_.grouping)
        profile = self._profile(grouping, key)
        if self._directory.overrides and (
            self._overrides(grouping, key, profile) or self._is_exempt_address(grouping, key)
        ):
            return self._thresholds_for(sum_, key)
        at = sum_, profile.plan
        found = self._thresholds.get(at)
        if found is None:
            found = self._thresholds[at] = self._thresholds_for(sum_, key)
        return found

    def _thresholds_for(self, sum_: Sum, key: str) -> Sequence[int]:
        policies = [self.policy_for(policy, key) for policy in self._plan.policies_of[sum_]]
        return sorted(
            {value for one in policies if one is not None for value in kind_of(one).thresholds(one)}
        )

    def largest_of(self, sum_: Sum, key: str) -> int:
        """Returns the largest value at which one of the sum's policies must be judged for `key`.

        Of a series that is exempt that of all others: the exemption may end within the window.
        """
        return max(self.thresholds_of(sum_, key) or self._plan.thresholds_of[sum_])

    def has_own(self, sum_: Sum) -> bool:
        """Whether any series of a sum may have another limit than the policies state."""
        found = self._has_own.get(sum_)
        if found is None:
            policies = self._plan.policies_of[sum_]
            names = {"", *(policy.name for policy in policies)}
            has_plans = bool(self._directory.profiles) and any(map(_limits_of_plans, policies))
            found = self._has_own[sum_] = has_plans or bool(self._named & names)
        return found

    def first_judgements(self, sum_: Sum, keys: Sequence[str]) -> int | list[int]:
        """Returns the least value at which new totals must be judged: one for all, or one for each key."""
        if not self.has_own(sum_) or not _is_known(sum_):
            return self._plan.first_judgement(sum_)
        if self._directory.overrides or not grouping_of(sum_.grouping).is_of_callers:
            found = [next(iter(self.thresholds_of(sum_, key)), NEVER) for key in keys]
        else:
            # The usual case, for ten thousand keys: their plans decide, and there are few.
            get = self._directory.profiles.get
            plans = [get(key, NO_PROFILE).plan for key in keys]
            some_key = dict(zip(plans, keys, strict=True))
            first = {plan: self.thresholds_of(sum_, key)[0] for plan, key in some_key.items()}
            found = [first[plan] for plan in plans]
        return found if len({*found}) > 1 else found[0]

    def next_judgement(self, standing: Standing, now_s: float) -> int:
        """Returns the least value at which the total must be judged again: see `Plan.next_judgement`."""
        total = standing.total
        return self._plan.next_judgement(standing, now_s, self.thresholds_of(total.sum, total.key))

    def _of_plan(self, policy: Policy, plan: str) -> Policy:
        limits = _limits_of_plans(policy)
        if plan not in limits:
            return policy
        at = policy.name, plan
        if at not in self._by_plan:
            self._by_plan[at] = _with_limit(policy, limits[plan])
        return self._by_plan[at]

    def _profile(self, grouping: Grouping, key: str) -> Profile:
        return self._directory.profiles.get(key, NO_PROFILE) if grouping.is_of_callers else NO_PROFILE

    def _overrides(self, grouping: Grouping, key: str, profile: Profile) -> list[Override]:
        """Returns the overrides of a series, those of its caller first."""
        overrides = self._directory.overrides
        if not overrides:
            return []
        subjects = [Subject("caller", key), Subject("tenant", profile.tenant)]
        if not grouping.is_of_callers:
            subjects = [Subject("tenant", key)] if grouping.scope == "tenant" else []
        return [one for subject in subjects for one in _latest_first(overrides.get(subject, {}))]

    def _is_exempt_address(self, grouping: Grouping, key: str) -> bool:
        if not self._exempt_ranges:
            return False
        if grouping.is_of_callers:
            return key.startswith(ADDRESS) and self._is_in_range(key.removeprefix(ADDRESS))
        return grouping.scope in ("address", "range") and self._is_in_range(key)

    def _in_range(self, text: str) -> bool:
        """Whether an address or range lies within an exempt one."""
        try:
            found: Any = ip_network(text)
        except ValueError:
            return False
        return any(found.version == one.version and found.subnet_of(one) for one in self._exempt_ranges)


def _is_known(sum_: Sum) -> bool:
    """Whether a new total holds all that its window holds; else it is judged as soon as it grows."""
    return isinstance(sum_.window, Calendar) or sum_.window.has_slots


def _latest_first(overrides: Mapping[str, Override]) -> list[Override]:
    if len(overrides) < 2:
        return list(overrides.values())
    in_order = sorted(overrides.items(), key=lambda item: (item[1].from_ms, item[0]), reverse=True)
    return [one for _, one in in_order]


def _policies(overrides: Iterable[Override]) -> set[str]:
    return {one.policy for one in overrides}


def _limits_of_plans(policy: Any) -> Mapping[str, int]:
    limits = getattr(policy, "plan_limits", msgspec.UNSET)
    return {} if isinstance(limits, msgspec.UnsetType) else dict(limits)


def _limit_of(policy: Any) -> int:
    return int(policy.limit)


@lru_cache(KEYS_CACHED)
def _replaced(policy: Any, limit: int) -> Any:
    return msgspec.structs.replace(policy, limit=limit)


def _with_limit(policy: Any, limit: int) -> Policy:
    changed: Policy = _replaced(policy, limit)
    return changed
