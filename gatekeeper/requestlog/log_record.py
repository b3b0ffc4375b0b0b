"""A record of the request log: the facts about a completed request, and their encoding as a line."""

from __future__ import annotations

import json
import re
from math import isfinite
from typing import NamedTuple

from gatekeeper.adapters.admission_control import RequestIdentity
from gatekeeper.adapters.refusal_response import refusal_verdict
from gatekeeper.model import Decision

# Bounds on what a client and the application can put into a record, because thousands of records wait in
# memory.
PATH_CHARS_MAX = 1024
FIELDS_MAX = 16
TEXT_CHARS_MAX = 256
INT64 = range(-(2**63), 2**63)

VERDICT = re.compile(r'(denied|limited|stale)(?:;policy="((?:[^"\\]|\\.)*)")?')

FieldValue = str | int | float | bool | None


class LogEntry(NamedTuple):
    """A completed request. Its time is its end, so that the record of a long request is not late."""

    ended_ns: int
    duration_ns: int
    status: int
    bytes: int  # of the response's body
    method: str
    path: str
    identity: RequestIdentity
    verdict: str = ""  # value of the response's header `Gatelock`; "" if it had none
    decision: Decision | None = None  # the guard's; None if there was no guard
    fields: dict[str, FieldValue] | None = None  # added by the application

    @property
    def key(self) -> str:
        """The caller, or the address of a request without one; "" if it has neither."""
        identity = self.identity
        return identity.caller or (f"address:{identity.address}" if identity.address else "")


class LogLine(NamedTuple):
    """An encoded record, and the key of its caller."""

    text: bytes  # with its newline
    key: str


class RequestNotes:
    """Notes about a request while it is handled: the guard's decision, and fields that the application adds.

    >>> notes = RequestNotes()  # the application finds it in request.state.request_log
    >>> notes.add(tokens=812)
    """

    __slots__ = ("decision", "fields", "identity")

    def __init__(self) -> None:
        self.identity: RequestIdentity | None = None
        self.decision: Decision | None = None
        self.fields: dict[str, FieldValue] | None = None

    def note_decision(self, identity: RequestIdentity, decision: Decision) -> None:
        """Stores the names that the guard checked, and its decision."""
        self.identity, self.decision = identity, decision

    def add(self, **fields: FieldValue) -> None:
        """Adds fields to the record, under `more`. At most 16 fields; text is cut to 256 characters.

        Args:
            **fields: Text, numbers and booleans.

        Raises:
            ValueError: There are too many fields, or JSON or the analyzer cannot represent a value.
        """
        merged = (self.fields or {}) | {name: _checked(name, value) for name, value in fields.items()}
        if len(merged) > FIELDS_MAX:
            raise ValueError(f"expected at most {FIELDS_MAX} fields in a record of the request log")
        self.fields = merged


def _checked(name: str, value: FieldValue) -> FieldValue:
    if isinstance(value, str):
        return value[:TEXT_CHARS_MAX]
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{name}={value!r}: expected a finite number, because JSON has no other")
    if isinstance(value, int) and value not in INT64:
        raise ValueError(f"{name}: expected a number of at most 64 bits, because the analyzer reads no other")
    if not isinstance(value, int | float | None):
        raise ValueError(f"{name}={value!r}: expected text, a number, a boolean or None")  # noqa: TRY004 - one kind for all
    return value


def encode_line(entry: LogEntry, event_id: str) -> LogLine:
    """Returns the record as one line of JSON: always ASCII, even if the request contains other bytes.

    Fields without a value are left out, but the address of a request that has neither caller nor address
    (behind a Unix socket): every record says who called, if only that this is not known.

    `deploy/requestlog.toml` maps its fields for the analyzer.

    >>> acme = RequestIdentity("api_key:acme")
    >>> entry = LogEntry(1_700_000_000_000_000_000, 1_500_000, 200, 5, "GET", "/", acme)
    >>> encode_line(entry, "7f-1").text.decode()[:66]
    '{"id":"7f-1","ts":1700000000000000,"caller":{"api_key":"acme"},"me'
    """
    identity = entry.identity
    parts = [f'{{"id":"{event_id}","ts":{entry.ended_ns // 1_000}']
    address = identity.address
    kind, _, name = identity.caller.partition(":")
    if name and kind == "address":
        # It may be that of a client behind proxies, while `identity.address` is the last proxy.
        address = name.partition("/")[0]
    elif name:
        parts.append(f',"caller":{{{_quoted(kind)}:{_quoted(name)}}}')
    elif not address:
        parts.append(',"address":""')  # the analyzer sees a request without a name, not a wrong mapping
    gate, policy = gate_fields(entry)
    for field, text in (
        (',"address":', address),
        (',"tenant":', identity.tenant),
        (',"method":', entry.method),
        (',"path":', entry.path),
        (',"resource":', identity.resource),
    ):
        if text:
            parts.append(field + _quoted(text))
    parts.append(f',"status":{entry.status},"bytes":{entry.bytes},"duration":{entry.duration_ns // 1_000}')
    if gate:
        parts.append(f',"gate":"{gate}"')
    if policy:
        parts.append(f',"policy":{_quoted(policy)}')
    if entry.fields is not None:
        parts.append(f',"more":{_encode(entry.fields)}')
    parts.append("}\n")
    return LogLine("".join(parts).encode(), entry.key)


def gate_fields(entry: LogEntry) -> tuple[str, str]:
    """Returns the fields `gate` and `policy` of the record.

    `gate` is "denied" (by a lock), "limited" (by a limiter), "stale" (by a gate whose locks were too old),
    "shadow" (the request would have been denied), "allowed", or "" if there was no guard. The response's
    header is read only where there was no guard: an application may pass on one that it was sent.
    """
    decision = entry.decision
    if decision is None:
        verdict = VERDICT.match(entry.verdict)
        return ("", "") if verdict is None else (verdict[1], re.sub(r"\\(.)", r"\1", verdict[2] or ""))
    if not decision.allowed:
        return refusal_verdict(decision), decision.policy
    if decision.shadow:
        return "shadow", decision.policy
    return "allowed", ""


_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_quoted = json.encoder.encode_basestring_ascii  # encodes one text, several times as fast as an encoder
