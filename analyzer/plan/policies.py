"""Policies as values: how much a series may use in a window, and what happens beyond it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Literal, Protocol

import msgspec

from analyzer.plan.groupings import BY_RESOURCE
from analyzer.plan.mapping import Pattern
from analyzer.plan.meter_units import UNLIMITED, Unit
from analyzer.plan.patterns import TextTest, compile_pattern
from analyzer.plan.sums import NEVER
from analyzer.plan.windows import DAY_S, Calendar, Rolling
from gatekeeper.model import Rate

NO_UNIT = msgspec.UNSET  # of a meter of whole numbers
NO_OTHER_LIMITS = msgspec.UNSET  # of a policy with one limit for all
IN_FORCE = msgspec.UNSET  # the mode of a policy whose locks gates get
LockActionName = Literal["deny", "slow", "tag"]
ActionName = LockActionName | Literal["notify"]  # "notify": notices, and no locks
UNSTATED_BRAKE = msgspec.UNSET  # of a policy with the default one
SHADOW = "shadow"  # the action of the locks of a policy in this mode
CANDIDATE = "/candidate"  # behind the name of a policy, in the name of its candidate
SubjectKind = Literal["caller", "tenant", "address"]
OverrideKind = Literal["limit", "grant", "exempt"]


class Brake(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The most that a policy may begin to lock in an interval. All zero: no bound."""

    callers: int = 0  # series; 0: any number
    traffic: int = 0  # millionths of all requests that the series make; 0: any part
    per_s: int = 300


# Of a policy that states none, in its first day alone.
DEFAULT_BRAKE = Brake(callers=1_000)


class Policy(Protocol):
    """The part that all kinds of policy share. A kind is a frozen Struct, because the plan stores it."""

    kind: ClassVar[str]

    @property
    def name(self) -> str: ...

    @property
    def per(self) -> str:
        """The grouping whose series are judged."""

    @property
    def limit(self) -> int: ...

    @property
    def meter(self) -> str: ...

    @property
    def meter_unit(self) -> Unit | None:
        """The unit of the meter; None for whole numbers."""

    @property
    def meter_join(self) -> str:
        """The join of the meter, a key of JOINS."""

    @property
    def action(self) -> ActionName: ...

    @property
    def status(self) -> int: ...

    @property
    def on_stale(self) -> Literal["keep", "allow"]: ...

    @property
    def slow(self) -> Rate | None:
        """The rate that each gate admits, where the action is "slow"."""

    @property
    def is_shadow(self) -> bool:
        """Whether no gate gets its locks."""

    @property
    def groupings(self) -> frozenset[str]:
        """The groupings that must be counted to judge it: `per`, and that of the whole."""

    @property
    def brake(self) -> Brake | msgspec.UnsetType:
        """The bound of its new locks; absent where it states none."""


