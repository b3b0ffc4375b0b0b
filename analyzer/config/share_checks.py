"""Checks of policies about noisy neighbours, whose kind is `share`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from analyzer.config.diagnostics.faults import KeyFault
from analyzer.config.diagnostics.toml_positions import KeyPath
from analyzer.config.tables.policies import SHARE_S, PolicyTable
from analyzer.config.tables.shares import PART, LoadRate
from analyzer.config.values import format_duration, quote
from analyzer.core.counting.groupings import BY_RESOURCE, NOT_BY_RESOURCE
from analyzer.core.counting.meter_units import NOUNS, Unit

MARKS = ("limit", "capacity", "usual")  # a share has exactly one of them
SHARE_KEYS = ("of", "floor", "hold", "release", "capacity", "usual")
RATES: Mapping[Unit, str] = {"duration": "500ms/s", "decimal": "50.00/s", "bytes": "2 MiB/s"}


def share_faults(at: KeyPath, policy: PolicyTable) -> Iterator[KeyFault]:
    """Yields the faults of the keys of a share."""
    given = [key for key in MARKS if key in policy.model_fields_set]
    if len(given) != 1:
        what = f"a share takes exactly one of {', '.join(MARKS[:-1])} and {MARKS[-1]}"
        cure = 'write limit = 0.4 for 40 % of the whole, capacity = "500/s" for all of it, or usual = 3'
        yield KeyFault((*at, given[1] if given else MARKS[0]), what, cure)
    needed = ((policy.of, "of", 'write of = "resource"'), (policy.floor, "floor", 'write floor = "30/s"'))
    for value, key, cure in needed:
        if value is None:
            yield KeyFault((*at, key), f"a share needs {key}", cure)
    shortest_s, longest_s = SHARE_S
    if policy.window.rolling is None or not shortest_s <= policy.window.rolling <= longest_s:
        bounds = f"{format_duration(shortest_s)} to {format_duration(longest_s)}"
        what = f"a share needs a rolling window of {bounds}"
        yield KeyFault((*at, "window"), what, 'write window = { rolling = "5m" }')
    if policy.per in NOT_BY_RESOURCE or policy.per.endswith(BY_RESOURCE):
        what = f"{quote(policy.per)} has no share of the load of a resource"
        yield KeyFault((*at, "per"), what, 'write per = "caller", "tenant" or "address"')
    limit = policy.limit.stated.get(PART)
    if policy.release is not None and limit is not None and policy.release > limit:
        what = "the lock of a share must end at or below its limit"
        yield KeyFault((*at, "release"), what, "write a smaller release, for example 0.25")
    if policy.of == "everyone" and policy.capacity is not None and policy.capacity.by_resource:
        what = "has capacities of resources, and the whole is everyone"
        yield KeyFault((*at, "capacity"), what, 'write one capacity, or of = "resource"')


def rate_faults(at: KeyPath, policy: PolicyTable, unit: Unit | None) -> Iterator[KeyFault]:
    """Yields the faults of amounts per time that are not in the unit of the meter."""
    rates: Mapping[str, Sequence[LoadRate]] = {
        "floor": [] if policy.floor is None else [policy.floor],
        "capacity": [] if policy.capacity is None else policy.capacity.rates(),
    }
    for key, found in rates.items():
        if any(unit not in rate.readings for rate in found):
            measured = "has no unit" if unit is None else f"is measured in {NOUNS[unit]}"
            example = "30/s" if unit is None else RATES[unit]
            cure = f"write {key} = {quote(example)}, with your amount"
            yield KeyFault((*at, key), f"{quote(policy.meter)} {measured}", cure)
