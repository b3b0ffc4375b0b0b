"""The feed's answer as JSON, as a server sends it, a file holds it, and the saved view keeps it.

An answer may hold 100,000 changes. It is laid out with one change on each line, so that a reader can parse
them one at a time and let requests run in between; in one piece it would hold the GIL for half a second. A
reader accepts any other layout, too, but then in one piece.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice, takewhile
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from gatekeeper.model import Change, Cursor, LockKey, SourceError, Update
from gatekeeper.view.lock_tuples import (
    END,
    ChangeTuple,
    LockTuple,
    PackedChanges,
    epoch_ns,
    is_set,
    pack_change,
    packed,
)

if TYPE_CHECKING:
    import hashlib

FORMAT = 1  # new fields and values do not change it; a field with another meaning does
SECONDS_MAX = 1e12  # longer than the calendar
NEXT_POLL_S = 0.4  # for an answer without `next_poll_s`

ANSWER_FIELDS = {"format", "version", "mark", "since", "snapshot", "now", "waited_s", "behind_s",
                 "next_poll_s", "checksum", "changes"}  # fmt: skip
CLEAR_FIELDS = {"op", "scope", "key", "resource", "policy"}
SET_FIELDS = CLEAR_FIELDS | {"kind", "action", "slow", "status", "reason", "detail", "began", "until",
                             "on_stale"}  # fmt: skip
FIELDS = {"set": SET_FIELDS, "clear": CLEAR_FIELDS}  # by op

OPENING, CLOSING = b'"changes": [\n', b"]}"
LINES_AT_ONCE = 16  # parsed in one call, in a twentieth of a millisecond
CACHED_TEXTS_MAX = 1_024  # of each kind
CHECKSUM_PREFIX = "sha256:"  # of the lines of the changes, without their commas


JsonItem = tuple[bytes, object]  # a change's text, and its parsed value


def encode_changes(changes: Iterable[Change]) -> bytes:
    """The changes as they stand in an answer: in ASCII, each on its line, without the last newline."""
    return ",\n".join(map(_change_line, packed(changes))).encode()


def dump(update: Update) -> str:
    """The answer as one JSON document, in ASCII."""
    text = encode_changes(update.changes)
    front, back = encode_head(update, changes_checksum(text) if update.snapshot else "")
    return b"".join((front, repr(update.waited).encode(), back, text, encode_end(text))).decode()


def encode_head(update: Update, checksum: str = "") -> tuple[bytes, bytes]:
    """The answer up to its changes, without the number of `waited_s`: the text before that, and after it.

    Gates that get the same changes differ in that number alone. `checksum` is of the changes in a snapshot.
    """
    front = {
        "format": FORMAT,
        "version": update.at.version,
        "mark": update.at.mark,
        "since": update.since,
        "snapshot": update.snapshot,
        "now": time_text(update.now),
    }
    back: dict[str, object] = {"behind_s": update.behind, "next_poll_s": update.next_poll}
    if update.snapshot:
        back["checksum"] = checksum
    return (
        json.dumps(front).encode().removesuffix(b"}") + b', "waited_s": ',
        b", " + json.dumps(back).encode()[1:-1] + b", " + OPENING,
    )


def encode_end(changes: bytes) -> bytes:
    """The text of an answer after `changes`."""
    return b"\n" + CLOSING if changes else CLOSING


def load(text: str | bytes) -> Update:
    """Parses an answer. Unknown fields and operations are left out and named in `unknown`.

    Raises SourceError unless the document is complete: an incomplete answer must not become a view.
    """
    return read(io.BytesIO(text if isinstance(text, bytes) else text.encode(errors="surrogatepass")))


def read(stream: BinaryIO) -> Update:
    """Parses the answer in a seekable stream: line by line in the layout of `dump`, otherwise in one piece.

    Raises SourceError unless the document is complete.
    """
    first = stream.readline()
    if first.endswith(OPENING):
        with suppress(MalformedLine):
            return _parse_update(parse_object(first + CLOSING, "answer"), _items_by_line(stream))
    stream.seek(0)
    whole = parse_object(stream.read(), "answer")
    return _parse_update(whole, _items_of_document(whole))


class MalformedLine(Exception):  # another layout, or a truncated document
    """A line is not a change."""


def _parse_update(head: JsonFields, items: Iterable[JsonItem]) -> Update:
    if head.integer("format") != FORMAT:
        raise SourceError(
            f"answer: this gatekeeper reads format {FORMAT}, got format {head.values['format']}; upgrade it"
        )
    unknown = head.unknown_fields(ANSWER_FIELDS)
    changes = PackedChanges(_parse_changes(items, head, unknown))
    return Update(
        at=Cursor(head.integer("version"), head.text("mark", "")),
        since=None if head.values.get("since") is None else head.integer("since"),
        snapshot=head.boolean("snapshot"),
        now=head.time("now"),
        behind=head.seconds("behind_s", 0.0),
        next_poll=head.seconds("next_poll_s", NEXT_POLL_S),
        changes=changes,
        unknown=tuple(unknown),
        waited=head.seconds("waited_s", 0.0),
    )


def changes_checksum(changes: bytes) -> str:
    """The value of "checksum" for changes with this text."""
    return checksum_text(add_to_digest(new_digest(), changes))


def checksum_text(digest: hashlib._Hash) -> str:
    """The value of "checksum" for the changes that were added to `digest`."""
    return CHECKSUM_PREFIX + digest.hexdigest()


def add_to_digest(digest: hashlib._Hash, changes: bytes) -> hashlib._Hash:
    """Returns `digest` with the lines of further changes."""
    if changes:
        digest.update(changes.replace(b",\n", b"\n") + b"\n")  # no line contains a newline
    return digest


def new_digest() -> hashlib._Hash:
    """A digest of no changes."""
    # Imported late: hashlib is a tenth of the start of a process whose gate reads SQL.
    from hashlib import sha256

    return sha256()


def change_fields(change: Change) -> dict[str, object]:
    """The JSON object for a change."""
    return _change_fields(pack_change(change))


def encode_change(change: ChangeTuple) -> bytes:
    """The line of JSON for a change, with its newline."""
    return _change_line(change).encode() + b"\n"


def _change_fields(change: ChangeTuple) -> dict[str, object]:
    return dict(json.loads(_change_line(change)))


# Of 100,000 locks most have a few policies, reasons and ends in common. Looking up the text of these takes a
# quarter of the time of encoding each lock as an object.


def _change_line(change: ChangeTuple) -> str:
    """The JSON object for a change, on one line."""
    if not is_set(change):
        scope, key, resource, policy = change
        return f'{{"op": "clear", "scope": {_word(scope)}, "key": {_quote(key)}, {_where(resource, policy)}}}'
    lock: LockTuple = change
    scope, key, policy, began, until, resource, kind, action, status, reason, detail, on_stale, slow = lock[
        :END
    ]
    return (
        f'{{"op": "set", "scope": {_word(scope)}, "key": {_quote(key)}, {_where(resource, policy)}, '
        f'{_refusal(kind, action, slow, status, reason)}, "detail": {_quote(detail)}, '
        f'"began": {_time(began)}, "until": {_time(until)}, "on_stale": {_word(on_stale)}}}'
    )


_quote = json.JSONEncoder().encode  # quicker than json.dumps, and equal for text


@lru_cache(CACHED_TEXTS_MAX)
def _word(word: str) -> str:
    return _quote(word)


@lru_cache(CACHED_TEXTS_MAX)
def _time(time: datetime) -> str:
    return _quote(time_text(time))


@lru_cache(CACHED_TEXTS_MAX)
def _where(resource: str, policy: str) -> str:
    return f'"resource": {_quote(resource or None)}, "policy": {_quote(policy)}'


@lru_cache(CACHED_TEXTS_MAX)
def _refusal(kind: str, action: str, slow: tuple[int, float] | None, status: int, reason: str) -> str:
    rate = "" if slow is None else f'"slow": {_quote({"limit": slow[0], "period": slow[1]})}, '
    return (
        f'"kind": {_quote(kind)}, "action": {_quote(action)}, {rate}'
        f'"status": {_quote(status)}, "reason": {_quote(reason)}'
    )


class JsonFields(NamedTuple):
    """The fields of a JSON object and its place. Each method returns one field, or raises SourceError."""

    values: Mapping[str, object]
    where: str

    def text(self, name: str, default: str | None = None) -> str:
        value = self.values.get(name, default)
        if isinstance(value, str):
            return value
        raise self.error(name, "text")

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.values.get(name, default)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise self.error(name, "a whole number")

    def seconds(self, name: str, default: float) -> float:
        value = self.values.get(name, default)
        # The comparison also rejects NaN, which Python's JSON parser accepts.
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= SECONDS_MAX:
            return float(value)
        raise self.error(name, "seconds")

    def boolean(self, name: str) -> bool:
        value = self.values.get(name)
        if isinstance(value, bool):
            return value
        raise self.error(name, "true or false")

    def time(self, name: str) -> datetime:
        time = _parse_time(self.text(name))
        if time is None:
            raise self.error(name, "a time with its zone")
        return time

    def nested(self, name: str) -> JsonFields:
        """The object in this field; an empty one when it is missing."""
        return as_object(self.values.get(name, {}), f"{self.where}: {name}")

    def items(self, name: str, most: int) -> list[object]:
        """The first `most` items of the list in this field; none when it is missing."""
        value = self.values.get(name, [])
        if isinstance(value, list):
            return value[:most]
        raise self.error(name, "a list")

    def unknown_fields(self, names: set[str]) -> list[str]:
        return [f"field {name}" for name in self.values if name not in names]

    def error(self, name: str, expected: str) -> SourceError:
        return SourceError(
            f"{self.where}: expected {name} to be {expected}, got {self.values.get(name)!r:.60}"
        )


@lru_cache(CACHED_TEXTS_MAX)
def _parse_time(text: str) -> datetime | None:
    """The time in UTC; None for text that is not a time with its zone."""
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is UTC:
            return time
        return time.astimezone(UTC) if time.tzinfo else None
    except (ValueError, OverflowError):
        return None


def parse_object(text: str | bytes, where: str) -> JsonFields:
    """The JSON object in `text`. Raises SourceError."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{where}: not a JSON document: {error}") from error
    return as_object(value, where)


