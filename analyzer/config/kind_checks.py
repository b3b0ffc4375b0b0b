"""Checks of [[policies]] by the kind of the policy: an entry of `KIND_CHECKS` for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from analyzer.config.diagnostics.faults import KeyFault
from analyzer.config.diagnostics.toml_positions import KeyPath
from analyzer.config.parsed_tables import ParsedTables, listed, map_it
from analyzer.config.tables.policies import (
    SHARE_S,
    SURGE_S_MAX,
    PolicyTable,
    QuotaTable,
    ShareTable,
    SurgeTable,
)
from analyzer.config.tables.policy_values import LimitReadings
from analyzer.config.tables.shares import PART, LoadRate
from analyzer.config.values import format_duration, suggestion
from analyzer.kernel.refused_values import quote
from analyzer.plan.groupings import BY_RESOURCE, NOT_BY_RESOURCE, parse_grouping
from analyzer.plan.meter_units import EXAMPLES, NOUNS, STORED_IN, Unit
from analyzer.plan.meters import JOINS, REQUESTS
from analyzer.plan.windows import Calendar

MARKS = ("limit", "capacity", "usual")  # a share has exactly one of them
RATES: Mapping[Unit, str] = {
    "duration": "500ms/s", "decimal": "50.00/s", "money": "50.00/s", "bytes": "2 MiB/s"
}  # fmt: skip


def limit_unit_faults(
    path: KeyPath, meter: str, readings: Iterable[LimitReadings], unit: Unit | None
) -> Iterator[KeyFault]:
    """Yields a fault if a limit is not written in the unit of its meter."""
    written = next((reading for reading in readings if unit not in reading), None)
    if written is None:
        return
    if unit is None:
        problem = f"{quote(meter)} has no unit"
        yield KeyFault((*path, "limit"), problem, "write digits: 100_000; or give the meter's field a unit")
        return
    if unit == "decimal" and "money" in written:
        yield KeyFault((*path, "limit"), f"is finer than {STORED_IN[unit]}", "write fewer digits")
        return
    problem = f"{quote(meter)} is measured in {NOUNS[unit]}"
    cure = f"write the limit with its unit: limit = {quote(EXAMPLES[unit])}"
    if None in written and unit != "bytes":
        problem += f", and {written[None]} has none"
    yield KeyFault((*path, "limit"), problem, cure)


def _amount_faults(path: KeyPath, policy: PolicyTable, unit: Unit | None) -> Iterator[KeyFault]:
    """Faults of a limit that is an amount of the meter, and of limits by plan."""
    grouping = parse_grouping(policy.per)
    if policy.limit.by_plan and not grouping.has_facts:
        problem = f"has limits by plan, and {quote(policy.per)} has none"
        yield KeyFault((*path, "limit"), problem, 'write one limit, or per = "caller" or "tenant"')
    if policy.limit.by_route and not policy.per.endswith(BY_RESOURCE):
        problem = f"has limits by route, and {quote(policy.per)} has no routes"
        cure = (
            f"write per = {quote(policy.per + BY_RESOURCE if grouping.has_facts else 'caller' + BY_RESOURCE)}"
        )
        yield KeyFault((*path, "limit"), problem, cure)
    others = *policy.limit.by_plan.values(), *policy.limit.by_route.values()
    refuses = any(0 in reading.values() for reading in (policy.limit.stated, *others))
    if refuses and (not grouping.is_of_subjects or not policy.can_refuse):
        problem = "allows nothing, which only a quota of callers or tenants can"
        cure = 'write kind = "quota" and per = "caller" or "tenant", or a limit of at least 1'
        yield KeyFault((*path, "limit"), problem, cure)
    if policy.limit.stated:
        yield from limit_unit_faults(path, policy.meter, [policy.limit.stated, *others], unit)


def _quota_faults(path: KeyPath, policy: QuotaTable, _tables: ParsedTables) -> Iterator[KeyFault]:
    """Faults of the grace."""
    if policy.grace is None:
        return
    if policy.sets_no_lock:
        yield KeyFault((*path, "grace"), "has no effect: the policy sets no lock", "remove it")
    windows = policy.window.windows
    if isinstance(windows, Calendar) and policy.grace.time_s >= windows.shortest_s:
        problem = f"the window {policy.window.phrase} may be over before the grace is"
        yield KeyFault((*path, "grace"), problem, "write a shorter one")
    if policy.grace.amount and policy.limit.stated.keys() - {None, "bytes"}:
        problem = f"{policy.grace.amount} has no unit, and the limit has one"
        yield KeyFault((*path, "grace"), problem, 'write a percentage: grace = "10%"')


def _surge_faults(path: KeyPath, policy: SurgeTable, tables: ParsedTables) -> Iterator[KeyFault]:
    """Faults of the window, and of a surge that is judged by its share of another meter."""
    if policy.window.rolling is None or policy.window.rolling > SURGE_S_MAX:
        problem = f"a surge needs a rolling window of at most {format_duration(SURGE_S_MAX)}"
        yield KeyFault((*path, "window"), problem, 'write window = { rolling = "60s" }')
    if policy.share is not None:
        yield from _base_faults(path, policy, tables)
    elif "share_of" in policy.model_fields_set:
        yield KeyFault((*path, "share_of"), "has no effect without share", "add share = 0.5, or remove it")


def _share_faults(path: KeyPath, policy: ShareTable, tables: ParsedTables) -> Iterator[KeyFault]:
    """Faults of the keys of a share."""
    marks = [key for key in MARKS if key in policy.model_fields_set]
    if len(marks) != 1:
        problem = f"a share takes exactly one of {', '.join(MARKS[:-1])} and {MARKS[-1]}"
        cure = 'write limit = 0.4 for 40 % of the whole, capacity = "500/s" for all of it, or usual = 3'
        yield KeyFault((*path, marks[1] if marks else MARKS[0]), problem, cure)
    needed = ((policy.of, "of", 'write of = "resource"'), (policy.floor, "floor", 'write floor = "30/s"'))
    for value, key, cure in needed:
        if value is None:
            yield KeyFault((*path, key), f"a share needs {key}", cure)
    shortest_s, longest_s = SHARE_S
    if policy.window.rolling is None or not shortest_s <= policy.window.rolling <= longest_s:
        bounds = f"{format_duration(shortest_s)} to {format_duration(longest_s)}"
        problem = f"a share needs a rolling window of {bounds}"
        yield KeyFault((*path, "window"), problem, 'write window = { rolling = "5m" }')
    is_by_value = bool(parse_grouping(policy.per).named_value)
    if policy.per in NOT_BY_RESOURCE or policy.per.endswith(BY_RESOURCE) or is_by_value:
        problem = f"{quote(policy.per)} has no share of the load of a resource"
        yield KeyFault((*path, "per"), problem, 'write per = "caller", "tenant" or "address"')
    limit = policy.limit.stated.get(PART)
    if policy.release is not None and limit is not None and policy.release > limit:
        problem = "the lock of a share must end at or below its limit"
        yield KeyFault((*path, "release"), problem, "write a smaller release, for example 0.25")
    if policy.of == "everyone" and policy.capacity is not None and policy.capacity.by_resource:
        problem = "has capacities of resources, and the whole is everyone"
        yield KeyFault((*path, "capacity"), problem, 'write one capacity, or of = "resource"')
    lacking = [source for source in tables.sources.values() if "resource" not in source.fields.names]
    if policy.of == "resource" and lacking:
        problem = f"{quote(policy.of)} needs the field resource in {listed(lacking)}"
        yield KeyFault((*path, "of"), problem, map_it("resource"))


def _rate_faults(path: KeyPath, policy: ShareTable, unit: Unit | None) -> Iterator[KeyFault]:
    """Faults of amounts per time that are not in the unit of the meter."""
    rates: Mapping[str, Sequence[LoadRate]] = {
        "floor": [] if policy.floor is None else [policy.floor],
        "capacity": [] if policy.capacity is None else policy.capacity.rates(),
    }
    for key, amounts in rates.items():
        if any(unit not in rate.readings for rate in amounts):
            measured = "has no unit" if unit is None else f"is measured in {NOUNS[unit]}"
            example = "30/s" if unit is None else RATES[unit]
            cure = f"write {key} = {quote(example)}, with your amount"
            yield KeyFault((*path, key), f"{quote(policy.meter)} {measured}", cure)


def _base_faults(path: KeyPath, policy: SurgeTable, tables: ParsedTables) -> Iterator[KeyFault]:
    """Faults of the meter of which a surge judges a share."""
    meters = {meter.name: meter for meter in tables.meters.values()}
    fields = [source.fields for source in tables.sources.values()]
    names = [REQUESTS.name, *meters]
    if policy.share_of not in names:
        problem, add = f"no meter is named {quote(policy.share_of)}", "name a meter of this file"
        yield KeyFault((*path, "share_of"), problem, suggestion(policy.share_of, names, add))
        return
    if policy.share_of == policy.meter and not policy.where:
        problem = f"{quote(policy.meter)} is all of itself"
        cure = 'name the meter of which it is a part, or write where = { status = "401" }'
        yield KeyFault((*path, "share_of"), problem, cure)
    for key, name in (("meter", policy.meter), ("share_of", policy.share_of)):
        if name in meters and not JOINS[meters[name].join].adds_up:
            problem = f"{quote(name)} does not add up, so it has no share"
            yield KeyFault((*path, key), problem, "name a meter that counts or sums")
    units = [
        meters[name].unit(fields) if name in meters and meters[name].number_field is not None else None
        for name in (policy.meter, policy.share_of)
    ]
    if units[0] != units[1]:
        problem = f"{quote(policy.meter)} and {quote(policy.share_of)} have different units"
        yield KeyFault((*path, "share_of"), problem, "name a meter of the same unit")


class KindChecks(NamedTuple):
    """The checks of one kind of policy. Each function takes the path of the table and the table.

    Attributes:
        faults: Yields the faults of the keys that this kind alone has, with all tables.
        unit_faults: Yields the faults of amounts that are not written in the unit of the meter.
        limits_distinct: Whether a meter of distinct values can be limited.
        compares_addresses: Whether a network is locked only for what several of its addresses do.
    """

    faults: Callable[[KeyPath, Any, ParsedTables], Iterator[KeyFault]]
    unit_faults: Callable[[KeyPath, Any, Unit | None], Iterator[KeyFault]] = _amount_faults
    limits_distinct: bool = True
    compares_addresses: bool = False


KIND_CHECKS: dict[str, KindChecks] = {  # by the word in the file, as POLICY_TABLES
    "quota": KindChecks(_quota_faults),
    "surge": KindChecks(_surge_faults, compares_addresses=True),
    "share": KindChecks(_share_faults, _rate_faults, limits_distinct=False),
}
