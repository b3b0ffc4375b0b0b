"""What a gate tells of itself as JSON: the same over HTTP and in the database."""

from __future__ import annotations

import json
import re

from gatekeeper.feed.feed_json import FORMAT, SECONDS_MAX, JsonFields, as_object, parse_object, parse_resource
from gatekeeper.model import Cursor, GateStatus, LockHits, LockKey, SourceError

# It is read from strangers: everything in it ends somewhere.
STATUS_BYTES_MAX = (
    256 << 10
)  # as much as a hundred locks and as many callers with the longest names there are
LOCKS_MAX = 1_000
CALLERS_MAX = 256
CALLER_CHARACTERS_MAX = 257  # one more than a name can have: cut there, it is still none
WORDS_MAX = 20
WORD_CHARACTERS_MAX = 100
COUNT_MAX = 2**63 - 1

INSTANCE = re.compile(r"[A-Za-z0-9._:-]{1,100}")


def dump(told: GateStatus) -> str:
    """What a gate tells, as one line of ASCII; `load` reads it."""
    locks = [{**met.at._asdict(), "checks": met.checks, "denials": met.denials} for met in told.locks]
    return json.dumps(
        {
            "format": FORMAT,
            "instance": told.instance,
            "number": told.number,
            "application": told.application,
            "library": told.library,
            "version": None if told.at is None else told.at.version,
            "mark": None if told.at is None else told.at.mark,
            "age_s": told.age,
            "uptime_s": told.uptime,
            "stale_after_s": told.stale_after,
            "clock_skew_s": told.clock_skew,
            "mode": told.mode,
            "ignored": told.ignored,
            "locks": locks,
            "more": {"checks": told.more[0], "denials": told.more[1]},
            "callers": told.callers,
        }
    )


def load(text: str | bytes) -> GateStatus:
    """What a gate told. Lists and words that are longer than ours ever are get cut. Raises SourceError."""
    fields = parse_object(text, "feedback")
    version, more = fields.fields.get("version"), fields.inside("more")
    if INSTANCE.fullmatch(fields.text("instance")) is None:
        raise fields.expected("instance", "letters, digits and . _ : -, a hundred at most")
    return GateStatus(
        instance=fields.text("instance"),
        number=_count(fields, "number"),
        application=fields.text("application", "")[:WORD_CHARACTERS_MAX],
        library=fields.text("library", "")[:WORD_CHARACTERS_MAX],
        at=None if version is None else Cursor(_count(fields, "version"), _word(fields, "mark")),
        age=None if fields.fields.get("age_s") is None else fields.seconds("age_s", 0.0),
        locks=tuple(_lock_hits(as_object(item, "locks")) for item in fields.some("locks", LOCKS_MAX)),
        more=(_count(more, "checks"), _count(more, "denials")),
        callers=_words(fields, "callers", CALLERS_MAX, CALLER_CHARACTERS_MAX),
        uptime=fields.seconds("uptime_s", 0.0),
        stale_after=fields.seconds("stale_after_s", 30.0),
        clock_skew=_skew(fields),
        mode=_word(fields, "mode"),
        ignored=_words(fields, "ignored", WORDS_MAX, WORD_CHARACTERS_MAX),
    )


def _lock_hits(fields: JsonFields) -> LockHits:
    at = LockKey(fields.text("scope"), fields.text("key"), parse_resource(fields), fields.text("policy"))
    return LockHits(at, _count(fields, "checks"), _count(fields, "denials"))


def _count(fields: JsonFields, name: str) -> int:
    return min(COUNT_MAX, max(0, fields.whole(name, 0)))


def _word(fields: JsonFields, name: str) -> str:
    return fields.text(name, "")[:WORD_CHARACTERS_MAX]


def _words(fields: JsonFields, name: str, most: int, characters_max: int) -> tuple[str, ...]:
    return tuple(word[:characters_max] for word in fields.some(name, most) if isinstance(word, str))


def _skew(fields: JsonFields) -> float:
    value = fields.fields.get("clock_skew_s", 0.0)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= SECONDS_MAX:
        return float(value)
    raise SourceError(f"{fields.where}: expected clock_skew_s to be seconds, got {value!r:.60}")