def as_object(value: object, where: str) -> JsonFields:
    """The fields of a parsed JSON value. Raises SourceError unless it is an object."""
    if isinstance(value, dict):
        return JsonFields(value, where)
    raise SourceError(f"{where}: expected an object, got {value!r:.60}")


def parse_change(fields: JsonFields, unknown: list[str]) -> ChangeTuple | None:
    """The change in a JSON object; None for an unknown op. Adds what is unknown to `unknown`.

    Raises SourceError.
    """
    op = fields.text("op")
    field_names = FIELDS.get(op)
    if field_names is None:
        unknown.append(f"op {op}")
        return None
    if not fields.values.keys() <= field_names:
        unknown += fields.unknown_fields(field_names)
    scope, key = fields.text("scope"), fields.text("key")
    resource, policy = parse_resource(fields), fields.text("policy")
    if op == "clear":
        return scope, key, resource, policy
    began, until = fields.time("began"), fields.time("until")
    # In the order of LockTuple.
    return (
        scope,
        key,
        policy,
        began,
        until,
        resource,
        fields.text("kind", "quota"),
        fields.text("action"),
        fields.integer("status", 429),
        fields.text("reason", "quota-exceeded"),
        fields.text("detail", ""),
        fields.text("on_stale", "keep"),
        _parse_rate(fields),
        epoch_ns(until),
    )


