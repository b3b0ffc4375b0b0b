"""The plan: everything that decides a count or a judgement. It is stored in a tagged, versioned format.

    [1, {"groupings": ["caller"], "meters": [{"name": "requests", ...}],
         "overrides": [{"kind": "limit", "subject_kind": "caller", ...}],
         "policies": [["quota", {"name": "daily", ...}]],
         "sources": {"access-log": {"format": "json", ...}}}]

Each policy stands behind its kind (`policies.POLICY_CLASSES`). Overrides are those that the configuration
states; without any, the key is absent. So is `named_values`, the field of each named value, and `forgotten`,
the references of callers whose names were deleted: an act of operators that no configuration states or takes
back.

The format stands in front, and unknown fields are refused: an analyzer must refuse a plan that it does not
know instead of reading it as one without policies, which would open every gate.

A plan has parts: its rules (groupings, meters, policies), and the mapping of each source. Each part has a
digest of its meaning, without values that are at their default: a release that adds a setting does not change
the digest of a configuration that does not use it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any, cast

import msgspec

from analyzer.plan.expressions import PatternFault
from analyzer.plan.groupings import known_grouping, parse_grouping
from analyzer.plan.mapping import FORMAT_NAMES, Condition, SourceMapping, in_order
from analyzer.plan.meters import (
    JOINS,
    REQUESTS,
    Meter,
    built_in_meters,
    in_buckets,
    with_requests,
)
from analyzer.plan.patterns import compile_pattern
from analyzer.plan.policies import POLICY_CLASSES, Policy, StatedOverride, stated_name

FORMAT = 1
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
    # The field of each named value that requests are counted by.
    named_values: Mapping[str, str] = field(default_factory=dict, hash=False)

    def policy(self, name: str) -> Policy | None:
        return next((policy for policy in self.policies if policy.name == name), None)

    def family(self, name: str) -> Sequence[Policy]:
        """Returns the policy of this name, or its policies of several periods, and its candidate."""
        return [policy for policy in self.policies if name in (policy.name, stated_name(policy.name))]

    @property
    def policy_names(self) -> set[str]:
        """The names of all policies, and those that several periods share."""
        names = (policy.name for policy in self.policies)
        return {shown for name in names for shown in (name, stated_name(name))}

    @property
    def bucket_meters(self) -> Sequence[Meter]:
        """The meters whose values are kept in buckets, built-in ones included."""
        return in_buckets(self.meters, built_in_meters(self.sources.values()))

    @cached_property
    def derived(self) -> dict[type, Any]:
        """Values that other chapters have computed from this plan, once each."""
        return {}

    def to_json(self) -> str:
        """Returns the plan as it is stored: with every value, because defaults may differ elsewhere."""
        policies = [[policy.kind, policy] for policy in self.policies]
        body: dict[str, Any] = {
            "groupings": self.groupings,
            "meters": self.meters,
            "policies": policies,
            "sources": dict(self.sources),
        }
        if self.overrides:
            body["overrides"] = self.overrides
        if self.forgotten:
            body["forgotten"] = self.forgotten
        if self.named_values:
            body["named_values"] = dict(self.named_values)
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
        rules: dict[str, Any] = {
            "groupings": list(self.groupings),
            "meters": {meter.name: meaning(meter) for meter in self.meters},
            "policies": {policy.name: [policy.kind, meaning(policy)] for policy in self.policies},
        }
        if self.overrides:
            rules["overrides"] = meaning(self.overrides)
        if self.named_values:
            rules["named_values"] = dict(self.named_values)
        return rules

    @property
    def has_default_rules(self) -> bool:
        """Whether it only counts the requests of each caller, as a configuration without rules does."""
        return bool(self.rules == Plan().rules)

    def with_rules(self, plan: Plan) -> Plan:
        """Returns this plan with the rules of `plan` in place of these."""
        return replace(
            self,
            groupings=plan.groupings,
            meters=plan.meters,
            policies=plan.policies,
            overrides=plan.overrides,
            named_values=plan.named_values,
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
        for info in _struct_fields(type(value)):
            field_value = getattr(value, info.name)
            if info.default_factory is not msgspec.NODEFAULT:
                is_default = field_value == info.default_factory()
            else:
                is_default = info.default is not msgspec.NODEFAULT and field_value == info.default
            if not is_default or (with_defaults and field_value is not msgspec.UNSET):
                values[info.encode_name] = meaning(field_value, with_defaults=with_defaults)
        return values
    if isinstance(value, Mapping):
        return {name: meaning(item, with_defaults=with_defaults) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [meaning(item, with_defaults=with_defaults) for item in value]
    return value


@cache
def _struct_fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Returns the fields of a part of a plan, whose annotations take long to evaluate."""
    return msgspec.structs.fields(kind)


def meaning_digest(meter: Meter) -> str:
    """Returns the digest of what a meter counts, without its name."""
    return _digest(meaning(msgspec.structs.replace(meter, name="", renamed_from="")))


