"""`[[policies]]`: a table for each kind of policy, with the keys that this kind has.

Each names the settings in which its candidates may differ, and makes the policy that is stored and judged.
What is checked between tables stands by kind in `config.kind_checks.KIND_CHECKS`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from analyzer.config.tables import ConfigTable
from analyzer.config.tables.actions import Action, LockAction
from analyzer.config.tables.named_values import JudgedGroupingName
from analyzer.config.tables.policy_values import (
    LimitReadings,
    PolicyLimit,
    WindowTable,
    brake_of_table,
    durations,
    grace_of_limit,
    in_unit,
    limits_of_periods,
    part_limit,
    policy_limit,
    thresholds_of_limit,
)
from analyzer.config.tables.shares import (
    Capacity,
    LoadRate,
    WholeName,
    capacity_of_resources,
    judged_grouping,
    load_rate,
    multiple,
    part_of_whole,
)
from analyzer.config.values import (
    ConditionTable,
    Name,
    closest,
    duration_between,
    format_duration,
    integer_between,
    known_word,
    known_words,
    whole_seconds,
)
from analyzer.kernel.refused_values import raise_fault
from analyzer.plan.derived_meters import derived_name
from analyzer.plan.groupings import RESOURCE, parse_grouping
from analyzer.plan.mapping import Condition
from analyzer.plan.meter_units import Unit
from analyzer.plan.policies import (
    CANDIDATE,
    IN_FORCE,
    NO_OTHER_LIMITS,
    NO_UNIT,
    SHADOW,
    UNSTATED_BRAKE,
    Brake,
    CapacityShare,
    Grace,
    LoadShare,
    Policy,
    Quota,
    RollingQuota,
    Surge,
    UsualShare,
)
from analyzer.plan.windows import ANCHORED, DAY_S, HOUR_S, PeriodName, Rolling

SURGE_S_MAX = HOUR_S  # longest window of a surge
SHARE_S = (10, HOUR_S)  # shortest and longest window of a share
RELEASE = 750_000  # millionths: where a lock of a share ends, of what it compares with
HISTORY_S = 40 * DAY_S  # of the locks, by which offences are counted
OnStale = Literal["keep", "allow"]
PolicyMode = Literal["enforce", "shadow"]
Limit = Annotated[PolicyLimit, BeforeValidator(policy_limit)]
LimitsOfPeriods = Annotated[Mapping[PeriodName, PolicyLimit], BeforeValidator(limits_of_periods)]
PartLimit = Annotated[PolicyLimit, BeforeValidator(part_limit)]
GraceOfLimit = Annotated[Grace, PlainValidator(grace_of_limit)]
LockTimes = Annotated[tuple[int, ...], BeforeValidator(durations)]
ForgetAfter = Annotated[float, duration_between(60, HISTORY_S)]
ShareCapacity = Annotated[Capacity, PlainValidator(capacity_of_resources)]
Multiple = Annotated[int, PlainValidator(multiple)]
Floor = Annotated[LoadRate, PlainValidator(load_rate)]
HoldTime = Annotated[int, BeforeValidator(lambda value: whole_seconds(value, 0, HOUR_S))]
PartOfWhole = Annotated[int, BeforeValidator(part_of_whole)]
KindName = Annotated[str, BeforeValidator(lambda value: known_word(value, tuple(POLICY_TABLES)))]


class CandidateTable(ConfigTable):
    """The settings in which a candidate differs from the policy beside which it is judged."""

    limit: Limit = Field(default_factory=PolicyLimit)
    window: WindowTable | None = None

    @model_validator(mode="after")
    def _differs(self) -> Self:
        if not self.model_fields_set:
            raise_fault("states nothing in which it differs", "write candidate = { limit = 300 }")
        return self


class QuotaCandidate(CandidateTable):
    """The settings of a candidate of a quota."""

    grace: GraceOfLimit | None = None


class SurgeCandidate(CandidateTable):
    """The settings of a candidate of a surge."""

    lock_for: LockTimes = (600,)
    forget_after: ForgetAfter = 7.0 * DAY_S


class ShareCandidate(CandidateTable):
    """The settings of a candidate of a share."""

    limit: PartLimit = Field(default_factory=PolicyLimit)
    capacity: ShareCapacity | None = None
    usual: Multiple | None = None
    floor: Floor | None = None
    hold: HoldTime = 60
    release: PartOfWhole | None = None


class PolicyTable(ConfigTable):
    """The part of the tables of all kinds: the name, what is judged, what the lock does.

    Attributes:
        window_example: What to write where the window is missing.
        by_resource: What to write so that a lock is for one resource.
        has_caller_limits: Whether single callers can have another limit, by overrides.
        can_refuse: Whether a limit of 0 has a meaning: refused from the first request on.
        of_policy_alone: Keys that a candidate does not take from its policy.
        candidate_class: The class that reads the key `candidate`.
    """

    window_example: ClassVar[str] = 'window = { per = "day", zone = "UTC" }'
    by_resource: ClassVar[str] = 'per = "{per}+resource"'
    has_caller_limits: ClassVar[bool] = True
    can_refuse: ClassVar[bool] = False
    of_policy_alone: ClassVar[tuple[str, ...]] = ("candidate", "brake")
    candidate_class: ClassVar[type[CandidateTable]] = CandidateTable

    name: Name
    kind: KindName
    meter: Name = "requests"
    where: ConditionTable = Field(default_factory=dict)  # limits what the meter counts of these requests
    per: JudgedGroupingName = "caller"
    limit: Limit
    window: WindowTable
    action: Action = LockAction()
    status: Annotated[int, integer_between(400, 599)] = 429
    on_stale: Annotated[OnStale, known_words(OnStale)] = "keep"
    mode: Annotated[PolicyMode, known_words(PolicyMode)] = "enforce"
    candidate: CandidateTable | None = None
    brake: Annotated[Brake, PlainValidator(brake_of_table)] | None = None
    soft: bool = False

    @property
    def sets_no_lock(self) -> bool:
        return self.soft or self.action.does == "notify"

    @property
    def is_complete(self) -> bool:
        """Whether `policy` may be called; a required key that depends on another may be missing."""
        return True

    @property
    def of_periods(self) -> Sequence[Self]:
        """The tables of which each states one policy: this one, or one for each period of `limits`."""
        return [self]

    @property
    def stated(self) -> Sequence[Self]:
        """The policies that this table states: one, that and its candidate, or one for each period."""
        return [policy for table in self.of_periods for policy in table.with_candidate]

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions of `where`, all of which must hold."""
        return tuple(values.condition(name) for name, values in self.where.items())

    @property
    def counted_meter(self) -> str:
        """The name of the meter that is limited: with `where` the one that is derived from `meter`."""
        return derived_name(self.meter, self.conditions) if self.where else self.meter

    @property
    def with_candidate(self) -> Sequence[Self]:
        """The policy of this table, and its candidate if it has one."""
        if self.candidate is None:
            return [self]
        changed = dict.fromkeys(self.of_policy_alone) | {"name": self.name + CANDIDATE, "mode": SHADOW}
        written = self._written(self.candidate)
        changed |= written
        values = {name: getattr(self, name) for name in type(self).model_fields} | changed
        fields_set = (self.model_fields_set - changed.keys()) | written.keys()
        return [self, self.model_construct(_fields_set=fields_set, **values)]

    def _written(self, candidate: CandidateTable) -> dict[str, Any]:
        """Returns the settings of a candidate."""
        written = {name: getattr(candidate, name) for name in candidate.model_fields_set}
        if "limit" in written and not (candidate.limit.by_plan or candidate.limit.by_route):
            # One number is that of all others: those with a plan, and on a route, keep what they have.
            by_plan, by_route = self.limit.by_plan, self.limit.by_route
            written["limit"] = candidate.limit._replace(by_plan=by_plan, by_route=by_route)
        return written

    @abstractmethod
    def policy(self, unit: Unit | None = None) -> Policy:
        """Returns the policy that is stored and judged; `unit` is that of its meter."""

    def remarks(self) -> Iterator[str]:
        """Yields sentences about settings that are valid and may not be meant."""
        grouping = parse_grouping(self.policy().per)
        is_of_a_client = grouping.key is not None and RESOURCE not in grouping.dimensions
        if RESOURCE.field in self.where and is_of_a_client and not self.sets_no_lock:
            yield (
                f"{self.name}: where is on the resource, and the lock on all resources of {grouping.phrase}; "
                "to lock a resource alone, with the limit for each, write "
                f"{self.by_resource.format(per=self.per)}"
            )

    def enforced(self, unit: Unit | None) -> dict[str, Any]:
        """Returns what the stored policies of all kinds have."""
        return {
            "name": self.name,
            "limit": in_unit(self.limit.stated, unit) if self.limit.stated else 0,
            "plan_limits": _in_units(sorted(self.limit.by_plan.items()), unit),
            "route_limits": _in_units(self.limit.by_route.items(), unit),
            "window": self.window.windows,
            "meter": self.counted_meter,
            "per": self.per,
            "action": "notify" if self.soft else self.action.does,
            "status": self.action.status or self.status,
            "on_stale": self.on_stale,
            "slow": self.action.slow,
            "unit": NO_UNIT if unit is None else unit,
            "mode": SHADOW if self.mode == "shadow" else IN_FORCE,
            "brake": UNSTATED_BRAKE if self.brake is None else self.brake,
        }


