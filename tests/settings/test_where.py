"""`where` of a policy: the meter that it makes, its faults and remarks."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from analyzer.config.diagnostics.faults import ConfigInvalid
from analyzer.config.settings import Settings
from analyzer.faces.cli.verbs.check import remarks
from analyzer.plan.mapping import Condition, Pattern
from analyzer.plan.meters import Meter
from analyzer.plan.plan import plan_from

Read = Callable[[str], Settings]

SOURCE = """
    [[sources]]
    topic = "access-log"
    authenticated = true
    [sources.fields]
    api_key  = "key"
    address  = "ip"
    method   = "method"
    status   = "status"
    user     = "user"
    resource = { path = "path", routes = ["/v1/items/{id}"] }
    volume   = { path = "n", kind = "bytes" }

    [[meters]]
    name  = "traffic"
    sum   = "volume"
    where = { status = "200-299" }

    [[meters]]
    name     = "users"
    distinct = "user"
"""
POSTS = 'where = { resource = { glob = "/v1/**" }, method = "POST" }'
NAME = "requests where method=POST and resource=/v1/**"
WHERE = (Condition("method", ("POST",)), Condition("resource", (Pattern("glob", "/v1/**"),)))


def policy(name: str, *lines: str, window: str = '{ per = "day" }', limit: str = "5") -> str:
    keys = [f'name = "{name}"', *lines, f"window = {window}", *([f"limit = {limit}"] if limit else [])]
    return "\n    ".join(["\n    [[policies]]", *keys])


def faults(read: Read, text: str) -> list[str]:
    with pytest.raises(ConfigInvalid) as raised:
        read(text)
    return [f"{fault.line}: {fault.where}: {fault.what}; {fault.cure}" for fault in raised.value.faults]


def test_policies_with_one_where_share_a_meter(read: Read) -> None:
    other_order = 'where = { method = ["POST"], resource = [{ glob = ["/v1/**"] }] }'
    plan = read(SOURCE + policy("one", POSTS) + policy("two", other_order, 'per = "address"')).plan()
    assert [meter.name for meter in plan.meters] == ["requests", NAME, "traffic", "users"]
    assert {kept.name: kept.meter for kept in plan.policies} == {"one": NAME, "two": NAME}
    assert plan.meters[1] == Meter(NAME, where=WHERE)
    assert plan_from(plan.to_json()) == plan


def test_a_policy_without_where_is_stored_as_before(read: Read) -> None:
    plan = read(SOURCE + policy("one", "where = {}")).plan()
    assert plan == read(SOURCE + policy("one")).plan()
    assert "where " not in plan.to_json()


def test_a_sum_keeps_its_field_unit_and_conditions(read: Read) -> None:
    settings = read(SOURCE + policy("large", 'meter = "traffic"', POSTS, limit='"1 GiB"'))
    name = f"traffic where {NAME.partition(' where ')[2]}"
    plan = settings.plan()
    [meter] = [meter for meter in plan.meters if meter.name == name]
    assert (meter.field, meter.join) == ("volume", "sum")
    assert meter.where == (*WHERE, Condition("status", ("200-299",)))
    assert settings.units() == {"traffic": "bytes", name: "bytes"}
    assert plan.policies[0].meter_unit == "bytes"


def test_distinct_values_of_some_requests(read: Read) -> None:
    plan = read(SOURCE + policy("guessing", 'meter = "users"', 'where = { status = "401" }')).plan()
    assert (plan.policies[0].meter, plan.policies[0].meter_join) == ("users where status=401", "distinct")


def test_a_candidate_counts_the_same_requests(read: Read) -> None:
    plan = read(SOURCE + policy("daily", POSTS, "candidate = { limit = 3 }")).plan()
    assert [(kept.name, kept.meter) for kept in plan.policies] == [("daily", NAME), ("daily/candidate", NAME)]


def test_the_part_of_a_surge_is_of_these_requests_and_its_whole_is_not(read: Read) -> None:
    failing = policy(
        "failing", 'kind = "surge"', "share = 0.5", 'where = { status = "401" }', window='{ rolling = "60s" }'
    )
    [surge] = read(SOURCE + failing).plan().policies
    assert (surge.meter, getattr(surge, "base", None)) == ("requests where status=401", "requests")


def test_a_share_and_its_whole_are_of_these_requests(read: Read) -> None:
    keys = ('kind = "share"', 'of = "resource"', 'floor = "1/s"', 'where = { method = "POST" }')
    [share] = read(SOURCE + policy("noisy", *keys, window='{ rolling = "60s" }', limit="0.4")).plan().policies
    assert (share.meter, share.groupings) == (
        "requests where method=POST",
        frozenset({"caller+resource", "resource"}),
    )


def test_a_variable_may_state_it(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"name": "x", "limit": 5, "window": {"per": "day"}, "where": {"method": {"not": "GET"}}}
    monkeypatch.setenv("GATELOCK_POLICIES", json.dumps([table]))
    assert read(SOURCE).plan().policies[0].meter == "requests where method!=GET"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (
            'where = { methd = "POST" }',
            '[[policies]] "x", where.methd: no field is named "methd" in [[sources]] "access-log"; did you '
            'mean "method"?',
        ),
        (
            'where = { status = "4xx" }',
            '[[policies]] "x", where.status: "4xx" is compared as text, which no status is; write a range of '
            'numbers: "400-499"',
        ),
        (
            "where = { user = { match = '(a' } }",
            '[[policies]] "x", where.user: match "(a": ( is not closed; add ), or write \\( for',
        ),
        ('where = "POST"', '[[policies]] "x", where: must be a table; write where = { '),
        (
            'candidate = { where = { method = "GET" } }',
            '[[policies]] "x", candidate.where: is not a known key; ',
        ),
    ],
)
def test_faults(read: Read, line: str, fault: str) -> None:
    [found] = faults(read, SOURCE + policy("x", line))
    number, _, text = found.partition(": ")
    assert text.startswith(fault), text
    assert int(number) == (SOURCE + policy("x", line)).splitlines().index(f"    {line}") + 1


@pytest.mark.parametrize(
    ("lines", "cure"),
    [
        ([], 'write per = "caller+resource"'),
        (['per = "address"'], 'write per = "address+resource"'),
        (['per = "caller+resource"'], ""),
        (['per = "resource"'], ""),
        (['action = "notify"'], ""),
    ],
)
def test_a_lock_beyond_the_resources_that_are_counted_is_remarked(
    read: Read, lines: list[str], cure: str
) -> None:
    of_all = [
        one for one in remarks(read(SOURCE + policy("x", POSTS, *lines))) if one.startswith("x: where is on")
    ]
    assert [one.rpartition(", ")[2] for one in of_all] == ([cure] if cure else [])
    without = 'where = { method = "POST" }'
    assert not [
        one for one in remarks(read(SOURCE + policy("x", without, *lines))) if one.startswith("x: where")
    ]
