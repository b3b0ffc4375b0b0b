"""Groupings: the list of names, what each is keyed by, and what is refused."""

from __future__ import annotations

import pytest

from analyzer.plan.groupings import COUNTED, SHOWN, Dimension, Network, parse_grouping
from gatekeeper.model import LockKey

CALLER, RESOURCE = Dimension("caller"), Dimension("resource")


@pytest.mark.parametrize(
    ("name", "key", "resource", "scope", "phrase"),
    [
        ("caller", CALLER, None, "caller", "each caller"),
        ("caller+resource", CALLER, RESOURCE, "caller", "each caller and resource"),
        ("tenant", Dimension("tenant"), None, "tenant", "each tenant"),
        ("tenant+resource", Dimension("tenant"), RESOURCE, "tenant", "each tenant and resource"),
        ("resource", RESOURCE, None, "resource", "each resource"),
        ("address", Dimension("address"), None, "address", "each address"),
        ("address/24", Dimension("address", Network(4, 24)), None, "range", "each IPv4 /24 network"),
        (
            "address6/56+resource",
            Dimension("address", Network(6, 56)),
            RESOURCE,
            "range",
            "each IPv6 /56 network and resource",
        ),
        ("everyone", None, None, "everyone", "all callers together"),
        ("plan", Dimension("plan"), None, "", "each plan"),
    ],
)
def test_a_grouping_is_found_by_its_name(
    name: str, key: Dimension | None, resource: Dimension | None, scope: str, phrase: str
) -> None:
    assert parse_grouping(name) == (name, key, resource, scope, phrase)
    assert parse_grouping(name).is_of_callers == name.startswith("caller")
    assert LockKey(parse_grouping(name).scope, "", "", "").scope == scope


@pytest.mark.parametrize(
    "name",
    [
        *("", "user", "caller+", "+resource", "caller+tenant", "resource+resource", "everyone+resource"),
        *("address/", "address/0", "address/33", "address/024", "address6/129", "address4/24", "address/-1"),
        *("caller/24", "address/24+caller", "Caller", "address/24 "),
    ],
)
def test_any_other_name_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(ValueError, match=r"is not a grouping: use caller, tenant, .*, or caller\+resource"):
        parse_grouping(name)


def test_the_groupings_in_messages_exist() -> None:
    assert [parse_grouping(name).name for name in COUNTED] == list(COUNTED)
    assert [name for name in COUNTED if parse_grouping(name).is_judged] == list(SHOWN)
