"""The encoding of a record as a line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatekeeper.adapters.admission_control import RequestIdentity
from gatekeeper.adapters.refusal_response import header_value
from gatekeeper.model import Decision
from gatekeeper.requestlog.log_record import (
    FIELDS_MAX,
    TEXT_CHARS_MAX,
    LogEntry,
    RequestNotes,
    encode_line,
    gate_fields,
)

ENTRY = LogEntry(1_700_000_000_123_456_789, 1_500_900, 200, 5, "GET", "/v1/items/7", RequestIdentity())


def written(**changed: Any) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(encode_line(ENTRY._replace(**changed), "id").text)
    return record


def test_a_record_has_only_known_fields() -> None:
    assert written() == {
        "id": "id",
        "ts": 1_700_000_000_123_456,
        "address": "",
        "method": "GET",
        "path": "/v1/items/7",
        "status": 200,
        "bytes": 5,
        "duration": 1_500,
    }


def test_the_callers_kind_is_the_key_of_its_name() -> None:
    identity = RequestIdentity("api_key:a:b", address="192.0.2.1", resource="/v1/items/{id}", tenant="north")
    record = written(identity=identity)
    assert record["caller"] == {"api_key": "a:b"}
    assert (record["address"], record["tenant"]) == ("192.0.2.1", "north")
    assert record["resource"] == "/v1/items/{id}"


@pytest.mark.parametrize("caller", ["address:192.0.2.1", "address:2001:db8::/64"])
def test_a_caller_named_by_its_address_has_that_address_and_not_the_last_proxys(caller: str) -> None:
    record = written(identity=RequestIdentity(caller, address="10.0.0.1"))
    assert record["address"] == caller.removeprefix("address:").removesuffix("/64")
    assert "caller" not in record


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        (ENTRY._replace(identity=RequestIdentity("user:ann", address="192.0.2.1")), "user:ann"),
        (ENTRY._replace(identity=RequestIdentity(address="192.0.2.1")), "address:192.0.2.1"),
        (ENTRY, ""),
    ],
)
def test_a_lines_key_is_the_caller_or_its_address(entry: LogEntry, key: str) -> None:
    assert encode_line(entry, "id").key == key


@given(policy=st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S", "Zs"])))
def test_the_policy_is_read_from_the_response_header(policy: str) -> None:
    header = header_value(Decision(False, policy=policy))
    assert gate_fields(ENTRY._replace(verdict=header)) == ("denied", policy)


@pytest.mark.parametrize(
    ("header", "decision", "wanted"),
    [
        ("", None, ("", "")),
        ("denied", None, ("denied", "")),
        ('limited;policy="burst"', None, ("limited", "burst")),
        ("", Decision(False, policy="burst", reason="limited"), ("limited", "burst")),
        ("denied", Decision(False, reason="stale"), ("stale", "")),
        ("", Decision(True), ("allowed", "")),
        ("", Decision(True, policy="burst", limit=9, remaining=4), ("allowed", "")),
        ("", Decision(True, policy="daily", shadow=True), ("shadow", "daily")),
        ("another meaning", Decision(True), ("allowed", "")),
        ('denied;policy="daily"', Decision(True), ("allowed", "")),  # the application's
        ("denied", Decision(True, policy="daily", shadow=True), ("shadow", "daily")),
        ("denied", Decision(False, policy="daily"), ("denied", "daily")),
        ("", Decision(False, policy="täglich"), ("denied", "täglich")),
        ("denied", Decision(False), ("denied", "")),
    ],
)
def test_the_guards_decision_takes_precedence_over_the_header(
    header: str, decision: Decision | None, wanted: tuple[str, str]
) -> None:
    assert gate_fields(ENTRY._replace(verdict=header, decision=decision)) == wanted


@given(text=st.text(st.characters(codec=None, categories=["Cs", "Cc", "L", "S", "Zl"])))
def test_a_record_is_one_line_of_ascii_with_any_path(text: str) -> None:
    line = encode_line(ENTRY._replace(path=text), "id").text
    assert line.isascii()
    assert line.index(b"\n") == len(line) - 1
    assert json.loads(line).get("path", "") == text


class TestRequestNotes:
    def test_fields_of_the_application_are_under_more(self) -> None:
        notes = RequestNotes()
        notes.add(tokens=812, model="large", cached=True)
        notes.add(tokens=900, cost=0.5, nothing=None)
        wanted = {"tokens": 900, "model": "large", "cached": True, "cost": 0.5, "nothing": None}
        assert written(fields=notes.fields)["more"] == wanted

    def test_long_text_is_cut(self) -> None:
        notes = RequestNotes()
        notes.add(why="x" * 1000)
        assert notes.fields == {"why": "x" * TEXT_CHARS_MAX}

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**63, ["a"], {"a": 1}, b"a"])
    def test_a_value_that_json_cannot_represent_is_an_error(self, value: Any) -> None:
        with pytest.raises(ValueError, match="tokens"):
            RequestNotes().add(tokens=value)

    def test_the_number_of_fields_is_bounded(self) -> None:
        notes = RequestNotes()
        notes.add(**{f"f{number}": number for number in range(FIELDS_MAX)})
        with pytest.raises(ValueError, match="at most 16 fields"):
            notes.add(one_more=1)
        assert len(notes.fields or ()) == FIELDS_MAX
