"""Callers: the log counts them under the names that gates ask for."""

from __future__ import annotations

import json
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from analyzer.plan.mapping import AddressField, Condition, Field, SourceMapping, TextField
from gatekeeper.identity import UNNAMED, NameDigest, caller_of
from tests.support.counting import Counted, reasons, totals
from tests.support.vectors import DIGESTS, VECTORS, DigestVector, Vector


def mapping_by(*names: str, prefix6: int = 128) -> SourceMapping:
    fields: dict[str, Field] = {name: TextField((name,)) for name in names}
    if "address" in fields:
        fields["address"] = AddressField(("address",), prefix6)
    return SourceMapping(caller=names, fields=fields)


@pytest.mark.parametrize("vector", VECTORS, ids=str)
def test_a_record_is_counted_under_the_name_that_a_gate_asks_for(counted: Counted, vector: Vector) -> None:
    mapping = mapping_by(*vector.names, prefix6=vector.prefix6)
    found = counted(mapping, json.dumps(vector.names).encode())
    assert totals(found) == {(vector.caller or UNNAMED, "requests"): (1, 0)}


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
    found = counted(mapping_by(*names, prefix6=prefix6), json.dumps(names).encode())
    caller = caller_of(prefix6=prefix6, **names) or UNNAMED
    assert [row.key for row in found.rows] == [caller]
    assert reasons(found) == []


UNUSABLE = ["\u202e", "a\u0085", "a\x00", "x" * 257, "a\ud800", "\u2066"]


@pytest.mark.parametrize("key", UNUSABLE, ids=ascii)
def test_a_client_with_an_unusable_name_counts_under_its_address_and_stops_nothing(
    counted: Counted, key: str
) -> None:
    mapping = replace(mapping_by("api_key", "address"), caller=("api_key",), rejected_in_row_max=3)
    records = [json.dumps({"api_key": key, "address": "192.0.2.1"}).encode()] * 10
    found = counted(mapping, *records)
    assert totals(found) == {("address:192.0.2.1", "requests"): (10, 0)}
    assert [part.renamed for part in found.parts] == [10]


def test_bytes_that_are_not_utf8_cost_their_sender_its_name_and_nothing_else(counted: Counted) -> None:
    mapping = replace(mapping_by("api_key", "address"), rejected_in_row_max=3)
    records = [b'{"api_key": "caf\xe9", "address": "192.0.2.1"}'] * 5 + [b'{"api_key": "b", "x": "\xff"}']
    found = counted(mapping, *records)
    assert totals(found) == {("address:192.0.2.1", "requests"): (5, 0), ("api_key:b", "requests"): (1, 0)}
    assert [part.renamed for part in found.parts] == [5]


def test_a_request_without_any_usable_name_counts_under_one_fixed_caller(counted: Counted) -> None:
    mapping = replace(mapping_by("api_key", "address"), rejected_in_row_max=3)
    found = counted(mapping, *[b'{"api_key": "\\u0000", "address": "unix:"}'] * 5, b'{"api_key": ""}')
    assert totals(found) == {("unnamed:", "requests"): (6, 0)}
    assert [part.renamed for part in found.parts] == [6]


def test_a_record_without_any_field_of_a_caller_counts_under_the_fixed_caller_too(counted: Counted) -> None:
    mapping = replace(mapping_by("api_key", "user"), rejected_in_row_max=3)
    found = counted(mapping, b"{}", b'{"key": "acme"}', b'{"api_key": null}', b'{"user": ""}')
    assert totals(found) == {("unnamed:", "requests"): (4, 0)}
    assert [part.renamed for part in found.parts] == [4]


@pytest.mark.parametrize("value", ["\u202e", "nowhere", "x" * 300], ids=ascii)
def test_an_unusable_text_of_a_grouping_counts_under_the_empty_key(counted: Counted, value: str) -> None:
    mapping = mapping_by("api_key", "tenant", "address")
    record = json.dumps({"api_key": "acme", "tenant": value, "address": value}).encode()
    found = counted(mapping, record, groupings=("caller", "address", "address/24"))
    assert {(row.grouping, row.key) for row in found.rows} == {
        ("caller", "api_key:acme"), ("address", ""), ("address/24", "")
    }  # fmt: skip


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
        b'{"user": 7, "address": "192.0.2.1"}',
    )
    assert reasons(found) == ["bad-caller"]
    assert [(row.key, row.value) for row in found.rows] == [
        ("address:192.0.2.1", 2),
        ("api_key:acme", 1),
        ("user:ann", 2),
    ]


@pytest.mark.parametrize("vector", DIGESTS, ids=str)
def test_a_field_with_a_digest_is_counted_by_it(counted: Counted, vector: DigestVector) -> None:
    digest = NameDigest(vector.secret)
    fields: dict[str, Field] = {
        "api_key": TextField(("api_key",), digest.fingerprint),
        "tenant": TextField(("api_key",), digest.fingerprint),
    }
    mapping = SourceMapping(
        caller=("api_key",), fields=fields, deny_if=(Condition("tenant", (vector.text,)),)
    )
    found = counted(
        mapping,
        json.dumps({"api_key": vector.text}).encode(),
        groupings=("caller", "tenant"),
        digests=[digest],
    )
    assert {(row.grouping, row.key, row.denied) for row in found.rows} == {
        ("caller", f"api_key:{vector.digest}", 1), ("tenant", vector.digest, 1)
    }  # fmt: skip


def test_an_unusable_name_has_no_digest(counted: Counted) -> None:
    digest = NameDigest("kept in a secret file")
    fields: dict[str, Field] = {
        "api_key": TextField(("api_key",), digest.fingerprint),
        "address": AddressField(("address",)),
    }
    mapping = SourceMapping(caller=("api_key",), fields=fields)
    records = [json.dumps({"api_key": key, "address": "192.0.2.1"}).encode() for key in [*UNUSABLE, "", "-"]]
    assert totals(counted(mapping, *records, digests=[digest])) == {
        ("address:192.0.2.1", "requests"): (len(records), 0)
    }
