"""`count_if` of a source: the plan that it becomes, its faults, and the remark where it is missing."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from analyzer.config.diagnostics.faults import ConfigInvalid
from analyzer.config.settings import Settings
from analyzer.faces.cli.verbs.check import remarks
from analyzer.plan.mapping import Condition, Not
from analyzer.plan.plan import UnknownPlan, plan_from
from tests.house.reading import ROOT

Read = Callable[[str], Settings]

SOURCE = """
    [[sources]]
    topic   = "access-log"
    caller  = ["api_key", "address"]
    [sources.fields]
    api_key  = "key"
    address  = "ip"
    status   = "status"
    took     = { path = "took", unit = "ms" }
"""
NOT_REFUSED = '{ status = { not = ["401", "403"] } }'
REMARK = (
    "access-log: any client may use up the limit of another: a request with a wrong secret counts under the "
    'name that it gives; write count_if = { status = { not = ["401", "403"] } }, or authenticated = true if '
    "the log has only names that were checked"
)


def with_keys(*lines: str) -> str:
    return SOURCE.replace("[sources.fields]", "\n    ".join([*lines, "[sources.fields]"]))


def count_if(condition: str) -> str:
    return with_keys(f"count_if = {condition}")


def faults(read: Read, text: str) -> list[str]:
    with pytest.raises(ConfigInvalid) as raised:
        read(text)
    return [f"{fault.where}: {fault.what}; {fault.cure}" for fault in raised.value.faults]


def test_values_that_a_field_must_and_must_not_have(read: Read) -> None:
    text = '{ status = { not = [401, "403", "500-599"] }, api_key = ["a", "b"], address = "192.0.2.1" }'
    assert read(count_if(text)).mappings()["access-log"].count_if == (
        Condition("status", Not(("401", "403", "500-599"))),
        Condition("api_key", ("a", "b")),
        Condition("address", ("192.0.2.1",)),
    )


def test_count_if_changes_the_digest_of_its_source_and_no_other(read: Read) -> None:
    plain, conditional = read(SOURCE).plan(), read(count_if(NOT_REFUSED)).plan()
    for text in (SOURCE, with_keys("authenticated = true"), count_if("{}")):
        assert "count_if" not in read(text).plan().to_json()
        assert read(text).plan().parts == plain.parts
    changed = {name for name in plain.parts if plain.parts[name] != conditional.parts[name]}
    assert changed == {"source access-log"}
    assert plan_from(conditional.to_json()) == conditional


def test_the_order_of_conditions_and_values_has_no_meaning(read: Read) -> None:
    one = read(count_if('{ status = { not = ["401", "403"] }, api_key = "a" }')).plan()
    other = read(count_if('{ api_key = "a", status = { not = ["403", "401"] } }')).plan()
    assert one == other
    assert one != read(count_if('{ api_key = "a", status = ["401", "403"] }')).plan()


def test_a_word_that_a_later_version_adds_to_a_condition_is_refused(read: Read) -> None:
    stored = read(count_if(NOT_REFUSED)).plan().to_json()
    later = stored.replace('{"not":["401","403"]}', '{"not":["401","403"],"prefix":true}')
    assert later != stored
    with pytest.raises(UnknownPlan, match="prefix"):
        plan_from(later)


AT = '[[sources]] "access-log", count_if'


@pytest.mark.parametrize(
    ("condition", "fault"),
    [
        ('"status"', f"{AT}: must be a table; write count_if = {NOT_REFUSED}"),
        (
            '{ status = { is = "401" } }',
            f'{AT}.status: {{ is }} is not a condition; write values, not, or a pattern: "glob", "prefix"',
        ),
        (
            '{ status = { not = "401", is = "200" } }',
            f'{AT}.status: {{ not, is }} is not a condition; write one key, {{ not = ["401", "403"] }}',
        ),
        (
            "{ status = {} }",
            f'{AT}.status: {{ no key }} is not a condition; write one key, {{ not = ["401", "403"] }}',
        ),
        (
            "{ status = { not = [] } }",
            f'{AT}.status: [] cannot be compared with a field; write "text", 429, true, "500-599", a pattern '
            'such as { glob = "/v1/*" }, a list of these, or { not = ... } with any of them',
        ),
        (
            '{ status = { regex = "^4" } }',
            f'{AT}.status: {{ regex }} is not a condition; did you mean "match"?',
        ),
        (
            '{ status = { prefx = "4" } }',
            f'{AT}.status: {{ prefx }} is not a condition; did you mean "prefix"?',
        ),
        (
            '{ status = ["401", { not = "403" }] }',
            f'{AT}.status: {{ not }} is not a condition; write one key, {{ not = ["401", "403"] }} around',
        ),
        (
            "{ status = { glob = 7 } }",
            f'{AT}.status: must be text, or a list, not 7; write {{ glob = "/v1/*" }}',
        ),
        (
            '{ status = { prefix = ["4", 5] } }',
            f'{AT}.status: must be text, not 5; write {{ prefix = "/internal/" }}',
        ),
        (
            '{ api_key = { not = { match = "a(?!b)" } } }',
            f'{AT}.api_key: match "a(?!b)": (?! looks around, and a text is read once; write what stands',
        ),
        (
            '{ api_key = { glob = "/v1/*?q=*" } }',
            f'{AT}.api_key: glob "/v1/*?q=*": ? is not in a path: a glob is compared without the query',
        ),
        (
            '{ status = { not = "4xx" } }',
            f'{AT}.status: "4xx" is compared as text, which no status is; write a range of numbers: '
            '"400-499"',
        ),
        ('{ code = "200" }', f'{AT}.code: no field is named "code" in [[sources]] "access-log"; add it to'),
        ('{ took = "200" }', f'{AT}.took: "took" is a decimal, money or a duration; conditions compare text'),
    ],
)
def test_faults(read: Read, condition: str, fault: str) -> None:
    [found] = faults(read, count_if(condition))
    assert found.startswith(fault)


def test_a_source_of_addresses_has_no_names_to_protect(read: Read) -> None:
    text = count_if(NOT_REFUSED).replace('["api_key", "address"]', '["address"]')
    assert faults(read, text) == [f"{AT}: has no effect: each caller is an address; remove it"]


def test_names_that_a_wrong_secret_uses_up_are_remarked(read: Read) -> None:
    assert list(remarks(read(SOURCE))) == [REMARK]
    for keys in (f"count_if = {NOT_REFUSED}", "authenticated = true"):
        assert list(remarks(read(with_keys(keys)))) == []
    assert list(remarks(read(SOURCE.replace('["api_key", "address"]', '"address"')))) == []
    assert list(remarks(read(SOURCE.replace('status   = "status"', "")))) == []


CONFIGURATIONS = sorted((ROOT / "deploy").rglob("*.toml"))
SHIPPED = [path for path in CONFIGURATIONS if "sources" in tomllib.loads(path.read_text())]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_configurations_that_are_shipped_earn_no_such_remark(read: Read, path: Path) -> None:
    found = list(remarks(read(path.read_text())))
    assert not [remark for remark in found if "wrong secret" in remark]
