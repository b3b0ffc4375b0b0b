"""The feed's answer as JSON: the same over HTTP, in a file, and in the view that is kept on disk."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from gatekeeper.model import (
    Change,
    Clear,
    Cursor,
    Lock,
    LockKey,
    Rate,
    Set,
    SourceError,
    Update,
)
from gatekeeper.view.lock_tuples import PackedChanges

if TYPE_CHECKING:
    import hashlib

FORMAT = 1  # a new word does not change it; a word that means something else does
SECONDS_MAX = 1e12  # no duration is longer than the calendar
NEXT_POLL_S = 0.4  # where an answer does not say

ANSWER_FIELDS = {"format", "version", "mark", "since", "snapshot", "now", "waited_s", "behind_s",
                 "next_poll_s", "checksum", "changes"}  # fmt: skip
CLEAR_FIELDS = {"op", "scope", "key", "resource", "policy"}
SET_FIELDS = CLEAR_FIELDS | {
    "kind",
    "action",
    "slow",
    "status",
    "reason",
    "detail",
    "began",
    "until",
    "on_stale",
}

# A change on each line, so that nobody must read a hundred thousand of them in one piece: that would
# hold the interpreter, and with it every request, for half a second.
OPENING, CLOSING = b'"changes": [\n', b"]}"
CHECKSUM_PREFIX = "sha256:"  # over the lines of the changes, without their commas


JsonItem = tuple[bytes, object]  # a change's text, and what it says


class EncodedChanges(NamedTuple):
    """Changes as they stand in an answer; written once, told to many."""

    text: bytes
    checksum: str


def encode_changes(changes: Iterable[Change]) -> EncodedChanges:
    """The changes on their lines. In ASCII."""
    lines = [json.dumps(change_fields(change)).encode() for change in changes]
    return EncodedChanges(b"".join((b",\n".join(lines), b"\n")) if lines else b"", checksum_of(lines))


def dump(update: Update) -> str:
    """The answer as one JSON document, in ASCII."""
    return encode_answer(update, encode_changes(update.changes)).decode()


def encode_answer(update: Update, changes: EncodedChanges) -> bytes:
    """The same with `changes` in the place of those of `update`."""
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
    """The answer in `text`. What this version does not know is left out and named in `unknown`.

    Raises SourceError unless the document is whole: half an answer must not become half a view.
    """
    return read(io.BytesIO(text if isinstance(text, bytes) else text.encode(errors="surrogatepass")))


def read(stream: BinaryIO) -> Update:
    """The same out of a stream that can be begun anew: line by line if it is laid out as `dump` does it,
    else in one piece."""
    first = stream.readline()
    if first.endswith(OPENING):
        with suppress(MalformedLine):
            return _parse_update(parse_object(first + CLOSING, "encode_answer"), _items_by_line(stream))
    stream.seek(0)
    whole = parse_object(stream.read(), "encode_answer")
    return _parse_update(whole, _items_of_document(whole))


class MalformedLine(Exception):  # somebody else's layout, or half a document
    """A line is not a change."""


def _parse_update(head: JsonFields, items: Iterable[JsonItem]) -> Update:
    if head.whole("format") != FORMAT:
        raise SourceError(f"answer: format {head.fields['format']}; this gatekeeper reads format {FORMAT}")
    unknown = head.strangers(ANSWER_FIELDS)
    changes = PackedChanges(_parse_changes(items, head, unknown))
    return Update(
        at=Cursor(head.whole("version"), head.text("mark", "")),
        since=None if head.fields.get("since") is None else head.whole("since"),
        snapshot=head.truth("snapshot"),
        now=head.time("now"),
        behind=head.seconds("behind_s", 0.0),
        next_poll=head.seconds("next_poll_s", NEXT_POLL_S),
        changes=changes,
        unknown=tuple(unknown),
        waited=head.seconds("waited_s", 0.0),
    )


def checksum_of(lines: Iterable[bytes]) -> str:
    """What stands under "checksum" for changes on these lines."""
    digest = _digest()
    for line in lines:
        digest.update(line + b"\n")
    return CHECKSUM_PREFIX + digest.hexdigest()


def _digest() -> hashlib._Hash:
    from hashlib import sha256  # a tenth of the start of a process that never asks

    return sha256()


def change_fields(change: Change) -> dict[str, object]:
    """The change as the object that stands for it in JSON."""
    at = change.at
    named = {"scope": at.scope, "key": at.key, "resource": at.resource or None, "policy": at.policy}
    if isinstance(change, Clear):
        return {"op": "clear", **named}
    lock = change.lock
    slow = {} if lock.slow is None else {"slow": lock.slow._asdict()}
    return {
        "op": "set",
        **named,
        "kind": lock.kind,
        "action": lock.action,
        **slow,
        "status": lock.status,
        "reason": lock.reason,
        "detail": lock.detail,
        "began": time_text(lock.began),
        "until": time_text(lock.until),
        "on_stale": lock.on_stale,
    }


class JsonFields(NamedTuple):
    """A JSON object and where it stands. Each method gives one field, or raises SourceError."""

    fields: Mapping[str, object]
    where: str

    def text(self, name: str, default: str | None = None) -> str:
        value = self.fields.get(name, default)
        if isinstance(value, str):
            return value
        raise self.expected(name, "text")

    def whole(self, name: str, default: int | None = None) -> int:
        value = self.fields.get(name, default)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise self.expected(name, "a whole number")

    def seconds(self, name: str, default: float) -> float:
        value = self.fields.get(name, default)
        # The comparison also turns away NaN, which Python's JSON reads.
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= SECONDS_MAX:
            return float(value)
        raise self.expected(name, "seconds")

    def truth(self, name: str) -> bool:
        value = self.fields.get(name)
        if isinstance(value, bool):
            return value
        raise self.expected(name, "true or false")

    def time(self, name: str) -> datetime:
        try:
            time = datetime.fromisoformat(self.text(name))
            if time.tzinfo:
                return time.astimezone(UTC)
        except (ValueError, OverflowError):
            pass
        raise self.expected(name, "a time with its zone")

    def inside(self, name: str) -> JsonFields:
        return as_object(self.fields.get(name, {}), f"{self.where}: {name}")

    def some(self, name: str, most: int) -> list[object]:
        value = self.fields.get(name, [])
        if isinstance(value, list):
            return value[:most]
        raise self.expected(name, "a list")

    def strangers(self, known: set[str]) -> list[str]:
        return [f"field {name}" for name in self.fields if name not in known]

    def expected(self, name: str, what: str) -> SourceError:
        return SourceError(f"{self.where}: expected {name} to be {what}, got {self.fields.get(name)!r:.60}")


def parse_object(text: str | bytes, where: str) -> JsonFields:
    """The JSON object that `text` is. Raises SourceError."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{where}: not a JSON document: {error}") from error
    return as_object(value, where)


