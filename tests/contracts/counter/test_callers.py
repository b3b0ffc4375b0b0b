"""Callers: the log counts them under the names that gates ask for."""

from __future__ import annotations

import json
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.core.records.mapping import AddressField, Field, SourceMapping, TextField
from gatekeeper.identity import caller_of
from tests.support.counting import Counted, reasons, totals
from tests.support.vectors import VECTORS, Vector


def mapping_by(*names: str, prefix6: int = 128) -> SourceMapping:
    fields: dict[str, Field] = {name: TextField((name,)) for name in names}
    if "address" in fields:
        fields["address"] = AddressField(("address",), prefix6)
    return SourceMapping(caller=names, fields=fields)


@pytest.mark.parametrize("vector", VECTORS, ids=str)
def test_a_record_is_counted_under_the_name_that_a_gate_asks_for(counted: Counted, vector: Vector) -> None:
    mapping = mapping_by(*vector.names, prefix6=vector.prefix6)
    found = counted(mapping, json.dumps(vector.names).encode())
    if vector.caller:
        assert totals(found) == {(vector.caller, "requests"): (1, 0)}
    else:  # no caller, or one that cannot be a name
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
def test_the_log_and_the_gate_agree_about_every_name(
    counted: Counted, names: dict[str, str | None], address: str | None, prefix6: int
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
def test_a_value_other_than_text_rejects_the_record(counted: Counted, value: str) -> None:
    record = f'{{"api_key": {value}, "user": "ann"}}'.encode()
    assert reasons(counted(mapping_by("api_key", "user"), record)) == ["bad-caller"]


def test_a_number_never_counts_as_the_text_of_its_digits(counted: Counted) -> None:
    mapping = mapping_by("api_key")
    found = counted(
        mapping, b'{"api_key": "1"}', b'{"api_key": 1}', b'{"api_key": true}', b'{"api_key": "1"}'
    )
    assert reasons(found) == ["bad-caller"] * 2
    assert [(row.key, row.value) for row in found.rows] == [("api_key:1", 2)]


def test_the_first_nonempty_caller_field_names_the_caller(counted: Counted) -> None:
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
