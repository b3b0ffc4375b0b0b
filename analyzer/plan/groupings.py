"""Groupings: the fields by which a meter is counted, and the scope of the locks on their series.

Configuration, counting, judging, usage and documentation read the list in this module. A grouping is written
`caller`, `tenant`, `resource`, `address`, `address/24`, `address6/56` or `everyone`. All except `resource`
and `everyone` can be combined with the resource: `caller+resource`. Besides these there are groupings by a
named value, a field that the configuration names (`[[groupings]]`): `model`, `model+resource`,
`caller+model`, `tenant+model`.

Policies judge each of them: the scope must be one that gates know (`gatekeeper.view.lock_view.SCOPES`). By
`plan`, which no gate knows, and by the pairs `caller+tenant`, `caller+plan`, `tenant+plan` and two named
values (`model+region`), requests are only counted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Literal, NamedTuple


class Network(NamedTuple):
    """Addresses of one family by their first `prefix` bits."""

    version: Literal[4, 6]
    prefix: int


class Dimension(NamedTuple):
    """A text that requests are counted by: a field, or the network that its address belongs to."""

    field: str  # "caller": the caller's typed name
    network: Network | None = None
    value: str = ""  # the name of a named value, which is in the field; clients choose it


BY_RESOURCE = "+resource"
BY_ADDRESS = "+address"  # the addresses of a network: counted by slots alone, for judgements
BY_OUTCOME = "+outcome"  # outcomes of the requests of a whole: counted by slots alone, for sentences
CALLER = Dimension("caller")
TENANT = Dimension("tenant")
RESOURCE = Dimension("resource")
NETWORK = re.compile(r"address(6?)/([0-9]{1,3})")
PREFIX_MAX = {4: 32, 6: 128}
# Named values are keyword arguments of `gate.check`, and parts of the names of groupings.
VALUE_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
# Words of groupings, of scopes and of arguments of `gate.check`.
RESERVED = frozenset(
    (*("caller", "tenant", "resource", "address", "address6", "range", "everyone", "plan", "outcome"),)
    + ("value", "values", "self")
    # Columns of reports, and properties of events, beside which named values stand.
    + ("from", "to", "zone", "meter", "unit", "denied", "provisional", "bucket", "day")
)
WITH_VALUE = ("caller", "tenant")  # groupings that a named value can be combined with
PAIRS = ("caller+tenant", "caller+plan", "tenant+plan")  # that are counted for usage and reports alone
OF_VALUE = "value"  # the scope of series of a named value alone


class Grouping(NamedTuple):
    """One grouping. A record without a field of its key counts under the empty key."""

    name: str
    key: Dimension | None  # None: the key is always ""
    resource: Dimension | None  # None: the resource is always ""
    scope: str  # what its keys are, as in the scope of locks on its series; "": it has none
    phrase: str  # in "at most 5 requests for each caller"

    @property
    def is_of_callers(self) -> bool:
        """Whether the key is a caller, and so may be the overflow."""
        return self.key == CALLER

    @property
    def has_facts(self) -> bool:
        """Whether a plan, a zone or an anchor may be known of its series: of callers, and of tenants."""
        return self.key in (CALLER, TENANT)

    @property
    def is_of_subjects(self) -> bool:
        """Whether its series are callers or tenants themselves, and not what they do with a resource."""
        return self.has_facts and self.resource is None

    @property
    def is_judged(self) -> bool:
        """Whether policies may judge its series."""
        return bool(self.scope)

    @property
    def is_shared(self) -> bool:
        """Whether many partitions may count requests of one series; most callers are in one partition."""
        return not self.is_of_callers

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        return tuple(part for part in (self.key, self.resource) if part is not None)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its parts in usage and reports: fields, named values, or "everyone"."""
        return tuple(part.value or part.field for part in self.dimensions) or (self.name,)

    @property
    def named_value(self) -> str:
        """The named value that policies judge by; "" for none."""
        return next(iter(self.named_values), "")

    @property
    def named_values(self) -> tuple[str, ...]:
        """The named values that it counts by."""
        return tuple(part.value for part in self.dimensions if part.value)

    @property
    def lock_scope(self) -> str:
        """The scope of locks on its series.

        With a named value it is one that gates without named values ignore: "caller+value:model". Otherwise
        they would take the value for a route, or deny all requests of the caller.
        """
        if self.resource is not None and self.resource.value:
            return f"{self.scope}+{OF_VALUE}:{self.resource.value}"
        return f"{self.scope}:{self.named_value}" if self.named_value else self.scope


