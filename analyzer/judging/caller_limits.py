"""The limits of each series, and its windows: by plan, zone and anchor of its caller or tenant, by overrides.

A policy has a limit, and may have others for the plans that callers are sold. Its calendar may be that of
each caller, or of each tenant. The directory says which caller and which tenant has which plan, zone and
anchor, and which have an override. A caller without a plan has that of its tenant.
`Limits` joins both: the policies as they apply to one series. Kinds judge such a policy like any other, so
that locks and sentences name the limit and the window of this caller.

The directory depends on no clock: an override begins and ends when the warden says so in the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from functools import lru_cache
from ipaddress import ip_network
from typing import Any, NamedTuple

import msgspec

from analyzer.judging.kinds import policy_kind
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.totals import Standing
from analyzer.plan.groupings import Grouping, parse_grouping
from analyzer.plan.mapping import TENANT
from analyzer.plan.meter_units import UNLIMITED
from analyzer.plan.plan import Plan
from analyzer.plan.policies import (
    OverrideKind,
    Policy,
    SubjectKind,
    base_name,
    for_resource,
    limits_by_plan,
    limits_by_route,
    route_variants,
    with_limit,
    with_value,
)
from analyzer.plan.sums import NEVER, Sum
from analyzer.plan.windows import Calendar, Window, Windows, is_zone, window_at

ADDRESS = "address:"  # beginning of the names of callers that are known by their address
LIMIT_MAX = UNLIMITED - 1
KEYS_CACHED = 1 << 16


class Subject(NamedTuple):
    """The callers that an override is for: one, those of a tenant, or those of an address or range."""

    kind: SubjectKind
    name: str


class Profile(NamedTuple):
    """Facts about one caller; "" for those that are not stated."""

    plan: str = ""
    tenant: str = ""
    zone: str = ""  # the name of a time zone
    anchor: str = ""  # the day of the subscription: 2026-01-31


class Group(NamedTuple):
    """Callers with one plan and one tenant."""

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


def fact_name(grouping: Grouping, key: str) -> str:
    """Returns the name under which facts about a series of callers or of tenants stand.

    >>> fact_name(parse_grouping("tenant"), "acme"), fact_name(parse_grouping("caller"), "api_key:acme")
    ('tenant:acme', 'api_key:acme')
    """
    return TENANT + key if grouping.has_facts and not grouping.is_of_callers else key


def subject_named(name: str) -> Subject:
    """Returns whom a name stands for.

    >>> subject_named("tenant:acme"), subject_named("api_key:acme")
    (Subject(kind='tenant', name='acme'), Subject(kind='caller', name='api_key:acme'))
    """
    is_tenant = name.startswith(TENANT)
    return Subject("tenant" if is_tenant else "caller", name.removeprefix(TENANT))


NO_PROFILE = Profile()
NO_GROUP = Group()
# A caller in memory is a number: those of its tenant and its plan, and its clock, which is the number of its
# zone, the day of the week, the month and the day of its anchor. 0 stands for a caller without any facts.
# A plan beyond 65,535 others is none, and so is a zone beyond 4,095: tenants have no bound.
DAY_BITS, MONTH_BITS, WEEKDAY_BITS, ZONE_BITS, PLAN_BITS = 5, 4, 3, 12, 16
ANCHOR_BITS = DAY_BITS + MONTH_BITS + WEEKDAY_BITS
CLOCK_BITS = ANCHOR_BITS + ZONE_BITS
CLOCK = (1 << CLOCK_BITS) - 1
SHARED_MAX = 1 << 16  # numbers of which equal ones are one object


class NumberedNames:
    """Numbers that stand for names, from 0 for the empty one, which also stands for those beyond `most`."""

    def __init__(self, most: int | None = None) -> None:
        self.names = [""]
        self._numbers = {"": 0}
        self._most = most

    def number(self, name: str) -> int:
        """Returns the number of a name, a new one for a name that has none."""
        number = self._numbers.get(name)
        if number is None:
            if self._most is not None and len(self.names) >= self._most:
                return 0
            number = self._numbers[name] = len(self.names)
            self.names.append(name)
        return number


class Directory:
    """Facts about callers, and the overrides in force by their subject and id. Changed in place."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}  # by caller
        self.overrides: dict[Subject, dict[str, Override]] = {}
        self._plans, self._tenants, self._zones = (
            NumberedNames(1 << PLAN_BITS),
            NumberedNames(),
            NumberedNames(1 << ZONE_BITS),
        )
        self._shared: dict[int, int] = {}

    def set_profile(self, caller: str, profile: Profile) -> None:
        """Stores the facts about a caller or a tenant, which has no tenant.

        A zone that this machine does not know is none.
        """
        zone = profile.zone if is_zone(profile.zone) else ""
        tenant = "" if caller.startswith(TENANT) else profile.tenant
        group = self._tenants.number(tenant) << PLAN_BITS | self._plans.number(profile.plan)
        number = group << CLOCK_BITS | self._zones.number(zone) << ANCHOR_BITS
        if profile.anchor:
            day = date.fromisoformat(profile.anchor)
            number |= (day.weekday() << MONTH_BITS | day.month - 1) << DAY_BITS | day.day - 1
        if not number:
            self.numbers.pop(caller, None)
            return
        if len(self._shared) < SHARED_MAX:
            self._shared.setdefault(number, number)
        self.numbers[caller] = self._shared.get(number, number)

    def caller_group(self, caller: str) -> Group:
        """Returns the plan and the tenant of a caller, or the plan of a tenant."""
        return self.group_named(self.numbers.get(caller, 0) >> CLOCK_BITS)

    def group_named(self, group: int) -> Group:
        """Returns the plan and the tenant that a caller's number has above its clock."""
        tenant = self._tenants.names[group >> PLAN_BITS]
        plan = group & (1 << PLAN_BITS) - 1
        if not plan and tenant:
            plan = self.numbers.get(TENANT + tenant, 0) >> CLOCK_BITS & (1 << PLAN_BITS) - 1
        return Group(self._plans.names[plan], tenant)

    @property
    def tenants(self) -> set[str]:
        """The tenants that any caller has had."""
        return {*self._tenants.names} - {""}

    def own_calendar(self, calendar: Calendar, clock: int) -> Calendar:
        """Returns the calendar of callers with this clock, by the one of a policy."""
        facts, zone = calendar.facts, self._zones.names[clock >> ANCHOR_BITS]
        first_day: int | msgspec.UnsetType = msgspec.UNSET
        weekday = clock >> (DAY_BITS + MONTH_BITS) & (1 << WEEKDAY_BITS) - 1
        month, day = (clock >> DAY_BITS & (1 << MONTH_BITS) - 1) + 1, (clock & (1 << DAY_BITS) - 1) + 1
        if "anchor" in facts and calendar.per == "week" and weekday:
            first_day = weekday
        if "anchor" in facts and calendar.per == "month" and day > 1:
            first_day = day
        if "anchor" in facts and calendar.per == "year" and (month, day) != (1, 1):
            first_day = month * 100 + day
        return Calendar(
            calendar.per, zone if zone and "zone" in facts else calendar.zone, first_day=first_day
        )

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
        self._exempt_ranges = ExemptRanges(
            subject.name
            for subject, overrides in directory.overrides.items()
            if subject.kind == "address" and any(override.kind == "exempt" for override in overrides.values())
        )
        self._named = {
            name for overrides in directory.overrides.values() for name in _policies(overrides.values())
        }
        self._subjects: dict[SubjectKind, set[str]] = {"caller": set(), "tenant": set()}
        for subject in directory.overrides:
            self._subjects.setdefault(subject.kind, set()).add(subject.name)
        # Most series have no override: what applies to them depends on the caller's plan alone, and on the
        # tenant where that has overrides.
        self._thresholds: dict[tuple[Sum, Group], Sequence[int]] = {}
        self._has_own: dict[Sum, bool] = {}
        self._calendars: dict[tuple[Calendar, int], Calendar] = {}  # by that of the policy and the clock
        self._windows: dict[tuple[Calendar, int], Window] = {}  # those that were asked for last

    def policy_for(self, policy: Policy, key: str, resource: str = "") -> Policy | None:
        """Returns the policy with the limit and the calendar of a series; None if none limits it."""
        own = self.of_key(policy, key)
        own = None if own is None else for_resource(own, resource)
        return None if own is None or _is_unlimited(own) else own

    def of_key(self, policy: Policy, key: str) -> Policy | None:
        """Returns the policy with limits and calendar of series `key`, by resource as it states them.

        Without a limit it has UNLIMITED. None for a key that is exempt.
        """
        grouping = parse_grouping(policy.per)
        if self._is_exempt_address(grouping, key):
            return None
        group = self._group(grouping, key)
        subjects = self._override_subjects(grouping, key, group)
        return self._with_overrides(self._in_own_calendar(policy, key), group.plan, subjects)

    def _with_overrides(self, policy: Policy, plan: str, subjects: Iterable[Subject]) -> Policy | None:
        """Returns the policy for callers with a plan and the overrides of `subjects`; None: exempt."""
        of_plan = self._of_plan(policy, plan)
        overrides = [
            override for override in self._overrides(subjects) if override.is_for(base_name(policy.name))
        ]
        if any(override.kind == "exempt" for override in overrides):
            return None
        if not overrides or policy_kind(policy).whole_sum is not None:
            return of_plan  # only amounts can be granted, not shares of a whole
        # The caller's own override comes before its tenant's.
        limit = next(
            (override.amount for override in overrides if override.kind == "limit"), _plan_limit(of_plan)
        )
        granted = sum(override.amount for override in overrides if override.kind == "grant")
        own = with_limit(policy, _more(limit, granted))
        if not (routes := limits_by_route(policy)):
            return own
        is_replaced = any(override.kind == "limit" for override in overrides)  # on every route
        routes = () if is_replaced else tuple((glob, _more(limit, granted)) for glob, limit in routes)
        return with_value(own, "route_limits", routes or msgspec.UNSET)

    def refuses(self, sum_: Sum, key: str) -> bool:
        """Whether a policy of the sum allows `key` nothing: its lock needs no total."""
        policies = plan_sums(self._plan).policies_by_sum[sum_]
        return parse_grouping(sum_.grouping).is_of_subjects and any(
            is_refused(self.policy_for(policy, key)) for policy in policies
        )

    def series_thresholds(self, sum_: Sum, key: str) -> Sequence[int]:
        """Returns the values of the sum at which one of its policies must be judged for `key`, ascending."""
        if not self.has_own(sum_):
            return plan_sums(self._plan).thresholds_by_sum[sum_]
        grouping = parse_grouping(sum_.grouping)
        if key in self._with_override(grouping) or self._is_exempt_address(grouping, key):
            policies = (self.of_key(policy, key) for policy in plan_sums(self._plan).policies_by_sum[sum_])
            return _thresholds(policies)
        return self._thresholds_of_group(sum_, self._group(grouping, key))

    def _thresholds_of_group(self, sum_: Sum, group: Group) -> Sequence[int]:
        """Returns the thresholds of all series of a group that have no override by their own name."""
        if group.tenant not in self._subjects["tenant"]:
            group = Group(group.plan)
        thresholds = self._thresholds.get((sum_, group))
        if thresholds is None:
            subjects = [Subject("tenant", group.tenant)]
            policies = (
                self._with_overrides(policy, group.plan, subjects)
                for policy in plan_sums(self._plan).policies_by_sum[sum_]
            )
            thresholds = self._thresholds[sum_, group] = _thresholds(policies)
        return thresholds

    def _with_override(self, grouping: Grouping) -> set[str] | frozenset[str]:
        """Returns the keys of a grouping that an override names."""
        if grouping.is_of_callers:
            return self._subjects["caller"]
        return self._subjects["tenant"] if grouping.scope == "tenant" else frozenset()

    def largest_threshold(self, sum_: Sum, key: str) -> int:
        """Returns the largest value at which one of the sum's policies must be judged for `key`.

        Of a series that is exempt that of all others: the exemption may end within the window.
        """
        return max(self.series_thresholds(sum_, key) or plan_sums(self._plan).thresholds_by_sum[sum_])

    def has_own(self, sum_: Sum) -> bool:
        """Whether any series of a sum may have another limit than the policies state."""
        answer = self._has_own.get(sum_)
        if answer is None:
            policies = plan_sums(self._plan).policies_by_sum[sum_]
            names = {"", *(base_name(policy.name) for policy in policies)}
            has_plans = bool(self._directory.numbers) and any(map(limits_by_plan, policies))
            answer = self._has_own[sum_] = has_plans or bool(self._named & names)
        return answer

    def first_judgements(self, sum_: Sum, keys: Sequence[str]) -> int | list[int]:
        """Returns the least value at which new totals must be judged: one for all, or one for each key.

        Addresses in exempt ranges have that of all others: their totals are judged once, and then have no
        `next` any more.
        """
        if not self.has_own(sum_) or not _is_known(sum_):
            return plan_sums(self._plan).first_judgement(sum_)
        grouping, numbers = parse_grouping(sum_.grouping), self._directory.numbers
        first: int | list[int]
        # The usual case, for ten thousand keys: their groups decide, and there are few.
        if numbers and grouping.has_facts:
            get, names = numbers.get, self._directory.group_named
            groups = [get(name, 0) >> CLOCK_BITS for name in self._fact_names(grouping, keys)]
            of_group = {group: _first(self._thresholds_of_group(sum_, names(group))) for group in {*groups}}
            first = [of_group[group] for group in groups]
        else:
            first = _first(self._thresholds_of_group(sum_, NO_GROUP))
        overridden = self._with_override(grouping)
        if own := overridden.intersection(keys):
            first = [first] * len(keys) if isinstance(first, int) else first
            for index, key in enumerate(keys):
                if key in own:
                    first[index] = _first(self.series_thresholds(sum_, key))
        if isinstance(first, int) or len({*first}) > 1:
            return first
        return first[0]

    def next_judgement(self, standing: Standing, now_s: float) -> int:
        """Returns the least value at which the total must be judged again: see `PlanSums.next_judgement`."""
        total = standing.total
        if not self.has_own(total.sum):
            return plan_sums(self._plan).next_judgement(standing, now_s)
        own = (
            self.policy_for(policy, total.key, total.resource)
            for policy in plan_sums(self._plan).policies_by_sum[total.sum]
        )
        policies = (policy for policy in own if policy is not None)
        thresholds = self.series_thresholds(total.sum, total.key)
        return plan_sums(self._plan).next_judgement(standing, now_s, thresholds, policies)

    def series_window(self, sum_: Sum, key: str, at_s: int) -> Window:
        """Returns the window of a series' total that holds `at_s`."""
        if not isinstance(sum_.window, Calendar) or not sum_.window.facts:
            return window_at(sum_.window, at_s)
        return self._window(sum_.window, self._clock(sum_.grouping, key), at_s)

    def calendar_for(self, sum_: Sum, key: str) -> Windows:
        """Returns the windows of a sum as the series `key` has them."""
        if not isinstance(sum_.window, Calendar) or not sum_.window.facts:
            return sum_.window
        return self._calendar(sum_.window, self._clock(sum_.grouping, key))

    def window_starts(self, sum_: Sum, keys: Sequence[str], times_s: Sequence[int]) -> list[int]:
        """Returns the starts of the windows of totals, each for a series and a time.

        The windows of `sum_` are those of callers, or of tenants.
        """
        get, calendar = self._directory.numbers.get, sum_.window
        assert isinstance(calendar, Calendar)  # noqa: S101 - as promised
        cached: dict[tuple[int, int], int] = {}
        starts_s = []
        names = self._fact_names(parse_grouping(sum_.grouping), keys)
        for key, at_s in zip(names, times_s, strict=True):
            arguments = get(key, 0) & CLOCK, at_s
            start_s = cached.get(arguments)
            if start_s is None:
                start_s = cached[arguments] = self._window(calendar, *arguments).start_s
            starts_s.append(start_s)
        return starts_s

    def _window(self, calendar: Calendar, clock: int, at_s: int) -> Window:
        key = calendar, clock
        window = self._windows.get(key)
        if window is None or not window.start_s <= at_s < window.until_s:
            window = self._windows[key] = window_at(self._calendar(calendar, clock), at_s)
        return window

    def _calendar(self, calendar: Calendar, clock: int) -> Calendar:
        key = calendar, clock
        own = self._calendars.get(key)
        if own is None:
            own = self._calendars[key] = self._directory.own_calendar(calendar, clock)
        return own

    def _in_own_calendar(self, policy: Policy, key: str) -> Policy:
        window = getattr(policy, "window", None)
        if not isinstance(window, Calendar) or not window.facts:
            return policy
        return with_value(policy, "window", self._calendar(window, self._clock(policy.per, key)))

    def _of_plan(self, policy: Policy, plan: str) -> Policy:
        limits = limits_by_plan(policy)
        return with_limit(policy, limits[plan]) if plan in limits else policy

    def _group(self, grouping: Grouping, key: str) -> Group:
        return self._directory.caller_group(fact_name(grouping, key)) if grouping.has_facts else NO_GROUP

    def _clock(self, grouping: str, key: str) -> int:
        return self._directory.numbers.get(fact_name(parse_grouping(grouping), key), 0) & CLOCK

    def _fact_names(self, grouping: Grouping, keys: Sequence[str]) -> Sequence[str]:
        return keys if grouping.is_of_callers else [TENANT + key for key in keys]

    def _override_subjects(self, grouping: Grouping, key: str, group: Group) -> Sequence[Subject]:
        """Returns whose overrides a series has, its caller first."""
        if grouping.is_of_callers:
            return Subject("caller", key), Subject("tenant", group.tenant)
        return (Subject("tenant", key),) if grouping.scope == "tenant" else ()

    def _overrides(self, subjects: Iterable[Subject]) -> list[Override]:
        overrides = self._directory.overrides
        if not overrides:
            return []
        return [override for subject in subjects for override in _latest_first(overrides.get(subject, {}))]

    def _is_exempt_address(self, grouping: Grouping, key: str) -> bool:
        if grouping.is_of_callers:
            return key.startswith(ADDRESS) and self._exempt_ranges.has(key.removeprefix(ADDRESS))
        return grouping.scope in ("address", "range") and self._exempt_ranges.has(key)


