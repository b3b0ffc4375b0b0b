"""What a line of the request log says."""

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
    line_of,
    verdict_of,
)

ENTRY = LogEntry(1_700_000_000_123_456_789, 1_500_900, 200, 5, "GET", "/v1/items/7", RequestIdentity())


def written(**changed: Any) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(line_of(ENTRY._replace(**changed), "id").text)
    return record


def test_a_record_has_what_is_known_and_nothing_else() -> None:
    assert written() == {
        "id": "id",
        "ts": 1_700_000_000_123_456,
        "method": "GET",
        "path": "/v1/items/7",
        "status": 200,
        "bytes": 5,
        "duration": 1_500,
    }


def test_a_callers_kind_is_the_key_that_its_name_stands_under() -> None:
    who = RequestIdentity("api_key:a:b", address="192.0.2.1", resource="/v1/items/{id}", tenant="north")
    record = written(who=who)
    assert record["caller"] == {"api_key": "a:b"}
    assert (record["address"], record["tenant"]) == ("192.0.2.1", "north")
    assert record["resource"] == "/v1/items/{id}"


@pytest.mark.parametrize("caller", ["address:192.0.2.1", "address:2001:db8::/64"])
def test_a_caller_that_goes_by_its_address_has_that_and_not_the_last_proxys(caller: str) -> None:
    record = written(who=RequestIdentity(caller, address="10.0.0.1"))
    assert record["address"] == caller.removeprefix("address:").removesuffix("/64")
    assert "caller" not in record


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        (ENTRY._replace(who=RequestIdentity("user:ann", address="192.0.2.1")), "user:ann"),
        (ENTRY._replace(who=RequestIdentity(address="192.0.2.1")), "address:192.0.2.1"),
        (ENTRY, ""),
    ],
)
def test_a_line_knows_by_whom_it_is_counted(entry: LogEntry, key: str) -> None:
    assert line_of(entry, "id").key == key


@given(policy=st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S", "Zs"])))
def test_the_header_of_a_refusal_is_read_back(policy: str) -> None:
    header = header_value(Decision(False, policy=policy))
    assert verdict_of(ENTRY._replace(verdict=header)) == ("denied", policy)


@pytest.mark.parametrize(
    ("header", "decision", "said"),
    [
        ("", None, ("", "")),
        ("denied", None, ("denied", "")),
        ("", Decision(True), ("allowed", "")),
        ("", Decision(True, policy="burst", limit=9, remaining=4), ("allowed", "")),
        ("", Decision(True, policy="daily", shadow=True), ("shadow", "daily")),
        ("something of another's", Decision(True), ("allowed", "")),
    ],
)
def test_the_verdict_is_the_headers_or_the_guards(
    header: str, decision: Decision | None, said: tuple[str, str]
) -> None:
    assert verdict_of(ENTRY._replace(verdict=header, decision=decision)) == said


@given(text=st.text(st.characters(codec=None, categories=["Cs", "Cc", "L", "S", "Zl"])))
def test_whatever_a_path_is_made_of_a_record_is_one_line_of_ascii(text: str) -> None:
    line = line_of(ENTRY._replace(path=text), "id").text
    assert line.isascii()
    assert line.index(b"\n") == len(line) - 1
    assert json.loads(line).get("path", "") == text


class TestTheNote:
    def test_fields_of_the_applications_own_stand_apart(self) -> None:
        note = RequestNotes()
        note.add(tokens=812, model="large", cached=True)
        note.add(tokens=900, cost=0.5, nothing=None)
        wanted = {"tokens": 900, "model": "large", "cached": True, "cost": 0.5, "nothing": None}
        assert written(more=note.more)["more"] == wanted

    def test_long_text_is_cut(self) -> None:
        note = RequestNotes()
        note.add(why="x" * 1000)
        assert note.more == {"why": "x" * TEXT_CHARS_MAX}

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**63, ["a"], {"a": 1}, b"a"])
    def test_what_a_log_cannot_hold_is_refused_at_once(self, value: Any) -> None:
        with pytest.raises(ValueError, match="tokens"):
            RequestNotes().add(tokens=value)

    def test_its_fields_are_bounded(self) -> None:
        note = RequestNotes()
        note.add(**{f"f{number}": number for number in range(FIELDS_MAX)})
        with pytest.raises(ValueError, match="at most 16 fields"):
            note.add(one_more=1)
        assert len(note.more or ()) == FIELDS_MAX