def _parse_rate(fields: JsonFields) -> tuple[int, float] | None:
    value = fields.values.get("slow")
    if value is None:
        return None
    rate = as_object(value, f"{fields.where}: slow")
    limit, period_s = rate.integer("limit"), rate.seconds("period", 1.0)
    if limit < 1 or not period_s:
        raise fields.error("slow", "a rate above 0")
    return limit, period_s


def parse_key(fields: JsonFields) -> LockKey:
    """The key of a lock in a JSON object. Raises SourceError."""
    return LockKey(fields.text("scope"), fields.text("key"), parse_resource(fields), fields.text("policy"))


def parse_resource(fields: JsonFields) -> str:
    """The resource that a lock is narrowed to; "" for null. Raises SourceError."""
    return "" if fields.values.get("resource") is None else fields.text("resource")


def _items_by_line(lines: Iterable[bytes]) -> Iterator[JsonItem]:
    texts = (line.rstrip(b",\r\n ") for line in lines)
    ended = False
    while batch := list(islice(texts, LINES_AT_ONCE)):
        changes = list(takewhile(lambda text: text != CLOSING, batch)) if not ended else []
        if any(batch[len(changes) + (not ended) :]):
            raise MalformedLine  # text after the end
        ended = ended or len(changes) < len(batch)
        try:
            items = json.loads(b"[" + b",".join(changes) + b"]")
        except (ValueError, RecursionError):
            raise MalformedLine from None
        if len(items) != len(changes):
            raise MalformedLine
        yield from zip(changes, items, strict=True)
    if not ended:
        raise MalformedLine


def _items_of_document(head: JsonFields) -> Iterator[JsonItem]:
    listed = head.values.get("changes")
    if not isinstance(listed, list):
        raise head.error("changes", "a list")
    return ((json.dumps(item).encode(), item) for item in listed)


def _parse_changes(items: Iterable[JsonItem], head: JsonFields, unknown: list[str]) -> Iterator[ChangeTuple]:
    checksum = head.text("checksum", "")
    if checksum and not checksum.startswith(CHECKSUM_PREFIX):
        unknown.append(f"checksum {checksum.partition(':')[0]:.20}")
    elif checksum:
        items = _verify_checksum(items, checksum)
    for number, (_, item) in enumerate(items):
        change = parse_change(as_object(item, f"answer: changes[{number}]"), unknown)
        if change is not None:
            yield change


def _verify_checksum(items: Iterable[JsonItem], checksum: str) -> Iterator[JsonItem]:
    """Yields the items; raises SourceError after the last one if they do not have the checksum."""
    digest = new_digest()
    for text, item in items:
        digest.update(text + b"\n")
        yield text, item
    if CHECKSUM_PREFIX + digest.hexdigest() != checksum:
        raise SourceError(
            "answer: the changes do not match the checksum; remove the field if the file was edited by hand"
        )


def time_text(time: datetime) -> str:
    """RFC 3339 in UTC, such as 2026-11-20T21:14:04Z, with fractions of a second when there are any."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")