def as_object(value: object, where: str) -> JsonFields:
    if isinstance(value, dict):
        return JsonFields(value, where)
    raise SourceError(f"{where}: expected an object, got {value!r:.60}")


def parse_change(fields: JsonFields, unknown: list[str]) -> Change | None:
    """The change that the object stands for; None when its op is unknown. What is unknown is added
    to `unknown`. Raises SourceError."""
    op = fields.text("op")
    if op not in ("set", "clear"):
        unknown.append(f"op {op}")
        return None
    unknown += fields.strangers(SET_FIELDS if op == "set" else CLEAR_FIELDS)
    at = LockKey(fields.text("scope"), fields.text("key"), parse_resource(fields), fields.text("policy"))
    return Set(_lock(fields, at)) if op == "set" else Clear(at)


def _lock(fields: JsonFields, at: LockKey) -> Lock:
    return Lock(
        scope=at.scope,
        key=at.key,
        policy=at.policy,
        began=fields.time("began"),
        until=fields.time("until"),
        resource=at.resource,
        kind=fields.text("kind", "quota"),
        action=fields.text("action"),
        status=fields.whole("status", 429),
        reason=fields.text("reason", "quota-exceeded"),
        detail=fields.text("detail", ""),
        on_stale=fields.text("on_stale", "keep"),
        slow=_rate(fields),
    )


def _rate(fields: JsonFields) -> Rate | None:
    given = fields.fields.get("slow")
    if given is None:
        return None
    rate = as_object(given, f"{fields.where}: slow")
    limit, period_s = rate.whole("limit"), rate.seconds("period", 1.0)
    if limit < 1 or not period_s:
        raise fields.expected("slow", "a rate above 0")
    return Rate(limit, period_s)


def parse_resource(fields: JsonFields) -> str:
    return "" if fields.fields.get("resource") is None else fields.text("resource")


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
    listed = head.fields.get("changes")
    if not isinstance(listed, list):
        raise head.expected("changes", "a list")
    return ((json.dumps(item).encode(), item) for item in listed)


def _parse_changes(items: Iterable[JsonItem], head: JsonFields, unknown: list[str]) -> Iterator[Change]:
    wanted = head.text("checksum", "")
    if wanted and not wanted.startswith(CHECKSUM_PREFIX):
        unknown.append(f"checksum {wanted.partition(':')[0]:.20}")
    elif wanted:
        items = _verify_checksum(items, wanted)
    for number, (_, item) in enumerate(items):
        change = parse_change(as_object(item, f"answer: changes[{number}]"), unknown)
        if change is not None:
            yield change


def _verify_checksum(items: Iterable[JsonItem], wanted: str) -> Iterator[JsonItem]:
    """The same; raises SourceError at their end if they are not those that were summed up."""
    digest = _digest()
    for text, item in items:
        digest.update(text + b"\n")
        yield text, item
    if CHECKSUM_PREFIX + digest.hexdigest() != wanted:
        raise SourceError(
            "answer: its content does not have the checksum that it names; by hand, leave that out"
        )


def time_text(time: datetime) -> str:
    """RFC 3339, UTC: 2026-11-20T21:14:04Z; as many digits of a second as there are."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")
