"""`[[groupings]]`: named values, which are fields that requests are counted and limited by."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Annotated

from pydantic import BeforeValidator

from analyzer.config.tables import ConfigTable
from analyzer.config.values import Text, alternatives, suggestion
from analyzer.kernel.refused_values import quote, raise_fault
from analyzer.plan.groupings import (
    BY_ADDRESS,
    BY_OUTCOME,
    BY_RESOURCE,
    COUNTED,
    RESERVED,
    SHOWN,
    WITH_VALUE,
    is_value_name,
    parse_grouping,
)

# Words of others for what a grouping is called here.
SYNONYMS = {
    "ip": "address", "client": "address", "host": "address",
    "user": "caller", "key": "caller", "api_key": "caller",
    "organisation": "tenant", "organization": "tenant", "org": "tenant", "customer": "tenant",
    "route": "resource", "path": "resource", "endpoint": "resource",
    "all": "everyone", "global": "everyone",
}  # fmt: skip


def unknown_grouping(value: object, named_values: Iterable[str] = (), names: Iterable[str] = COUNTED) -> str:
    """Returns the cure for a name that no grouping has."""
    names = (*names, *named_values)
    otherwise = f'use {alternatives(names)}, perhaps followed by "{BY_RESOURCE}"'
    if str(value) in SYNONYMS:
        return f"did you mean {quote(SYNONYMS[str(value)])}?"
    if "/" in str(value):  # its prefix is wrong, not its name
        return otherwise
    plain_names = [name for name in names if "/" not in name]
    with_values = [f"{first}+{value}" for first in WITH_VALUE for value in named_values]
    return suggestion(value, [*plain_names, *with_values], otherwise)


def is_defined(name: str, named_values: Collection[str]) -> bool:
    """Whether the named values of a grouping, if it has some, are among these."""
    return set(parse_grouping(name).named_values) <= set(named_values)


def _grouping(value: object, names: Iterable[str] = COUNTED) -> str:
    """Whether its named value is defined, another table says: see `analyzer.config.grouping_checks`."""
    try:
        # Addresses of networks and outcomes are counted for judgements alone.
        return parse_grouping("" if str(value).endswith((BY_ADDRESS, BY_OUTCOME)) else str(value)).name
    except ValueError:
        raise_fault(f"{quote(value)} is not a grouping", unknown_grouping(value, names=names))


def _judged_grouping(value: object) -> str:
    grouping = parse_grouping(_grouping(value, SHOWN))
    if not grouping.is_judged and "plan" in grouping.columns:
        raise_fault(
            f"{quote(value)} cannot be limited, because no gate knows the plan of a request",
            'limit callers by their plan: per = "caller", limit = { free = 1_000, default = 100 }',
        )
    if not grouping.is_judged:
        first, second = map(quote, grouping.columns)
        raise_fault(
            f"{quote(value)} cannot be limited: it is counted for reports alone",
            f"limit one of its parts: per = {first}, or per = {second}",
        )
    return grouping.name


def _value_name(value: object) -> str:
    if value in RESERVED:
        raise_fault(f"{quote(value)} has another meaning in groupings", "write another name")
    if isinstance(value, str) and is_value_name(value):
        return value
    return raise_fault(
        f"{quote(value)} is not a valid name for a grouping",
        "use up to 32 lower-case letters, digits and underscores, a letter first: gates are asked by "
        'gate.check(caller, model="large")',
    )


GroupingName = Annotated[str, BeforeValidator(_grouping)]
JudgedGroupingName = Annotated[str, BeforeValidator(_judged_grouping)]


class GroupingTable(ConfigTable):
    """A named value: a text field of the records, which clients choose and gates are asked by."""

    name: Annotated[str, BeforeValidator(_value_name)]
    field: Text
