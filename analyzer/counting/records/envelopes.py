"""Envelopes: what syslog, containers and log shippers put around a record.

ENVELOPES is the table. An envelope is taken off before the format reads what is inside, so every format can
be in every envelope, and in several of them: `envelope = ["kubectl", "timestamps"]`. A record that is not in
its envelope has no content, which no format can read: what stands in front of a line is never taken for a
part of it. A source without envelopes passes its records to the format as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from analyzer.counting.records import strict_json
from analyzer.kernel.model import RejectReason
from analyzer.plan.format_decoder import Columns, FormatDecoder, text_of_bytes

Envelope = Callable[[bytes], bytes | None]  # returns the content; None for a record that is not in it

NO_CONTENT = b""

ISO_TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
# The time as RFC 3164 has it, `Jul  8 08:00:00`, also with a year; or as rsyslog and journald write it.
SYSLOG_TIME = rf"(?:[A-Z][a-z]{{2}} [ \d]?\d (?:\d{{4}} )?\d\d:\d\d:\d\d(?:\.\d{{1,9}})?|{ISO_TIME})"
SYSLOG = (
    rf"(?:<\d{{1,3}}>)?{SYSLOG_TIME} [^ ]+ "  # priority, time, host
    r"(?:[A-Za-z_][^ :\[\]\"{]{0,99}(?:\[[^\] ]{0,99}\])?: )?"  # the program, and the number of its process
)
STRUCTURED = r'(?:-|(?:\[(?:[^\]"\\]|\\.|"(?:[^"\\]|\\.)*+")*+\])++)'
# Priority, version, time, host, program, process, message id; then structured data, and perhaps a mark.
SYSLOG_5424 = rf"<\d{{1,3}}>1 (?:{ISO_TIME}|-) [^ ]+ [^ ]+ [^ ]+ [^ ]+ {STRUCTURED} (?:\xef\xbb\xbf)?"
# A line that the runtime has cut has P in place of F: it is not a record.
CRI = rf"{ISO_TIME} std(?:out|err) F(?::[^ ]*)? "


def prefix(pattern: str) -> Envelope:
    """Returns the envelope of a text in front of a line."""
    match = re.compile(pattern.encode("latin-1")).match

    def take_off(value: bytes) -> bytes | None:
        front = match(value)
        return None if front is None else value[front.end() :]

    return take_off


def member(key: str) -> Envelope:
    """Returns the envelope of a JSON object that has a line under `key`, as text or as journald's bytes."""
    wrapper = msgspec.defstruct("Wrapper", [("line", Any, None)], rename={"line": key}, gc=False)
    decode = msgspec.json.Decoder(wrapper).decode

    def take_off(value: bytes) -> bytes | None:
        try:
            line = attrgetter("line")(decode(value))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            line = _slow_member(value, key)
        if type(line) is str:
            return _bytes(line).rstrip(b"\r\n")
        if type(line) is list and all(type(byte) is int and 0 <= byte < 256 for byte in line):
            return bytes(line).rstrip(b"\r\n")
        return None

    return take_off


def _slow_member(value: bytes, key: str) -> Any:
    """Returns a member of a document that msgspec refuses; None for what is not a JSON object."""
    try:
        return strict_json.read(text_of_bytes(value)).get(key)
    except strict_json.NotJsonError:
        return None


def _bytes(text: str) -> bytes:
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:  # other halves of surrogate pairs: no name has them
        return text.encode(errors="surrogatepass")


# A new envelope is an entry here, one in `billing.recount.log_envelopes`, and shapes of logs in the tests.
# In the order in which a log is tried by them: a line of CRI also passes for syslog from a host `stdout`.
ENVELOPES: Mapping[str, Envelope] = {
    "cri": prefix(CRI),  # containerd and CRI-O: files in /var/log/pods
    "syslog": prefix(rf"(?:{SYSLOG_5424}|{SYSLOG})"),  # RFC 3164 and RFC 5424
    "kubectl": prefix(r"\[pod/[^\] ]+\] "),  # kubectl logs --prefix
    "compose": prefix(r"[A-Za-z0-9][A-Za-z0-9_.-]* +\| "),  # docker compose logs
    "timestamps": prefix(rf"{ISO_TIME} "),  # docker logs -t, kubectl logs --timestamps
    "docker": member("log"),  # the json-file driver, Fluent Bit, FireLens
    "journald": member("MESSAGE"),  # journalctl -o json
    "message": member("message"),  # Filebeat, Vector, Logstash, CloudWatch
    "gcp": member("textPayload"),  # Cloud Logging
}


def unwrapped(values: Sequence[bytes], names: Sequence[str]) -> list[bytes]:
    """Returns the contents of records, with these envelopes taken off; NO_CONTENT of one that has not all.

    >>> unwrapped([b"2026-11-24T08:00:00Z stdout F a line", b"another"], ["cri"])
    [b'a line', b'']
    """
    contents = list(values)
    for name in names:
        take_off = ENVELOPES[name]
        contents = [take_off(value) or NO_CONTENT for value in contents]
    return contents


class UnwrappingDecoder:
    """Reads records in envelopes by the decoder of the format that is inside."""

    def __init__(self, names: Sequence[str], inner: FormatDecoder) -> None:
        self._names, self._inner = tuple(names), inner

    def read(self, values: Sequence[bytes]) -> tuple[Columns, dict[int, RejectReason]]:
        """Returns what the inner decoder does."""
        return self._inner.read(unwrapped(values, self._names))
