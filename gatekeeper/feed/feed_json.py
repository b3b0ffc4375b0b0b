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
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from gatekeeper.model import Change, Cursor, LockKey, SourceError, Update
from gatekeeper.view.lock_tuples import (
    SLOW,
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
CHECKSUM_PREFIX = "sha256:"  # of the lines of the changes, without their commas


JsonItem = tuple[bytes, object]  # a change's text, and its parsed value


class EncodedChanges(NamedTuple):
    """Changes as they stand in an answer; encoded once, sent to many gates."""

    text: bytes
    checksum: str


def encode_changes(changes: Iterable[Change]) -> EncodedChanges:
    """The changes in ASCII, each on its line."""
    lines = [json.dumps(_fields_of(change)).encode() for change in packed(changes)]
    return EncodedChanges(b"".join((b",\n".join(lines), b"\n")) if lines else b"", checksum_of(lines))


def dump(update: Update) -> str:
    """The answer as one JSON document, in ASCII."""
    return encode_answer(update, encode_changes(update.changes)).decode()


def encode_answer(update: Update, changes: EncodedChanges) -> bytes:
    """The answer as one JSON document, with `changes` in place of those of `update`."""
    head = {
        "format": FORMAT,
        "version": update.at.version,
        "mark": update.at.mark,
        "since": update.since,
        "snapshot": update.snapshot,
        "now": time_text(update.now),
        "waited_s": update.waited,
        "behind_s": update.behind,
        "next_poll_s": update.next_poll,
    }
    if update.snapshot:
        head["checksum"] = changes.checksum
    opened = json.dumps(head).encode().removesuffix(b"}") + b", " + OPENING
    return b"".join((opened, changes.text, CLOSING))


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


def checksum_of(lines: Iterable[bytes]) -> str:
    """The value of "checksum" for changes on these lines."""
    digest = _sha256()
    for line in lines:
        digest.update(line + b"\n")
    return CHECKSUM_PREFIX + digest.hexdigest()


def _sha256() -> hashlib._Hash:
    # Imported late: hashlib is a tenth of the start of a process whose gate reads SQL.
    from hashlib import sha256

    return sha256()


def change_fields(change: Change) -> dict[str, object]:
    """The JSON object for a change."""
    return _fields_of(pack_change(change))


def encode_change(change: ChangeTuple) -> bytes:
    """The line of JSON for a change, with its newline."""
    return json.dumps(_fields_of(change)).encode() + b"\n"


def _fields_of(change: ChangeTuple) -> dict[str, object]:
    if not is_set(change):
        scope, key, resource, policy = change
        return {"op": "clear", "scope": scope, "key": key, "resource": resource or None, "policy": policy}
    lock: LockTuple = change
    scope, key, policy, began, until, resource, kind, action, status, reason, detail, on_stale = lock[:SLOW]
    slow = lock[SLOW]
    return {
        "op": "set",
        "scope": scope,
        "key": key,
        "resource": resource or None,
        "policy": policy,
        "kind": kind,
        "action": action,
        **({} if slow is None else {"slow": {"limit": slow[0], "period": slow[1]}}),
        "status": status,
        "reason": reason,
        "detail": detail,
        "began": time_text(began),
        "until": time_text(until),
        "on_stale": on_stale,
    }


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
        try:
            time = datetime.fromisoformat(self.text(name))
            if time.tzinfo is UTC:
                return time
            if time.tzinfo:
                return time.astimezone(UTC)
        except (ValueError, OverflowError):
            pass
        raise self.error(name, "a time with its zone")

    def nested(self, name: str) -> JsonFields:
        """The object in this field; an empty one when it is missing."""
        return as_object(self.values.get(name, {}), f"{self.where}: {name}")

    def items(self, name: str, most: int) -> list[object]:
        """The first `most` items of the list in this field; none when it is missing."""
        value = self.values.get(name, [])
        if isinstance(value, list):
            return value[:most]
        raise self.error(name, "a list")

    def unknown_fields(self, known: set[str]) -> list[str]:
        return [f"field {name}" for name in self.values if name not in known]

    def error(self, name: str, expected: str) -> SourceError:
        return SourceError(
            f"{self.where}: expected {name} to be {expected}, got {self.values.get(name)!r:.60}"
        )


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
    known = FIELDS.get(op)
    if known is None:
        unknown.append(f"op {op}")
        return None
    if not fields.values.keys() <= known:
        unknown += fields.unknown_fields(known)
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
    ended = False
    for line in lines:
        text = line.rstrip(b",\r\n ")
        if ended and text:
            raise MalformedLine
        ended = ended or text == CLOSING
        if not ended:
            try:
                yield text, json.loads(text)
            except (ValueError, RecursionError):
                raise MalformedLine from None
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
    digest = _sha256()
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
