"""A record of the request log: what is known of a request when it is over, and how that is written down."""

from __future__ import annotations

import json
import re
from math import isfinite
from typing import NamedTuple

from gatekeeper.adapters.admission_control import RequestIdentity
from gatekeeper.model import Decision

VERDICT = "gatelock"  # the header of a refusal

# What a request may say of itself is bounded here, because so many records wait in memory.
PATH_CHARS_MAX = 1024
FIELDS_MAX = 16
TEXT_CHARS_MAX = 256
INT64 = range(-(2**63), 2**63)

REFUSED = re.compile(r'denied(?:;policy="((?:[^"\\]|\\.)*)")?')

FieldValue = str | int | float | bool | None


class LogEntry(NamedTuple):
    """What became of one request. Its time is its end, so that none comes late because it took long."""

    ended_ns: int
    duration_ns: int
    status: int
    bytes: int  # of the response's body
    method: str
    path: str
    who: RequestIdentity
    verdict: str = ""  # the header's value; "" where none was sent
    decision: Decision | None = None  # the guard's, if one was asked
    more: dict[str, FieldValue] | None = None

    @property
    def key(self) -> str:
        """Who is counted: the caller, or the address where there is none; "" for nobody."""
        return self.who.caller or (f"address:{self.who.address}" if self.who.address else "")


class LogLine(NamedTuple):
    """A record as it is written, and by whom it is counted."""

    text: bytes  # with its newline
    key: str


class RequestNotes:
    """What is said of one request while it is answered. Its guard says whom it asked for; the application may
    add fields of its own, for meters to sum up."""

    __slots__ = ("decision", "more", "who")

    def __init__(self) -> None:
        self.who: RequestIdentity | None = None
        self.decision: Decision | None = None
        self.more: dict[str, FieldValue] | None = None

    def saw(self, who: RequestIdentity, decision: Decision) -> None:
        """The gate was asked for `who`, and said this."""
        self.who, self.decision = who, decision

    def add(self, **fields: FieldValue) -> None:
        """Log these, too, under `more`: text, numbers and booleans. At most 16 fields; long text is cut.

        Raises ValueError for what a log cannot hold.
        """
        more = (self.more or {}) | {name: _fit(name, value) for name, value in fields.items()}
        if len(more) > FIELDS_MAX:
            raise ValueError(f"at most {FIELDS_MAX} fields can be added to a record of the request log")
        self.more = more


def _fit(name: str, value: FieldValue) -> FieldValue:
    if isinstance(value, str):
        return value[:TEXT_CHARS_MAX]
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{name}={value!r}: JSON has no such number")
    if isinstance(value, int) and value not in INT64:
        raise ValueError(f"{name}: a number of more than 64 bits is no text and no number to the analyzer")
    if not isinstance(value, int | float | None):
        raise ValueError(f"{name}={value!r}: expected text, a number, a boolean or None")  # noqa: TRY004 - one kind for all
    return value


def line_of(entry: LogEntry, event_id: str) -> LogLine:
    """The record as one line of JSON, in ASCII, whatever the request was made of. What is not known is left
    out; `deploy/requestlog.toml` reads it.

    >>> who = RequestIdentity("api_key:acme")
    >>> entry = LogEntry(1_700_000_000_000_000_000, 1_500_000, 200, 5, "GET", "/", who)
    >>> line_of(entry, "7f-1").text.decode()[:66]
    '{"id":"7f-1","ts":1700000000000000,"caller":{"api_key":"acme"},"me'
    """
    who = entry.who
    kind, _, name = who.caller.partition(":")
    # A caller that goes by its address may be one behind proxies, of which the peer is the last.
    by_address = kind == "address"
    gate, policy = verdict_of(entry)
    record = {
        "id": event_id,
        "ts": entry.ended_ns // 1_000,
        "caller": {kind: name} if who.caller and not by_address else None,
        "address": name.partition("/")[0] if by_address else who.address,
        "tenant": who.tenant,
        "method": entry.method,
        "path": entry.path,
        "resource": who.resource,
        "status": entry.status,
        "bytes": entry.bytes,
        "duration": entry.duration_ns // 1_000,
        "gate": gate,
        "policy": policy,
        "more": entry.more,
    }
    known = {field: value for field, value in record.items() if value not in ("", None)}
    return LogLine(_encode(known).encode() + b"\n", entry.key)


def verdict_of(entry: LogEntry) -> tuple[str, str]:
    """What the gate said, and by which policy: "denied", "shadow" (it would have been), "allowed", or ""
    where no gate was asked."""
    refused = REFUSED.match(entry.verdict)
    if refused is not None:
        return "denied", re.sub(r"\\(.)", r"\1", refused[1] or "")
    if entry.decision is None:
        return "", ""
    if entry.decision.shadow:
        return "shadow", entry.decision.policy
    return "allowed", ""


_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