def _in_units(limits: Iterable[tuple[str, LimitReadings]], unit: Unit | None) -> Any:
    """Returns other limits as they are stored; nothing where there are none."""
    return tuple((name, in_unit(limit, unit)) for name, limit in limits) or NO_OTHER_LIMITS


class QuotaTable(PolicyTable):
    """At most `limit` of a meter for each series of `per` in each window."""

    can_refuse: ClassVar[bool] = True
    of_policy_alone: ClassVar[tuple[str, ...]] = (*PolicyTable.of_policy_alone, "notify")
    candidate_class: ClassVar[type[CandidateTable]] = QuotaCandidate

    kind: KindName = "quota"
    limits: LimitsOfPeriods | None = None
    candidate: QuotaCandidate | None = None
    notify: Annotated[tuple[int, ...], BeforeValidator(thresholds_of_limit)] | None = None
    grace: GraceOfLimit | None = None

    @model_validator(mode="before")
    @classmethod
    def _first_of_limits(cls, table: object) -> object:
        """With `limits` the table has the limit of its first entry, and a period that stands for all."""
        if not isinstance(table, Mapping) or "limits" not in table:
            return table
        if "limit" in table:
            raise_fault("has limit and limits", "remove limit")
        window = table.get("window", {})
        if isinstance(window, Mapping) and window.keys() & {"per", "rolling", "from", "until"}:
            raise_fault("limits have the periods, and window has one, too", "leave zone and anchor in window")
        if "candidate" in table:
            raise_fault("limits have no candidate", 'write mode = "shadow" in another policy')
        limits = table["limits"]
        limit = next(iter(limits.values()), 1) if isinstance(limits, Mapping) else 1
        if isinstance(window, Mapping):
            window = {**window, "per": ANCHORED[0] if "anchor" in window else "day"}
        return {**table, "limit": limit, "window": window}

    @property
    def of_periods(self) -> Sequence[Self]:
        """The tables of which each states one policy: this one, or one for each period of `limits`."""
        return [self] if self.limits is None else [self._of_period(period) for period in self.limits]

    def _of_period(self, period: PeriodName) -> Self:
        assert self.limits is not None  # noqa: S101 - it is one of its periods
        anchor = self.window.anchor if period in ANCHORED else None
        window = self.window.model_copy(update={"per": period, "anchor": anchor})
        values = {name: getattr(self, name) for name in type(self).model_fields}
        values |= {"name": f"{self.name}/{period}", "limit": self.limits[period], "window": window}
        return self.model_construct(_fields_set=self.model_fields_set, **values)

    def policy(self, unit: Unit | None = None) -> Quota | RollingQuota:
        """Returns the quota that is stored and judged; `unit` is that of its meter."""
        values = self.enforced(unit)
        if self.notify:
            values["notify"] = self.notify
        if self.grace is not None:
            values["grace"] = self.grace
        return RollingQuota(**values) if isinstance(values["window"], Rolling) else Quota(**values)


