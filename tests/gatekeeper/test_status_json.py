"""The status of a gate as JSON: written, read, and bounded."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatekeeper.feed.feed_json import SECONDS_MAX
from gatekeeper.identity import NAME_BYTES_MAX
from gatekeeper.model import Cursor, GateStatus, LockHits, LockKey, SourceError
from gatekeeper.telemetry import status_json
from gatekeeper.telemetry.status_json import COUNT_MAX, STATUS_BYTES_MAX

SECONDS = st.floats(0, SECONDS_MAX)
COUNTS = st.integers(0, COUNT_MAX)
WORDS = st.text(max_size=status_json.WORD_CHARACTERS_MAX)
KEYS = st.builds(LockKey, st.text(), st.text(), st.text(), st.text())
STATUSES = st.builds(
    GateStatus,
    instance=st.from_regex(status_json.INSTANCE, fullmatch=True),
    number=COUNTS,
    application=WORDS,
    library=WORDS,
    at=st.none() | st.builds(Cursor, COUNTS, WORDS),
    age=st.none() | SECONDS,
    locks=st.lists(st.builds(LockHits, KEYS, COUNTS, COUNTS)).map(tuple),
    more=st.tuples(COUNTS, COUNTS),
    callers=st.lists(st.text(max_size=status_json.CALLER_CHARACTERS_MAX)).map(tuple),
    uptime=SECONDS,
    stale_after=SECONDS,
    clock_skew=st.floats(-SECONDS_MAX, SECONDS_MAX),
    mode=WORDS,
    ignored=st.lists(WORDS, max_size=status_json.WORDS_MAX).map(tuple),
    values=st.lists(WORDS, max_size=status_json.WORDS_MAX).map(tuple),
)


@given(STATUSES)
def test_a_written_status_is_read_back(status: GateStatus) -> None:
    text = status_json.dump(status)
    assert text.isascii()
    assert status_json.load(text) == status


def a_document(**fields: object) -> str:
    return json.dumps({"instance": "host:1:ab", "number": 1} | fields)


def test_every_part_of_a_status_is_bounded() -> None:
    hits = {"scope": "caller", "key": "k", "policy": "p", "checks": 10**400, "denials": -1}
    status = status_json.load(
        a_document(
            callers=["c" * 1_000] * 1_000, locks=[hits] * 2_000, ignored=["i" * 999] * 99, mode="m" * 999
        )
    )
    assert [len(name) for name in status.callers] == [
        status_json.CALLER_CHARACTERS_MAX
    ] * status_json.CALLERS_MAX
    assert len(status.locks) == status_json.LOCKS_MAX
    assert status.locks[0][1:] == (COUNT_MAX, 0)
    assert [len(word) for word in (*status.ignored, status.mode)] == [status_json.WORD_CHARACTERS_MAX] * 21


def test_the_longest_status_of_a_gate_fits_the_bound() -> None:
    """A hundred locks and 64 callers with the longest names; JSON writes their two-byte characters in six."""
    name = "\xe9" * (NAME_BYTES_MAX // 2)
    hits = LockHits(LockKey("caller+resource", name, name, "p" * 64), COUNT_MAX, COUNT_MAX)
    caller = "k" * 64 + ":" + name
    status = GateStatus("i", 1, "a", "1", None, None, (hits,) * 100, (0, 0), (caller,) * 64)
    assert len(status_json.dump(status)) < STATUS_BYTES_MAX


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"locks": 7}, "expected locks to be a list"),
        ({"instance": "../../etc"}, "expected instance to be letters"),
        ({"instance": ""}, "expected instance to be letters"),
        ({"clock_skew_s": float("nan")}, "expected clock_skew_s to be seconds"),
        ({"age_s": -1}, "expected age_s to be seconds"),
        ({"number": "1"}, "expected number to be a whole number"),
    ],
)
def test_a_malformed_status_is_rejected(fields: dict[str, object], why: str) -> None:
    with pytest.raises(SourceError, match=why):
        status_json.load(a_document(**fields))


def test_unknown_fields_are_ignored() -> None:
    assert status_json.load(a_document(colour="red")).instance == "host:1:ab"
