"""The plan: everything that decides a count or a judgement. It is stored in a tagged, versioned format.

    [3, {"groupings": ["caller"], "meters": [{"name": "requests", ...}],
         "overrides": [{"kind": "limit", "subject_kind": "caller", ...}],
         "policies": [["quota", {"name": "daily", ...}]],
         "sources": {"access-log": {"format": "json", ...}}}]

Each policy stands behind its kind (`kinds.KINDS`). Overrides are those that the configuration states; without
any, the key is absent. So is `forgotten`, the references of callers whose names were deleted: an act of
operators that no configuration states or takes back.

A list, because the first version of the format was an object in which an unknown field was ignored: an
analyzer of that version must refuse a newer plan instead of reading it as one without policies, which would
open every gate. Format 2 had no sources: each analyzer read records by its own configuration.

A plan has parts: its rules (groupings, meters, policies), and the mapping of each source. Each part has a
digest of its meaning, without values that are at their default: a release that adds a setting does not change
the digest of a configuration that does not use it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, Literal, cast

import msgspec

from analyzer.core.counting.groupings import BY_ADDRESS, BY_OUTCOME, grouping_of
from analyzer.core.counting.meters import (
    DISTINCT,
    JOIN_NAMES,
    MINUTE_S,
    OUTCOMES,
    REQUESTS,
    Meter,
    built_in_meters,
    in_buckets,
    with_requests,
)
from analyzer.core.judging.kinds import KINDS, kind_of
from analyzer.core.judging.policies import Policy, Quota, StatedOverride
from analyzer.core.judging.rolling import growth_to
from analyzer.core.judging.totals import NEVER, Standing, Sum, order_of
from analyzer.core.judging.windows import Calendar, Rolling
from analyzer.core.model import DistinctLayout, SlotLayout
from analyzer.core.records.formats import FORMATS, with_default_fields
from analyzer.core.records.mapping import DURATION, Condition, Not, NumberField, SourceMapping
from gatekeeper.model import Rate

FORMAT = 3
READABLE = (2, 3)  # as lists; format 1 is an object
RULES = "rules"  # name of a part
SOURCE = "source "  # beginning of the names of the other parts


class UnknownPlan(ValueError):
    """The stored plan has a format, a policy kind, a join or a grouping that this version does not know."""


@dataclass(frozen=True)
class Plan:
    """Everything that is counted and judged. Equal plans have equal texts and digests."""

    groupings: tuple[str, ...] = ("caller",)
    meters: tuple[Meter, ...] = (REQUESTS,)
    policies: tuple[Policy, ...] = ()
    sources: Mapping[str, SourceMapping] = field(default_factory=dict, hash=False)  # by name
    overrides: tuple[StatedOverride, ...] = ()
    forgotten: tuple[str, ...] = ()  # references, in order

    def policy(self, name: str) -> Policy | None:
        return next((policy for policy in self.policies if policy.name == name), None)

    @property
    def bucket_meters(self) -> Sequence[Meter]:
        """The meters whose values are kept in buckets, built-in ones included."""
        return in_buckets(self.meters, built_in_meters(self.sources.values()))

    @cached_property
    def policies_of(self) -> Mapping[Sum, Sequence[Policy]]:
        """The policies that are judged by each sum."""
        found: dict[Sum, list[Policy]] = {}
        for policy in self.policies:
            found.setdefault(kind_of(policy).sum_of(policy), []).append(policy)
        return found

    @cached_property
    def thresholds_of(self) -> Mapping[Sum, Sequence[int]]:
        """Values of each sum at which one of its policies must be judged, ascending."""
        return {
            sum_: sorted({value for policy in policies for value in kind_of(policy).thresholds(policy)})
            for sum_, policies in self.policies_of.items()
        }

    @cached_property
    def whole_of(self) -> Mapping[Sum, Sum]:
        """The sum of the whole that the series of a sum are compared with, where they are."""
        found = {}
        for sum_, policies in self.policies_of.items():
            for policy in policies:
                if (whole := kind_of(policy).whole_of) is not None:
                    found[sum_] = whole(policy)
        return found

    @cached_property
    def together(self) -> frozenset[Sum]:
        """The sums of which the warden judges all series above their floor together."""
        return frozenset(
            sum_
            for sum_, policies in self.policies_of.items()
            if any(kind_of(policy).overloads is not None for policy in policies)
        )

    @cached_property
    def with_usual(self) -> frozenset[Sum]:
        """The sums whose series are compared with their usual load."""
        return frozenset(
            sum_
            for sum_, policies in self.policies_of.items()
            if any(kind_of(policy).needs(policy).usual for policy in policies)
        )

    @cached_property
    def addresses_of(self) -> Mapping[Sum, Sum]:
        """The sum of the addresses of each network, of which only slots are kept, where a policy needs it."""
        return {
            sum_: Sum(sum_.grouping + BY_ADDRESS, sum_.meter, sum_.window, role="address")
            for sum_, policies in self.policies_of.items()
            if any(kind_of(policy).needs(policy).addresses for policy in policies)
        }

    @cached_property
    def base_of(self) -> Mapping[Sum, Sum]:
        """The sum of the base that each series of a sum is compared with, of which only slots are kept."""
        found = {}
        for sum_, policies in self.policies_of.items():
            for policy in policies:
                if (base := kind_of(policy).base_of(policy)) is not None:
                    found[sum_] = base
        return found

    @cached_property
    def outcomes_of(self) -> Mapping[Sum, Sum]:
        """The sum of the outcomes of all requests, by that of the series that are compared.

        Empty where no source has errors or durations.
        """
        if not (self.has_errors or self.has_durations):
            return {}
        return {
            sum_: Sum(sum_.grouping + BY_OUTCOME, OUTCOMES, sum_.window, role="outcome")
            for sum_ in self.whole_of
        }

    @property
    def has_errors(self) -> bool:
        """Whether a source says which requests failed."""
        return any("status" in mapping.fields for mapping in self._mappings)

    @property
    def has_durations(self) -> bool:
        """Whether a source says how long requests took."""
        fields = (mapping.fields.get(DURATION) for mapping in self._mappings)
        return any(isinstance(field, NumberField) and field.kind == "duration" for field in fields)

    @property
    def _mappings(self) -> Sequence[SourceMapping]:
        return [with_default_fields(mapping) for mapping in self.sources.values()]

    @cached_property
    def slot_sums(self) -> Sequence[Sum]:
        """All sums of which only slots are kept."""
        of = (
            self.wholes,
            self.addresses_of.values(),
            self.base_of.values(),
            self.outcomes_of.values(),
        )
        return sorted({sum_ for sums in of for sum_ in sums}, key=order_of)

    @cached_property
    def wholes(self) -> Sequence[Sum]:
        """The sums of which only slots are kept, because no policy judges them by themselves."""
        return sorted(set(self.whole_of.values()), key=order_of)

    def first_judgement(self, sum_: Sum) -> int:
        """Returns the least value at which a new total must be judged.

        A sum of which only the buckets know what came before is judged as soon as it grows.
        """
        windows = sum_.window
        is_known = isinstance(windows, Calendar) or windows.has_slots
        return self.thresholds_of[sum_][0] if is_known else 0

    @cached_property
    def slot_layouts(self) -> Sequence[SlotLayout]:
        """The slots that the counter must count, besides the buckets."""
        meters: dict[tuple[str, int], set[str]] = {}
        for sum_ in (*self.policies_of, *self.slot_sums):
            if sum_.join != DISTINCT and isinstance(sum_.window, Rolling) and sum_.window.has_slots:
                meters.setdefault((sum_.grouping, sum_.window.slot_s), set()).add(sum_.meter)
        return [SlotLayout(*at, tuple(sorted(names))) for at, names in sorted(meters.items())]

    @cached_property
    def distinct_layouts(self) -> Sequence[DistinctLayout]:
        """The distinct values that the counter must return: by the minute for calendar windows."""
        return sorted(
            {
                DistinctLayout(
                    sum_.grouping,
                    sum_.window.slot_s if isinstance(sum_.window, Rolling) else MINUTE_S,
                    sum_.meter,
                )
                for sum_ in self.policies_of
                if sum_.join == DISTINCT
            }
        )

    def next_judgement(
        self,
        standing: Standing,
        now_s: float,
        thresholds: Sequence[int] | None = None,
        policies: Iterable[Policy] | None = None,
    ) -> int:
        """Returns the least value at which the total must be judged again; NEVER if its window has none.

        For a calendar window that has not begun this is the least threshold, reached or not, so that the
        first record after its beginning causes a judgement. A rolling sum can reach a threshold only after it
        has grown by the distance from the largest window that has not reached it. What the present window has
        reached is judged when the lock ends, and after the growth that the policy's kind says.
        `thresholds` and `policies` are those of the series, if it has separate limits.
        """
        total = standing.total
        if thresholds is None:
            thresholds = self.thresholds_of[total.sum]
        windows, used = total.sum.window, standing.used
        if isinstance(windows, Rolling):
            growths = [growth_to(standing.slots, windows, value, int(now_s)) for value in thresholds]
            if None in growths:
                policies = self.policies_of[total.sum] if policies is None else policies
                growths += [kind_of(one).growth(one, standing, int(now_s)) for one in policies]
            return min((used + growth for growth in growths if growth is not None), default=NEVER)
        if now_s < total.window.start_s:
            return next(iter(thresholds), NEVER)
        return next((value for value in thresholds if value > used), NEVER)

    def to_json(self) -> str:
        """Returns the plan as it is stored: with every value, because defaults may differ elsewhere."""
        policies = [[policy.kind, policy] for policy in self.policies]
        body: dict[str, Any] = {
            "groupings": self.groupings,
            "meters": self.meters,
            "policies": policies,
            "sources": dict(self.sources),
        }
        if self.overrides:  # otherwise absent: plans of earlier versions stay equal to today's
            body["overrides"] = self.overrides
        if self.forgotten:
            body["forgotten"] = self.forgotten
        return msgspec.json.encode([FORMAT, body], order="deterministic").decode()

    @cached_property
    def digest(self) -> str:
        """The digest of its meaning: equal for plans that count and judge alike."""
        return _digest(dict(self.parts) | ({"forgotten": self.forgotten} if self.forgotten else {}))

    @cached_property
    def parts(self) -> Mapping[str, str]:
        """The digest of each part by its name, RULES first; rules that say nothing are not a part."""
        digests = {} if self.has_default_rules else {RULES: _digest(self.rules)}
        return digests | {
            SOURCE + name: _digest(meaning(mapping)) for name, mapping in sorted(self.sources.items())
        }

    @cached_property
    def rules(self) -> Any:
        """The meaning of the rules, as plain values."""
        return {
            "groupings": list(self.groupings),
            "meters": {meter.name: meaning(meter) for meter in self.meters},
            "policies": {policy.name: [policy.kind, meaning(policy)] for policy in self.policies},
        } | ({"overrides": meaning(self.overrides)} if self.overrides else {})

    @property
    def has_default_rules(self) -> bool:
        """Whether it only counts the requests of each caller, as a configuration without rules does."""
        return bool(self.rules == Plan().rules)

    def with_rules_of(self, other: Plan) -> Plan:
        """Returns this plan with the rules of `other` in place of these."""
        return replace(
            self,
            groupings=other.groupings,
            meters=other.meters,
            policies=other.policies,
            overrides=other.overrides,
        )

    def with_forgotten(self, references: Iterable[str]) -> Plan:
        """Returns this plan with these callers forgotten too."""
        return replace(self, forgotten=tuple(sorted({*self.forgotten, *references})))

    def with_sources(self, sources: Mapping[str, SourceMapping]) -> Plan:
        """Returns this plan with exactly these sources."""
        return replace(self, sources=dict(sorted(sources.items())))


def meaning(value: Any, *, with_defaults: bool = False) -> Any:
    """Returns a part of a plan as plain values, without those that are at their default unless asked for.

    Values that are absent by default are left out in any case.
    """
    if isinstance(value, msgspec.Struct):
        if value.__struct_config__.array_like:
            return [meaning(item, with_defaults=with_defaults) for item in msgspec.structs.astuple(value)]
        tag = value.__struct_config__.tag
        values = {} if tag is None else {"": tag}
        for one in _fields_of(type(value)):
            given = getattr(value, one.name)
            if one.default_factory is not msgspec.NODEFAULT:
                is_default = given == one.default_factory()
            else:
                is_default = one.default is not msgspec.NODEFAULT and given == one.default
            if not is_default or (with_defaults and given is not msgspec.UNSET):
                values[one.encode_name] = meaning(given, with_defaults=with_defaults)
        return values
    if isinstance(value, Mapping):
        return {name: meaning(item, with_defaults=with_defaults) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [meaning(item, with_defaults=with_defaults) for item in value]
    return value


@cache
def _fields_of(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Returns the fields of a part of a plan, whose annotations take long to evaluate."""
    return msgspec.structs.fields(kind)