class SurgeTable(PolicyTable):
    """At most `limit` of a meter for each series of `per` in a short window; a lock that escalates."""

    window_example: ClassVar[str] = 'window = { rolling = "1m" }'
    candidate_class: ClassVar[type[CandidateTable]] = SurgeCandidate

    kind: KindName = "surge"
    candidate: SurgeCandidate | None = None
    lock_for: LockTimes = (600,)
    forget_after: ForgetAfter = 7.0 * DAY_S
    share: PartOfWhole | None = None
    share_of: Name = "requests"

    def policy(self, unit: Unit | None = None) -> Surge:
        """Returns the surge that is stored and judged; `unit` is that of its meter."""
        values = self.enforced(unit)
        if self.share is not None:
            values |= {"share": self.share, "base": self.share_of}
        return Surge(**values, lock_for_s=self.lock_for, forget_after_s=int(self.forget_after))

    def remarks(self) -> Iterator[str]:
        """Yields a sentence if a later offence earns a shorter lock."""
        yield from super().remarks()
        falls = [(long, short) for long, short in pairwise(self.lock_for) if short < long]
        for long, short in falls[:1]:
            yield (
                f"{self.name}: lock_for falls from {format_duration(long)} to {format_duration(short)}: "
                "who offends again is locked for less time"
            )


