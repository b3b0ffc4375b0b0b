"""Checks of policies about noisy neighbours, whose kind is `share`, and of surges by a share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from analyzer.config.diagnostics.faults import KeyFault
from analyzer.config.diagnostics.toml_positions import KeyPath
from analyzer.config.tables.fields import FieldsTable
from analyzer.config.tables.meters import MeterTable
from analyzer.config.tables.policies import SHARE_S, PolicyTable
from analyzer.config.tables.shares import PART, LoadRate
from analyzer.config.values import format_duration, suggestion
from analyzer.kernel.refused_values import quote
from analyzer.plan.groupings import BY_RESOURCE, NOT_BY_RESOURCE
from analyzer.plan.meter_units import NOUNS, Unit
from analyzer.plan.meters import JOINS, REQUESTS

MARKS = ("limit", "capacity", "usual")  # a share has exactly one of them
SHARE_KEYS = ("of", "floor", "hold", "release", "capacity", "usual")
RATES: Mapping[Unit, str] = {"duration": "500ms/s", "decimal": "50.00/s", "bytes": "2 MiB/s"}


def share_faults(path: KeyPath, policy: PolicyTable) -> Iterator[KeyFault]:
    """Yields the faults of the keys of a share."""
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
    if policy.per in NOT_BY_RESOURCE or policy.per.endswith(BY_RESOURCE):
        problem = f"{quote(policy.per)} has no share of the load of a resource"
        yield KeyFault((*path, "per"), problem, 'write per = "caller", "tenant" or "address"')
    limit = policy.limit.stated.get(PART)
    if policy.release is not None and limit is not None and policy.release > limit:
        problem = "the lock of a share must end at or below its limit"
        yield KeyFault((*path, "release"), problem, "write a smaller release, for example 0.25")
    if policy.of == "everyone" and policy.capacity is not None and policy.capacity.by_resource:
        problem = "has capacities of resources, and the whole is everyone"
        yield KeyFault((*path, "capacity"), problem, 'write one capacity, or of = "resource"')


def rate_faults(path: KeyPath, policy: PolicyTable, unit: Unit | None) -> Iterator[KeyFault]:
    """Yields the faults of amounts per time that are not in the unit of the meter."""
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


def surge_share_faults(
    path: KeyPath, policy: PolicyTable, meters: Mapping[str, MeterTable], fields: Sequence[FieldsTable]
) -> Iterator[KeyFault]:
    """Yields the faults of a surge that is judged by its share of another meter."""
    if policy.share is None:
        if "share_of" in policy.model_fields_set:
            yield KeyFault(
                (*path, "share_of"), "has no effect without share", "add share = 0.5, or remove it"
            )
        return
    names = [REQUESTS.name, *meters]
    if policy.share_of not in names:
        problem, add = f"no meter is named {quote(policy.share_of)}", "name a meter of this file"
        yield KeyFault((*path, "share_of"), problem, suggestion(policy.share_of, names, add))
        return
    if policy.share_of == policy.meter:
        problem = f"{quote(policy.meter)} is all of itself"
        yield KeyFault((*path, "share_of"), problem, "name the meter of which it is a part")
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