class Enforced(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of policies of every kind about their series and their locks."""

    kind: ClassVar[str]

    meter: str = "requests"
    per: str = "caller"  # a grouping
    action: ActionName = "deny"
    status: int = 429
    on_stale: Literal["keep", "allow"] = "keep"
    slow: Rate | None = None  # admitted by each gate, where the action is "slow"
    # What the meter adds up, for display. Absent from the stored plan for whole numbers: plans of earlier
    # versions stay equal to today's.
    unit: Unit | msgspec.UnsetType = NO_UNIT
    # Limits of callers by their plan, instead of `limit`. Absent from the stored plan where there are none.
    plan_limits: tuple[tuple[str, int], ...] | msgspec.UnsetType = msgspec.UNSET
    # Limits of series by their resource, instead of `limit`: globs, of which the first that matches holds.
    # Absent where there are none.
    route_limits: tuple[tuple[str, int], ...] | msgspec.UnsetType = msgspec.UNSET
    join: str | msgspec.UnsetType = msgspec.UNSET  # that of the meter, a key of JOINS; absent: a sum
    mode: Literal["shadow"] | msgspec.UnsetType = msgspec.UNSET  # absent: its locks are enforced
    brake: Brake | msgspec.UnsetType = msgspec.UNSET  # absent: DEFAULT_BRAKE

    @property
    def is_shadow(self) -> bool:
        """Whether no gate gets its locks."""
        return self.mode == SHADOW

    @property
    def groupings(self) -> frozenset[str]:
        """The groupings that must be counted to judge it: `per`, and that of the whole."""
        return frozenset((self.per,))

    @property
    def meter_join(self) -> str:
        """The join of the meter, a key of JOINS."""
        return "sum" if isinstance(self.join, msgspec.UnsetType) else self.join

    @property
    def meter_unit(self) -> Unit | None:
        """The unit of the meter; None for whole numbers."""
        return None if isinstance(self.unit, msgspec.UnsetType) else self.unit


class Grace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The distance from a limit to the lock: an amount, or a time after the limit was reached."""

    thousandths: int = 0  # of the limit
    amount: int = 0
    time_s: int = 0


NO_GRACE = Grace()


class Limited(Enforced, frozen=True):
    """The part of quotas about their limit."""

    name: str
    limit: int


class WithThresholds(Limited, frozen=True, kw_only=True):
    """The part of quotas about notices, and about the distance from the limit to the lock."""

    # Thousandths of the limit, ascending, at which a notice is raised. Absent from the stored plan where
    # there are none, as the grace is: versions that do not know them for this kind of window refuse the plan.
    notify: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    grace: Grace | msgspec.UnsetType = msgspec.UNSET

    @property
    def thresholds(self) -> tuple[int, ...]:
        """Thousandths of the limit at which a notice is raised, ascending."""
        if not self.limit:  # nothing is allowed, from the first request on
            return ()
        fractions = () if isinstance(self.notify, msgspec.UnsetType) else self.notify
        # The time of this notice tells since when the limit is reached.
        needs_limit = self.action == "notify" and not fractions
        needs_limit = needs_limit or bool(self.grace_given.time_s)
        return tuple(sorted({*fractions, 1_000})) if needs_limit else fractions

    @property
    def grace_given(self) -> Grace:
        return NO_GRACE if isinstance(self.grace, msgspec.UnsetType) else self.grace

    @property
    def locks_at(self) -> int:
        """The value of the total from which on a lock is raised, at once or after the time of grace.

        Beyond any total for a policy without locks, and without a limit. 0 where nothing is allowed: there is
        no grace from a limit of 0.
        """
        if self.action == "notify" or self.limit >= UNLIMITED:
            return NEVER
        if not self.limit:
            return 0
        grace = self.grace_given
        beyond = grace.amount - (-self.limit * grace.thousandths // 1_000)
        return min(self.limit + beyond, NEVER)


class Quota(WithThresholds, frozen=True):
    """At most `limit` of a meter per series and calendar window; beyond it, a lock until the window ends."""

    kind: ClassVar[str] = "quota"

    window: Calendar


class RollingQuota(WithThresholds, frozen=True):
    """At most `limit` of a meter per series in any `window`; beyond it, a lock until less is in the window.

    A separate kind in stored plans, because analyzers that know calendar windows alone must refuse it.
    """

    kind: ClassVar[str] = "rolling-quota"

    window: Rolling


class Surge(Enforced, frozen=True):
    """At most `limit` of a meter per series in any `window`; beyond it, a lock of a duration that escalates.

    With a `share`, a series may have more than `limit` while that is at most this part of its meter `base`.

    The n-th offence in a row earns the n-th duration, and the last one from then on. An offence is forgotten
    `forget_after_s` after its lock has ended.
    """

    kind: ClassVar[str] = "surge"

    name: str
    limit: int
    window: Rolling
    lock_for_s: tuple[int, ...] = (600,)
    forget_after_s: int = 7 * DAY_S
    # From the limit on, the largest share of another meter of the series, in millionths. Absent from the
    # stored plan where there is none: versions that would lock by the limit alone refuse the plan.
    share: int | msgspec.UnsetType = msgspec.UNSET
    base: str | msgspec.UnsetType = msgspec.UNSET


class StatedOverride(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An override that the configuration states, and that is a part of the plan; times in seconds UTC."""

    kind: OverrideKind
    subject_kind: SubjectKind
    subject: str
    policy: str = ""  # "": an exemption from all policies
    amount: int = 0
    from_s: int | None = None
    until_s: int | None = None
    reason: str = ""

    @property
    def digest(self) -> str:
        """The digest of all but its reason, by which it is recognised in the next plan."""
        return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(self, reason=""))).hexdigest()


class ComparedLoad(Enforced, frozen=True):
    """The part of policies about noisy neighbours: series whose load the warden compares once it is `floor`.

    `per` is the grouping of the series, by resource where their whole is a resource. A series must be over
    the policy's mark for `hold_s` before it is locked, and below `release` before it is unlocked.
    """

    name: str
    limit: int
    floor: int  # of the meter, in a window
    window: Rolling
    hold_s: int = 60
    release: int = 0  # in millionths

    @property
    def whole(self) -> str:
        """The grouping of the whole: the resource of the series, or everyone."""
        return "resource" if self.per.endswith(BY_RESOURCE) else "everyone"

    @property
    def groupings(self) -> frozenset[str]:
        """The groupings that must be counted to judge it: `per`, and that of the whole."""
        return frozenset((self.per, self.whole))


class LoadShare(ComparedLoad, frozen=True):
    """At most a share of what a resource, or everyone, has in any `window`.

    `limit` and `release` are millionths of the whole.
    """

    kind: ClassVar[str] = "share"


class CapacityShare(ComparedLoad, frozen=True):
    """At most the capacity of a resource, or of everyone, in any `window`; else the heaviest are locked.

    `limit` is the capacity, of the meter in a window, for resources that `capacities` does not name; 0: none.
    `release` is in millionths of the capacity.
    """

    kind: ClassVar[str] = "capacity-share"

    capacities: tuple[tuple[str, int], ...] = ()  # by resource


class UsualShare(ComparedLoad, frozen=True):
    """At most a multiple of the series' own usual load at this hour of the week, in any `window`.

    `limit` is the multiple in thousandths; `release` is in millionths of the multiple.
    """

    kind: ClassVar[str] = "usual-share"


POLICY_CLASSES: Mapping[str, type[Policy]] = {  # by the name in stored plans
    policy.kind: policy for policy in (Quota, RollingQuota, Surge, LoadShare, CapacityShare, UsualShare)
}


@lru_cache(maxsize=1 << 16)  # each judgement asks, for a few values
def _replaced(policy: Any, name: str, value: Any) -> Any:
    return msgspec.structs.replace(policy, **{name: value})


def with_value(policy: Policy, name: str, value: object) -> Policy:
    """Returns the policy with another value of one of its fields."""
    kind: Any = policy  # each is a frozen Struct
    changed: Policy = _replaced(kind, name, value)
    return changed


def with_limit(policy: Policy, limit: int) -> Policy:
    """Returns the policy with another limit of series without a separate one."""
    return with_value(policy, "limit", limit)


def limits_by_route(policy: Policy) -> Sequence[tuple[str, int]]:
    """Returns the limits of series by globs of their resource; empty where all have one limit."""
    limits = getattr(policy, "route_limits", msgspec.UNSET)
    return () if isinstance(limits, msgspec.UnsetType) else limits


def route_variants(policy: Policy) -> Sequence[Policy]:
    """Returns the policy as it is for each limit by resource: itself alone, if it has none."""
    return [policy, *(with_limit(policy, limit) for _, limit in limits_by_route(policy))]


def for_resource(policy: Policy, resource: str) -> Policy:
    """Returns the policy with the limit of series with a resource.

    >>> from analyzer.plan.windows import Calendar
    >>> policy = Quota("routes", 9, Calendar("day"), route_limits=(("/v1/export", 1), ("/v1/*", 5)))
    >>> [for_resource(policy, route).limit for route in ("/v1/export", "/v1/items", "/v2")]
    [1, 5, 9]
    """
    limits = limits_by_route(policy)
    return with_limit(policy, _route_limit(limits, resource, policy.limit)) if limits else policy


@lru_cache(maxsize=1 << 14)
def _route_limit(limits: Sequence[tuple[str, int]], resource: str, otherwise: int) -> int:
    matching = (limit for glob, limit in limits if _glob_test(glob)(resource))
    return next(matching, otherwise)


@lru_cache(maxsize=1 << 10)
def _glob_test(glob: str) -> TextTest:
    return compile_pattern(Pattern("glob", glob))


def limits_by_plan(policy: Policy) -> Mapping[str, int]:
    """Returns the limits of callers, or of tenants, by their plan; empty where all have one limit."""
    limits = getattr(policy, "plan_limits", msgspec.UNSET)
    return {} if isinstance(limits, msgspec.UnsetType) else dict(limits)


def stated_name(policy: str) -> str:
    """Returns the name in the configuration, which a policy shares with its periods and its candidate.

    >>> stated_name("api/month"), stated_name("daily/candidate"), stated_name("daily")
    ('api', 'daily', 'daily')
    """
    return policy.partition("/")[0]


def base_name(policy: str) -> str:
    """Returns the name that overrides use for a policy: of a candidate that of its policy.

    >>> base_name("daily/candidate"), base_name("daily")
    ('daily', 'daily')
    """
    return policy.removesuffix(CANDIDATE)
