"""A gate's status as JSON, as it is sent over HTTP and stored in the database."""

from __future__ import annotations

import json
import re

from gatekeeper.feed.feed_json import FORMAT, SECONDS_MAX, JsonFields, as_object, parse_key, parse_object
from gatekeeper.identity import NAME_BYTES_MAX
from gatekeeper.model import Cursor, GateStatus, LockHits, SourceError

# A server reads these from any client with a token, so every part of them is bounded. A hundred locks and as
# many callers with the longest names fit into STATUS_BYTES_MAX.
STATUS_BYTES_MAX = 256 << 10
LOCKS_MAX = 100  # as many as a gate of this package reports
CALLERS_MAX = 64
# One more than the longest kind of name, a colon and a name: a caller that is cut there is not a valid one.
CALLER_CHARACTERS_MAX = 64 + 1 + NAME_BYTES_MAX + 1
WORDS_MAX = 20
WORD_CHARACTERS_MAX = 100
COUNT_MAX = 2**63 - 1

INSTANCE = re.compile(r"[A-Za-z0-9._:-]{1,100}")


def dump(status: GateStatus) -> str:
    """The status as one line of ASCII."""
    locks = [{**hits.at._asdict(), "checks": hits.checks, "denials": hits.denials} for hits in status.locks]
    return json.dumps(
        {
            "format": FORMAT,
            "instance": status.instance,
            "number": status.number,
            "application": status.application,
            "library": status.library,
            "version": None if status.at is None else status.at.version,
            "mark": None if status.at is None else status.at.mark,
            "age_s": status.age,
            "uptime_s": status.uptime,
            "stale_after_s": status.stale_after,
            "clock_skew_s": status.clock_skew,
            "mode": status.mode,
            "ignored": status.ignored,
            "values": status.values,
            "locks": locks,
            "more": {"checks": status.more[0], "denials": status.more[1]},
            "callers": status.callers,
        }
    )


def load(text: str | bytes) -> GateStatus:
    """Parses a status. Cuts lists and texts longer than a gate of this package sends. Raises SourceError."""
    fields = parse_object(text, "status")
    version, more = fields.values.get("version"), fields.nested("more")
    if INSTANCE.fullmatch(fields.text("instance")) is None:
        raise fields.error("instance", "letters, digits and . _ : -, a hundred at most")
    return GateStatus(
        instance=fields.text("instance"),
        number=_count(fields, "number"),
        application=fields.text("application", "")[:WORD_CHARACTERS_MAX],
        library=fields.text("library", "")[:WORD_CHARACTERS_MAX],
        at=None if version is None else Cursor(_count(fields, "version"), _word(fields, "mark")),
        age=None if fields.values.get("age_s") is None else fields.seconds("age_s", 0.0),
        locks=tuple(_lock_hits(as_object(item, "locks")) for item in fields.items("locks", LOCKS_MAX)),
        more=(_count(more, "checks"), _count(more, "denials")),
        callers=_words(fields, "callers", CALLERS_MAX, CALLER_CHARACTERS_MAX),
        uptime=fields.seconds("uptime_s", 0.0),
        stale_after=fields.seconds("stale_after_s", 30.0),
        clock_skew=_skew(fields),
        mode=_word(fields, "mode"),
        ignored=_words(fields, "ignored", WORDS_MAX, WORD_CHARACTERS_MAX),
        values=_words(fields, "values", WORDS_MAX, WORD_CHARACTERS_MAX),
    )


def _lock_hits(fields: JsonFields) -> LockHits:
    return LockHits(parse_key(fields), _count(fields, "checks"), _count(fields, "denials"))


def _count(fields: JsonFields, name: str) -> int:
    return min(COUNT_MAX, max(0, fields.integer(name, 0)))


def _word(fields: JsonFields, name: str) -> str:
    return fields.text(name, "")[:WORD_CHARACTERS_MAX]


def _words(fields: JsonFields, name: str, most: int, characters_max: int) -> tuple[str, ...]:
    return tuple(word[:characters_max] for word in fields.items(name, most) if isinstance(word, str))


def _skew(fields: JsonFields) -> float:
    value = fields.values.get("clock_skew_s", 0.0)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= SECONDS_MAX:
        return float(value)
    raise SourceError(f"{fields.where}: expected clock_skew_s to be seconds, got {value!r:.60}")