def meaning_of(meter: Meter) -> str:
    """Returns the digest of what a meter counts, without its name."""
    return _digest(meaning(msgspec.structs.replace(meter, name="", renamed_from="")))


def _digest(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()


def plan_of(
    groupings: Iterable[str],
    meters: Iterable[Meter],
    policies: Iterable[Policy],
    sources: Mapping[str, SourceMapping] | None = None,
    overrides: Iterable[StatedOverride] = (),
) -> Plan:
    """Returns a plan in one fixed order, for any order in the configuration.

    "caller" is always counted, because the audit depends on it, and so is the meter `requests`.
    """
    meters = with_requests(meters)
    joins = {meter.name: meter.join for meter in meters}
    policies = [_with_join(policy, joins) for policy in sorted(policies, key=lambda policy: policy.name)]
    wanted = {"caller", *groupings, *(policy.per for policy in policies)}
    wholes = (whole(policy) for policy in policies if (whole := kind_of(policy).whole_of) is not None)
    wanted |= {whole.grouping for whole in wholes}
    meters = sorted(map(_in_order, meters), key=lambda meter: meter.name)
    rules = Plan(
        tuple(sorted(wanted)), tuple(meters), tuple(policies), overrides=tuple(sorted(overrides, key=repr))
    )
    return rules.with_sources(
        {name: _with_sorted_conditions(mapping) for name, mapping in (sources or {}).items()}
    )


def _with_sorted_conditions(mapping: SourceMapping) -> SourceMapping:
    count_if = _sorted(mapping.count_if) if mapping.count_if else mapping.count_if
    return msgspec.structs.replace(mapping, deny_if=_sorted(mapping.deny_if), count_if=count_if)


def _with_join(policy: Policy, joins: Mapping[str, str]) -> Policy:
    """Returns the policy with the join of its meter, which is not stored if it is a sum."""
    join = joins.get(policy.meter, "sum")
    stored: Policy = msgspec.structs.replace(cast(Any, policy), join=msgspec.UNSET if join == "sum" else join)
    return stored


def _in_order(meter: Meter) -> Meter:
    return msgspec.structs.replace(meter, where=_sorted(meter.where))


def _sorted(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """Returns conditions in one order: all of them must hold."""
    in_order = [(one.field, tuple(sorted(one.values)), one.is_not) for one in conditions]
    return tuple(
        Condition(field, Not(values) if is_not else values) for field, values, is_not in sorted(in_order)
    )


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    groupings: tuple[str, ...]
    meters: tuple[Meter, ...]
    policies: tuple[tuple[str, dict[str, Any]], ...]
    sources: dict[str, SourceMapping] = msgspec.field(default_factory=dict)  # absent in format 2
    overrides: tuple[StatedOverride, ...] = ()  # absent where there are none
    forgotten: tuple[str, ...] = ()  # absent where there are none


def plan_from(text: str) -> Plan:
    """Returns the plan that `to_json` wrote, in this version or an earlier one. Raises UnknownPlan."""
    try:
        document = msgspec.json.decode(text)
        if isinstance(document, dict):
            return _plan_from_format_1(text)
        format_, values = msgspec.convert(document, tuple[int, Any])
        if format_ not in READABLE:
            raise UnknownPlan(f"it has format {format_}, this version reads formats 1 to {FORMAT}")
        body = msgspec.convert(_with_conditions_as_lists(values), _Body)
        _check_names(body)
        policies = tuple(_policy_from(kind, policy) for kind, policy in body.policies)
    except msgspec.DecodeError as error:
        raise UnknownPlan(str(error)) from error
    return Plan(body.groupings, body.meters, policies, body.sources, body.overrides, body.forgotten)


def _with_conditions_as_lists(body: Any) -> Any:
    """Returns the values of a plan, `count_if` as lists in it: earlier versions stored objects there."""
    sources = body.get("sources", {}) if isinstance(body, dict) else {}
    for mapping in sources.values():
        for index, one in enumerate(mapping.get("count_if", ())):
            if isinstance(one, dict) and one.keys() == {"field", "values", "is_not"}:
                wanted = {"not": one["values"]} if one["is_not"] else one["values"]
                mapping["count_if"][index] = [one["field"], wanted]
    return body


def _check_names(body: _Body) -> None:
    """Raises UnknownPlan for a name that a later version has added to a table."""
    for meter in body.meters:
        if meter.join not in JOIN_NAMES:
            known = ", ".join(JOIN_NAMES)
            raise UnknownPlan(f"it has a meter with the join {meter.join!r}, this version knows {known}")
    for mapping in body.sources.values():
        if mapping.format not in FORMATS:
            known = ", ".join(FORMATS)
            raise UnknownPlan(f"it has a source in the format {mapping.format!r}, this version reads {known}")
    for grouping in body.groupings:
        try:
            grouping_of(grouping)
        except ValueError as error:
            raise UnknownPlan(str(error)) from error


def _policy_from(kind: str, values: dict[str, Any]) -> Policy:
    if kind not in KINDS:
        raise UnknownPlan(f"it has a policy of the kind {kind!r}, this version knows {', '.join(KINDS)}")
    policy: Policy = msgspec.convert(values, KINDS[kind].policy)
    return policy


# Format 1: an object, quotas only, each meter with the width of its buckets.


class _MeterOfFormat1(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    field: str | None
    join: Literal["sum", "max"]
    where: tuple[Condition, ...]
    width_s: int


class _QuotaOfFormat1(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    limit: int
    window: Calendar
    meter: str
    per: Literal["caller", "caller+resource"]
    action: Literal["deny", "slow", "tag"]
    status: int
    on_stale: Literal["keep", "allow"]
    slow: Rate | None


class _PlanOfFormat1(msgspec.Struct, forbid_unknown_fields=True):
    groupings: tuple[str, ...]
    meters: tuple[_MeterOfFormat1, ...]
    policies: tuple[_QuotaOfFormat1, ...]


def _plan_from_format_1(text: str) -> Plan:
    old = msgspec.json.decode(text, type=_PlanOfFormat1)
    meters = [Meter(meter.name, meter.field, meter.join, meter.where) for meter in old.meters]
    return plan_of(old.groupings, meters, [Quota(**_fields(quota)) for quota in old.policies])


def _fields(struct: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}