def _digest(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()


def make_plan(
    groupings: Iterable[str],
    meters: Iterable[Meter],
    policies: Iterable[Policy],
    sources: Mapping[str, SourceMapping] | None = None,
    overrides: Iterable[StatedOverride] = (),
    named_values: Mapping[str, str] = MappingProxyType({}),
) -> Plan:
    """Returns a plan in one fixed order, for any order in the configuration.

    `named_values` has the field of each; the plan keeps those that something is counted by.
    "caller" is always counted, because the audit depends on it, and so is the meter `requests`.
    """
    meters = with_requests(meters)
    joins = {meter.name: meter.join for meter in meters}
    policies = [_with_join(policy, joins) for policy in sorted(policies, key=lambda policy: policy.name)]
    names = {"caller", *groupings}.union(*(policy.groupings for policy in policies))
    meters = sorted(map(_in_order, meters), key=lambda meter: meter.name)
    counted_values = {value for name in names for value in parse_grouping(name).named_values}
    rules = Plan(
        tuple(sorted(names)),
        tuple(meters),
        tuple(policies),
        overrides=tuple(sorted(overrides, key=repr)),
        named_values={name: path for name, path in sorted(named_values.items()) if name in counted_values},
    )
    return rules.with_sources(
        {name: _with_sorted_conditions(mapping) for name, mapping in (sources or {}).items()}
    )


def _with_sorted_conditions(mapping: SourceMapping) -> SourceMapping:
    count_if = in_order(mapping.count_if) if mapping.count_if else mapping.count_if
    return msgspec.structs.replace(mapping, deny_if=in_order(mapping.deny_if), count_if=count_if)


def _with_join(policy: Policy, joins: Mapping[str, str]) -> Policy:
    """Returns the policy with the join of its meter, which is not stored if it is a sum."""
    join = joins.get(policy.meter, "sum")
    stated = msgspec.UNSET if join == REQUESTS.join else join
    stored: Policy = msgspec.structs.replace(cast(Any, policy), join=stated)
    return stored


def _in_order(meter: Meter) -> Meter:
    return msgspec.structs.replace(meter, where=in_order(meter.where))


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    groupings: tuple[str, ...]
    meters: tuple[Meter, ...]
    policies: tuple[tuple[str, dict[str, Any]], ...]
    sources: dict[str, SourceMapping]
    overrides: tuple[StatedOverride, ...] = ()  # absent where there are none
    forgotten: tuple[str, ...] = ()  # absent where there are none
    named_values: dict[str, str] = {}  # absent where there are none


def plan_from(text: str) -> Plan:
    """Returns the plan that `to_json` wrote. Raises UnknownPlan."""
    try:
        format_, values = msgspec.json.decode(text, type=tuple[int, Any])
        if format_ != FORMAT:
            raise UnknownPlan(f"it has format {format_}, this version reads format {FORMAT}")
        body = msgspec.convert(values, _Body)
        _check_names(body)
        policies = tuple(_policy_from(kind, policy) for kind, policy in body.policies)
    except msgspec.DecodeError as error:
        raise UnknownPlan(str(error)) from error
    return Plan(
        body.groupings,
        body.meters,
        policies,
        body.sources,
        body.overrides,
        body.forgotten,
        body.named_values,
    )


def _conditions(body: _Body) -> Iterator[Condition]:
    for meter in body.meters:
        yield from meter.where
    for mapping in body.sources.values():
        yield from mapping.deny_if
        yield from mapping.count_if or ()


def _check_names(body: _Body) -> None:
    """Raises UnknownPlan for a name that a later version has added to a table, and for such a pattern."""
    for condition in _conditions(body):
        for pattern in condition.patterns:
            try:
                compile_pattern(pattern)
            except PatternFault as error:
                raise UnknownPlan(
                    f"it has a pattern that this version does not know: {pattern.text} {error}"
                ) from error
    for meter in body.meters:
        if meter.join not in JOINS:
            choices = ", ".join(JOINS)
            raise UnknownPlan(f"it has a meter with the join {meter.join!r}, this version knows {choices}")
    for mapping in body.sources.values():
        if mapping.format not in FORMAT_NAMES:
            choices = ", ".join(FORMAT_NAMES)
            raise UnknownPlan(
                f"it has a source in the format {mapping.format!r}, this version reads {choices}"
            )
    for grouping in body.groupings:
        try:
            known_grouping(grouping, body.named_values)
        except ValueError as error:
            raise UnknownPlan(str(error)) from error


def _policy_from(kind: str, values: dict[str, Any]) -> Policy:
    if kind not in POLICY_CLASSES:
        choices = ", ".join(POLICY_CLASSES)
        raise UnknownPlan(f"it has a policy of the kind {kind!r}, this version knows {choices}")
    policy: Policy = msgspec.convert(values, POLICY_CLASSES[kind])
    if policy.meter_join not in JOINS:
        choices = ", ".join(JOINS)
        raise UnknownPlan(
            f"it has a policy with the join {policy.meter_join!r}, this version knows {choices}"
        )
    return policy