class ShareTable(PolicyTable):
    """At most a part of the whole, a part of the capacity, or a multiple of the usual load."""

    window_example: ClassVar[str] = 'window = { rolling = "1m" }'
    by_resource: ClassVar[str] = 'of = "resource"'
    has_caller_limits: ClassVar[bool] = False
    candidate_class: ClassVar[type[CandidateTable]] = ShareCandidate

    kind: KindName = "share"
    limit: PartLimit = Field(default_factory=PolicyLimit)
    candidate: ShareCandidate | None = None
    capacity: ShareCapacity | None = None
    usual: Multiple | None = None
    of: Annotated[WholeName, known_words(WholeName)] | None = None
    floor: Floor | None = None
    hold: HoldTime = 60
    release: PartOfWhole | None = None

    @property
    def is_complete(self) -> bool:
        """Whether `of`, `floor` and a rolling window are there."""
        return self.of is not None and self.floor is not None and self.window.rolling is not None

    def _written(self, candidate: CandidateTable) -> dict[str, Any]:
        """Returns the settings of a candidate; one capacity is that of resources without a separate one."""
        written = super()._written(candidate)
        capacity = written.get("capacity")
        if capacity is not None and self.capacity is not None and not capacity.by_resource:
            written["capacity"] = capacity._replace(by_resource=self.capacity.by_resource)
        return written

    def policy(self, unit: Unit | None = None) -> Policy:
        """Returns the share that is stored and judged; `unit` is that of its meter."""
        assert self.of is not None and self.floor is not None  # noqa: S101, PT018 - checks.py has checked it
        assert self.window.rolling is not None  # noqa: S101 - as above
        window_s, values = self.window.rolling, self.enforced(unit)
        limit = values["limit"]
        compared = {
            **values,
            "per": judged_grouping(self.per, self.of),
            "floor": self.floor.within(unit, window_s),
            "hold_s": self.hold,
        }
        if self.capacity is not None:
            overall, by_resource = self.capacity
            return CapacityShare(
                **compared | {"limit": 0 if overall is None else overall.within(unit, window_s)},
                release=RELEASE if self.release is None else self.release,
                capacities=tuple(
                    (name, rate.within(unit, window_s)) for name, rate in sorted(by_resource.items())
                ),
            )
        if self.usual is not None:
            release = RELEASE if self.release is None else self.release
            return UsualShare(**compared | {"limit": self.usual}, release=release)
        return LoadShare(**compared, release=limit * 3 // 4 if self.release is None else self.release)


DEFAULT_KIND = "quota"  # of a table without `kind`
POLICY_TABLES: dict[str, type[PolicyTable]] = {  # by the word in the file
    "quota": QuotaTable,
    "surge": SurgeTable,
    "share": ShareTable,
}


def table_class(table: object) -> type[PolicyTable]:
    """Returns the class that reads a table of [[policies]]; of an unknown kind that of the closest word."""
    kind = table.get("kind", DEFAULT_KIND) if isinstance(table, Mapping) else DEFAULT_KIND
    if not isinstance(kind, str):
        return POLICY_TABLES[DEFAULT_KIND]
    return POLICY_TABLES.get(kind) or POLICY_TABLES[closest(kind, POLICY_TABLES) or DEFAULT_KIND]


def policy_table(table: object) -> PolicyTable:
    """Returns a table of [[policies]] as its kind reads it. Raises pydantic's ValidationError."""
    return table if isinstance(table, PolicyTable) else table_class(table).model_validate(table)


AnyPolicyTable = Annotated[PolicyTable, BeforeValidator(policy_table)]
