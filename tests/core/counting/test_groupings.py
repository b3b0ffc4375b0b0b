"""Groupings: the list of names, what each is keyed by, and what is refused."""

from __future__ import annotations

import pytest

from analyzer.plan.groupings import (
    BASES,
    COUNTED,
    SHOWN,
    Dimension,
    Network,
    known_grouping,
    parse_grouping,
    with_value_fields,
)
from gatekeeper.model import LockKey

CALLER, RESOURCE = Dimension("caller"), Dimension("resource")
MODEL = Dimension("model", value="model")


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
        ("model", MODEL, None, "value", "each model"),
        ("model+resource", MODEL, RESOURCE, "value", "each model and resource"),
        ("caller+model", CALLER, MODEL, "caller", "each caller and model"),
        ("tenant+model", Dimension("tenant"), MODEL, "tenant", "each tenant and model"),
        ("caller+tenant", CALLER, Dimension("tenant"), "", "each caller and tenant"),
        ("caller+plan", CALLER, Dimension("plan"), "", "each caller and plan"),
        ("tenant+plan", Dimension("tenant"), Dimension("plan"), "", "each tenant and plan"),
        ("model+region", MODEL, Dimension("region", value="region"), "", "each model and region"),
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
        *("", "User", "caller+", "+resource", "tenant+caller", "resource+resource", "everyone+resource"),
        *("plan+caller", "caller+model+resource", "address+model", "everyone+model", "model+caller"),
        *("model+model", "model+plan", "model+region+team", "model+zone", "caller+caller"),
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


def test_a_grouping_by_a_named_value_is_known_by_its_definition() -> None:
    assert known_grouping("tenant+model", {"model"}) == parse_grouping("tenant+model")
    assert known_grouping("caller", {"model"}) == BASES["caller"]
    with pytest.raises(ValueError, match=r"'team' is not a grouping: use caller, .*, model, or"):
        known_grouping("team", {"model"})
    with pytest.raises(ValueError, match=r"'model\+team' is not a grouping"):
        known_grouping("model+team", {"model"})
    assert parse_grouping("model+region").named_values == ("model", "region")
    with_field = with_value_fields(parse_grouping("model+resource"), {"model": "llm_model"})
    assert with_field.dimensions == (Dimension("llm_model", value="model"), RESOURCE)


@pytest.mark.parametrize(
    ("name", "scope"),
    [
        ("caller+resource", "caller"),
        ("model", "value:model"),
        ("model+resource", "value:model"),
        ("caller+model", "caller+value:model"),
        ("tenant+model", "tenant+value:model"),
    ],
)
def test_locks_by_a_named_value_have_scopes_that_older_gates_ignore(name: str, scope: str) -> None:
    assert parse_grouping(name).lock_scope == scope


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("caller", ("caller",)),
        ("address/24+resource", ("address", "resource")),
        ("everyone", ("everyone",)),
        ("caller+plan", ("caller", "plan")),
        ("model+region", ("model", "region")),
    ],
)
def test_each_part_of_a_grouping_has_its_column(name: str, columns: tuple[str, ...]) -> None:
    with_fields = with_value_fields(parse_grouping(name), {"model": "llm_model", "region": "zone_of_cloud"})
    assert parse_grouping(name).columns == with_fields.columns == columns
