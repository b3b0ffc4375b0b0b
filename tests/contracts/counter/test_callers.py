"""The log counts a caller under the very name that a gate asks for."""

from __future__ import annotations

import json
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.core.records.mapping import AddressField, Field, NumberField, SourceMapping, TextField
from analyzer.core.records.value_rules import caller_rule
from gatekeeper.identity import caller_of
from tests.support.counting import counted, reasons, totals
from tests.support.vectors import VECTORS, Vector


def mapping_by(*names: str, prefix6: int = 128) -> SourceMapping:
    fields: dict[str, Field] = {name: TextField((name,)) for name in names}
    if "address" in fields:
        fields["address"] = AddressField(("address",), prefix6)
    return SourceMapping(caller=names, fields=fields)


@pytest.mark.parametrize("vector", VECTORS, ids=str)
def test_a_record_is_counted_under_the_name_that_a_gate_asks_for(vector: Vector) -> None:
    mapping = mapping_by(*vector.names, prefix6=vector.prefix6)
    found = counted(mapping, json.dumps(vector.names).encode())
    if vector.caller:
        assert totals(found) == {(vector.caller, "requests"): (1, 0)}
    else:  # nobody, or nobody who may be named
        assert reasons(found) == ["bad-caller"]


TEXT = st.text(st.characters(codec=None), max_size=6)
NUMBER = st.integers(0, 2**128 - 1)
ADDRESS = st.one_of(
    st.sampled_from(["192.0.2.1", "::", "::ffff:192.0.2.1", "1.2.3.4:5", "[::1]", "fe80::1%eth0", "::1/64"]),
    NUMBER.map(lambda number: str(IPv6Address(number))),
    NUMBER.map(lambda number: IPv6Address(number).exploded.upper()),
    st.integers(0, 2**32 - 1).map(lambda number: str(IPv4Address(number))),
    TEXT,
)


@given(
    names=st.dictionaries(st.sampled_from(["api_key", "user"]), st.none() | TEXT | ADDRESS),
    address=st.none() | ADDRESS,
    prefix6=st.integers(1, 128),
)
def test_both_sides_agree_about_every_name(
    names: dict[str, str | None], address: str | None, prefix6: int
) -> None:
    names["address"] = address
    try:
        caller = caller_of(prefix6=prefix6, **names)
    except ValueError:
        caller = ""
    found = counted(mapping_by(*names, prefix6=prefix6), json.dumps(names).encode())
    assert [row.key for row in found.rows] == ([caller] if caller else [])
    assert reasons(found) == ([] if caller else ["bad-caller"])


@pytest.mark.parametrize("value", ["1", "1.0", "true", "false", '["acme"]', '{"id":"acme"}', "1e999"])
def test_what_is_no_text_is_no_caller(value: str) -> None:
    record = f'{{"api_key": {value}, "user": "ann"}}'.encode()
    assert reasons(counted(mapping_by("api_key", "user"), record)) == ["bad-caller"]


def test_a_number_and_a_text_never_meet() -> None:
    mapping = mapping_by("api_key")
    found = counted(
        mapping, b'{"api_key": "1"}', b'{"api_key": 1}', b'{"api_key": true}', b'{"api_key": "1"}'
    )
    assert reasons(found) == ["bad-caller"] * 2
    assert [(row.key, row.value) for row in found.rows] == [("api_key:1", 2)]


def test_fallbacks_are_asked_in_order_by_each_record_for_itself() -> None:
    mapping = mapping_by("api_key", "user", "address")
    found = counted(
        mapping,
        b'{"api_key": "acme", "user": "ann", "address": "192.0.2.1"}',
        b'{"api_key": null, "user": "ann", "address": "192.0.2.1"}',
        b'{"api_key": "", "address": "192.0.2.1"}',
        b'{"user": "ann", "address": "nowhere"}',
        b'{"user": "\\n", "address": "192.0.2.1"}',
        b"{}",
    )
    assert reasons(found) == ["bad-caller", "bad-caller"]
    assert [(row.key, row.value) for row in found.rows] == [
        ("address:192.0.2.1", 1),
        ("api_key:acme", 1),
        ("user:ann", 2),
    ]


def test_many_callers_are_forgotten_and_known_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analyzer.core.records.value_rules.MEMO_VALUES_MAX", 3)
    records = [json.dumps({"api_key": f"c{n % 7}"}).encode() for n in range(70)]
    assert totals(counted(mapping_by("api_key"), *records)) == {
        (f"api_key:c{n}", "requests"): (10, 0) for n in range(7)
    }


def test_a_mapping_by_which_nobody_can_call_is_refused() -> None:
    with pytest.raises(ValueError, match="caller: map one of the fields api_key"):
        counted(SourceMapping(caller=("api_key",), fields={"user": TextField(("user",))}))
    with pytest.raises(ValueError, match="n: a NumberField cannot name a caller"):
        counted(SourceMapping(caller=("n",), fields={"n": NumberField(("n",))}))


def test_what_is_large_is_not_remembered() -> None:
    """A log may be full of megabytes where a name belongs: they must not stay in memory."""
    rule = caller_rule("api_key", TextField(("key",)), 256)
    assert rule.read(["acme", "x" * 1000, "ann"]) == ["api_key:acme", None, "api_key:ann"]
    assert set(rule) == {"acme", "ann"}