BASES: Mapping[str, Grouping] = {
    base.name: base
    for base in (
        Grouping("caller", CALLER, None, "caller", "each caller"),
        Grouping("tenant", TENANT, None, "tenant", "each tenant"),
        Grouping("resource", RESOURCE, None, "resource", "each resource"),
        Grouping("address", Dimension("address"), None, "address", "each address"),
        Grouping("everyone", None, None, "everyone", "all callers together"),
    )
}
# For usage and reports alone: of what the caller has bought, as its records state it.
UNJUDGED: Mapping[str, Grouping] = {"plan": Grouping("plan", Dimension("plan"), None, "", "each plan")}
NETWORK_EXAMPLES = ("address/24", "address6/56")
SHOWN = (*BASES, *NETWORK_EXAMPLES)  # in messages and documentation
COUNTED = (*SHOWN, *UNJUDGED)
NOT_BY_RESOURCE = ("resource", "everyone")  # both would equal `resource`


@lru_cache(maxsize=256)
def parse_grouping(name: str) -> Grouping:
    """Returns the grouping called `name`; whether its named value is defined is not known here.

    The field of a named value is its name: see `with_value_fields`.

    >>> parse_grouping("address/24+resource").key
    Dimension(field='address', network=Network(version=4, prefix=24), value='')
    >>> parse_grouping("caller+model").resource, parse_grouping("caller+model").lock_scope
    (Dimension(field='model', network=None, value='model'), 'caller+value:model')

    Raises ValueError for a name that cannot be one, with the names there are.
    """
    if name.endswith(BY_ADDRESS):
        network = _parse_base(name.removesuffix(BY_ADDRESS))
        if network is not None and network.scope == "range":
            return network._replace(name=name, resource=Dimension("address"))
    if name.endswith(BY_OUTCOME):
        parts = parse_grouping(name.removesuffix(BY_OUTCOME))
        whole = BASES["everyone" if parts.resource is None else "resource"]
        return whole._replace(name=name, resource=Dimension("outcome"))
    first, plus, second = name.partition("+")
    if plus and first in WITH_VALUE and is_value_name(second):
        part = Dimension(second, value=second)
        return BASES[first]._replace(name=name, resource=part, phrase=f"{BASES[first].phrase} and {second}")
    if name in PAIRS or (is_value_name(first) and is_value_name(second) and first != second):
        key, other = (Dimension(part, value=part * is_value_name(part)) for part in (first, second))
        return Grouping(name, key, other, "", f"each {first} and {second}")
    base = _parse_base(name.removesuffix(BY_RESOURCE))
    if base is None or (name.endswith(BY_RESOURCE) and base.name in NOT_BY_RESOURCE):
        raise unknown_grouping(name)
    if not name.endswith(BY_RESOURCE):
        return base
    return base._replace(name=name, resource=RESOURCE, phrase=f"{base.phrase} and resource")


def known_grouping(name: str, named_values: Collection[str] = ()) -> Grouping:
    """Returns the grouping called `name`. Raises ValueError where its named value is none of `named_values`.

    >>> known_grouping("caller+model", ["model"]).name
    'caller+model'
    """
    grouping = parse_grouping(name)
    if not set(grouping.named_values) <= set(named_values):
        raise unknown_grouping(name, named_values)
    return grouping


def unknown_grouping(name: str, named_values: Collection[str] = ()) -> ValueError:
    """Returns the error about a name that no grouping has, with the names there are."""
    names = ", ".join((*SHOWN, *sorted(named_values)))
    return ValueError(f"{name!r} is not a grouping: use {names}, or {SHOWN[0]}{BY_RESOURCE}")


def with_value_fields(grouping: Grouping, named_values: Mapping[str, str]) -> Grouping:
    """Returns the grouping with the field that has its named value, by the definitions of a plan.

    >>> with_value_fields(parse_grouping("model"), {"model": "llm_model"}).key
    Dimension(field='llm_model', network=None, value='model')
    """

    def resolved(part: Dimension | None) -> Dimension | None:
        if part is None or not part.value:
            return part
        return part._replace(field=named_values.get(part.value, part.value))

    return grouping._replace(key=resolved(grouping.key), resource=resolved(grouping.resource))


def is_value_name(name: str) -> bool:
    """Whether a named value may be called so: it is an argument of `gate.check`, and no other grouping."""
    return name not in RESERVED and VALUE_NAME.fullmatch(name) is not None


def _parse_base(name: str) -> Grouping | None:
    network = NETWORK.fullmatch(name)
    if network is None:
        if is_value_name(name):
            return Grouping(name, Dimension(name, value=name), None, OF_VALUE, f"each {name}")
        return BASES.get(name) or UNJUDGED.get(name)
    prefix_network = Network(6 if network[1] else 4, int(network[2]))
    # Leading zeros would give one grouping two names.
    if (
        not 1 <= prefix_network.prefix <= PREFIX_MAX[prefix_network.version]
        or str(prefix_network.prefix) != network[2]
    ):
        return None
    return Grouping(
        name,
        Dimension("address", prefix_network),
        None,
        "range",
        f"each IPv{prefix_network.version} /{prefix_network.prefix} network",
    )
