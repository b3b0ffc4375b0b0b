"""The feed's answer as JSON: written, parsed, and rejected unless complete."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatekeeper.feed import feed_json
from gatekeeper.model import Clear, Cursor, Lock, LockKey, Rate, Set, SourceError, Update
from gatekeeper.view.lock_tuples import pack_change
from tests.support.feed import NOON, a_lock

TIMES = st.datetimes(timezones=st.just(UTC))
LOCKS = st.builds(
    Lock,
    scope=st.text(),
    key=st.text(),
    policy=st.text(),
    began=TIMES,
    until=TIMES,
    resource=st.text(),
    kind=st.text(),
    action=st.text(),
    status=st.integers(),
    reason=st.text(),
    detail=st.text(),
    on_stale=st.text(),
    slow=st.none() | st.builds(Rate, st.integers(1), st.floats(0.001, feed_json.SECONDS_MAX)),
)
SECONDS = st.floats(0, feed_json.SECONDS_MAX)
KEYS = st.builds(LockKey, st.text(), st.text(), st.text(), st.text())
UPDATES = st.builds(
    Update,
    at=st.builds(Cursor, st.integers(0), st.text()),
    since=st.none() | st.integers(0),
    snapshot=st.booleans(),
    now=TIMES,
    behind=SECONDS,
    next_poll=SECONDS,
    changes=st.lists(LOCKS.map(Set) | KEYS.map(Clear)).map(tuple),
    unknown=st.just(()),  # filled by the parser
    waited=SECONDS,
)


def an_answer(**fields: object) -> dict[str, object]:
    answer = json.loads(
        feed_json.dump(Update(Cursor(57, "9f3c"), 41, False, NOON, 0.8, 0.4, (Set(a_lock()),)))
    )
    return answer | fields


@given(UPDATES)
def test_a_written_answer_is_read_back(update: Update) -> None:
    assert feed_json.load(feed_json.dump(update)) == update


@given(UPDATES, st.data())
def test_no_part_of_an_answer_passes_for_the_whole(update: Update, data: st.DataObject) -> None:
    text = feed_json.dump(update)
    with pytest.raises(SourceError):
        feed_json.load(text[: data.draw(st.integers(0, len(text) - 1))])


@given(st.binary() | st.text() | st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner)
    | st.dictionaries(st.sampled_from(sorted(feed_json.ANSWER_FIELDS | feed_json.SET_FIELDS)), inner),
).map(json.dumps))  # fmt: skip
def test_any_text_is_an_answer_or_a_source_error(text: str | bytes) -> None:
    try:
        update = feed_json.load(text)
    except SourceError:
        return
    assert feed_json.load(feed_json.dump(update)) == update, "a parsed answer can be written again"


def test_the_format_of_an_answer_does_not_change() -> None:
    """Programs in other languages read and write it."""
    lock = Lock(
        scope="caller",
        key="api_key:acme",
        policy="daily",
        began=datetime(2026, 11, 20, 21, 14, 3, tzinfo=UTC),
        until=datetime(2026, 11, 20, 23, tzinfo=UTC),
        detail="100,000 requests per day (Europe/Berlin), 100,214 counted",
    )
    flood = Clear(LockKey("range", "203.0.113.0/24", "", "flood"))
    now = datetime(2026, 11, 20, 21, 14, 4, tzinfo=UTC)
    update = Update(Cursor(57, "9f3c"), 41, False, now, 0.8, 0.4, (Set(lock), flood))
    assert json.loads(feed_json.dump(update)) == {
        "format": 1,
        "version": 57,
        "mark": "9f3c",
        "since": 41,
        "snapshot": False,
        "now": "2026-11-20T21:14:04Z",
        "waited_s": 0.0,
        "behind_s": 0.8,
        "next_poll_s": 0.4,
        "changes": [
            {
                "op": "set",
                "scope": "caller",
                "key": "api_key:acme",
                "resource": None,
                "policy": "daily",
                "kind": "quota",
                "action": "deny",
                "status": 429,
                "reason": "quota-exceeded",
                "detail": "100,000 requests per day (Europe/Berlin), 100,214 counted",
                "began": "2026-11-20T21:14:03Z",
                "until": "2026-11-20T23:00:00Z",
                "on_stale": "keep",
            },
            {"op": "clear", "scope": "range", "key": "203.0.113.0/24", "resource": None, "policy": "flood"},
        ],
    }


def a_snapshot(*locks: Lock) -> str:
    return feed_json.dump(Update(Cursor(57, "9f3c"), None, True, NOON, 0.8, 0.4, tuple(map(Set, locks))))


@given(st.lists(LOCKS.map(Set) | KEYS.map(Clear)))
def test_each_line_is_the_object_as_any_program_would_write_it(changes: list[Set | Clear]) -> None:
    lines = feed_json.encode_changes(changes).decode().split(",\n") if changes else []
    assert lines == [json.dumps(feed_json.change_fields(change)) for change in changes]
    assert [feed_json.parse_change(feed_json.parse_object(line, "line"), []) for line in lines] == [
        pack_change(change) for change in changes
    ]


def test_each_change_is_on_a_separate_line() -> None:
    """So that a parser need not read a hundred thousand of them in one piece."""
    first, *changes, last = a_snapshot(a_lock(), a_lock("user:bob")).split("\n")
    assert first.endswith('"changes": [')
    assert [json.loads(change.removesuffix(","))["key"] for change in changes] == ["api_key:acme", "user:bob"]
    assert last == "]}"


@pytest.mark.parametrize("indent", [None, 1])
def test_any_layout_is_accepted(indent: int | None) -> None:
    text = a_snapshot(a_lock(), a_lock("user:bob"))
    assert feed_json.load(json.dumps(json.loads(text), indent=indent)) == feed_json.load(text)
    # One change is on one line and the other is not.
    assert feed_json.load(
        text.replace('"policy"', '\n"policy"').replace('\n"policy"', '"policy"', 1)
    ) == feed_json.load(text)


@pytest.mark.parametrize("indent", [None, 1, "by line"])
def test_a_changed_snapshot_is_detected(indent: int | str | None) -> None:
    for text in (
        a_snapshot(a_lock(), a_lock("user:bob")).replace("user:bob", "user:eve"),
        a_snapshot(a_lock(), a_lock("user:bob")).replace(
            json.dumps(feed_json.change_fields(Set(a_lock()))) + ",\n", ""
        ),
    ):
        json.loads(text)
        laid_out = text if indent == "by line" else json.dumps(json.loads(text), indent=indent)
        with pytest.raises(SourceError, match="do not match the checksum"):
            feed_json.load(laid_out)


def test_an_unknown_kind_of_checksum_is_ignored_and_named() -> None:
    answer = json.loads(a_snapshot(a_lock())) | {"checksum": "blake9:00"}
    assert feed_json.load(json.dumps(answer)).unknown == ("checksum blake9",)


def test_unknown_words_are_left_out_and_named() -> None:
    known = feed_json.change_fields(Set(a_lock()))
    answer = an_answer(
        hint="x",
        changes=[
            {"op": "warn", "of": "anything at all"},
            known | {"colour": {"red": 10}},
            feed_json.change_fields(Clear(a_lock().at)) | {"by": "ann"},
        ],
    )
    update = feed_json.load(json.dumps(answer))
    assert update.changes == (Set(a_lock()), Clear(a_lock().at))
    assert update.unknown == ("field hint", "op warn", "field colour", "field by")


def test_times_in_other_zones_are_converted_to_utc() -> None:
    berlin = NOON.astimezone(timezone(timedelta(hours=1)))
    assert feed_json.load(json.dumps(an_answer(now=berlin.isoformat()))).now == NOON


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"format": 2}, "this gatekeeper reads format 1, got format 2"),
        ({"version": "57"}, "expected version to be a whole number, got '57'"),
        ({"version": True}, "expected version to be a whole number"),
        ({"now": "2026-11-20T21:14:04"}, "expected now to be a time with its zone"),
        ({"now": "yesterday"}, "expected now to be a time with its zone"),
        ({"now": "0001-01-01T00:00:00+12:00"}, "expected now to be a time with its zone"),
        ({"behind_s": float("nan")}, "expected behind_s to be seconds"),
        ({"next_poll_s": -1}, "expected next_poll_s to be seconds"),
        ({"next_poll_s": 10**400}, "expected next_poll_s to be seconds"),
        ({"snapshot": 1}, "expected snapshot to be true or false"),
        ({"changes": None}, "expected changes to be a list"),
        ({"changes": [7]}, r"changes\[0\]: expected an object, got 7"),
        (
            {"changes": [{"op": "clear", "scope": "caller", "key": 7}]},
            r"changes\[0\]: expected key to be text",
        ),
        ({"changes": [feed_json.change_fields(Set(a_lock())) | {"slow": {"limit": 0}}]}, "a rate above 0"),
        ({"changes": [{"op": "set", "scope": "caller", "key": "k", "policy": "p"}]}, "began"),
    ],
)
def test_a_malformed_answer_is_rejected_with_place_and_reason(fields: dict[str, object], why: str) -> None:
    with pytest.raises(SourceError, match=why):
        feed_json.load(json.dumps(an_answer(**fields)))