class ExemptRanges:
    """Addresses and ranges that are exempt, looked up by the length of their prefix, however many there are.

    >>> ranges = ExemptRanges(["10.0.0.0/8", "2001:db8::1"])
    >>> [ranges.has(text) for text in ("10.1.2.3", "10.1.0.0/16", "11.0.0.0/8", "2001:db8::1", "acme")]
    [True, True, False, True, False]
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._starts: dict[tuple[int, int], set[int]] = {}  # of ranges, by their version and prefix length
        for text in texts:
            network = ip_network(text)
            key = network.version, network.prefixlen
            self._starts.setdefault(key, set()).add(int(network.network_address))
        self._lookups = lru_cache(KEYS_CACHED)(self._look_up)

    def has(self, text: str) -> bool:
        """Whether an address or range lies within one of these; False for any other text."""
        return bool(self._starts) and self._lookups(text)

    def _look_up(self, text: str) -> bool:
        try:
            network: Any = ip_network(text)
        except ValueError:
            return False
        start, longest = int(network.network_address), network.max_prefixlen
        return any(
            version == network.version
            and length <= network.prefixlen
            and start >> (longest - length) << (longest - length) in starts
            for (version, length), starts in self._starts.items()
        )


def is_refused(policy: Policy | None) -> bool:
    """Whether a series whose policy this is may not have one request: its lock needs no count."""
    return policy is not None and not policy.limit and 0 in policy_kind(policy).thresholds(policy)


def _more(limit: int, granted: int) -> int:
    return UNLIMITED if limit >= UNLIMITED else min(limit + granted, LIMIT_MAX)


def _is_unlimited(policy: Policy) -> bool:
    return policy.limit >= UNLIMITED


def _thresholds(policies: Iterable[Policy | None]) -> Sequence[int]:
    return sorted(
        {
            value
            for policy in policies
            if policy is not None
            for variant in route_variants(policy)
            if not _is_unlimited(variant)
            for value in policy_kind(policy).thresholds(variant)
        }
    )


def _first(thresholds: Sequence[int]) -> int:
    return next(iter(thresholds), NEVER)


def _is_known(sum_: Sum) -> bool:
    """Whether a new total holds all that its window holds; else it is judged as soon as it grows."""
    return isinstance(sum_.window, Calendar) or sum_.window.has_slots


def _latest_first(overrides: Mapping[str, Override]) -> list[Override]:
    if len(overrides) < 2:
        return list(overrides.values())
    in_order = sorted(overrides.items(), key=lambda item: (item[1].from_ms, item[0]), reverse=True)
    return [override for _, override in in_order]


def _policies(overrides: Iterable[Override]) -> set[str]:
    return {override.policy for override in overrides}


def _plan_limit(policy: Any) -> int:
    return int(policy.limit)
