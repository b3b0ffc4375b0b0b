"""Envelopes that syslog, containers and log shippers put around a record."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence


class Unreadable(ValueError):
    """A record that cannot be counted."""


KEYS = {"docker": "log", "journald": "MESSAGE", "message": "message", "gcp": "textPayload"}
CLOCK = "[0-9]{2}:[0-9]{2}:[0-9]{2}"
MOMENT = rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[ T]{CLOCK}([.,][0-9]{{1,9}})?(Z|[-+][0-9]{{2}}:?[0-9]{{2}})?"
SHORT = rf"[A-Z][a-z]{{2}} [ 0-9]?[0-9] ([0-9]{{4}} )?{CLOCK}(\.[0-9]{{1,9}})?"
FRONTS = {
    "cri": rf"{MOMENT} (stdout|stderr) F(:\S*)? ",
    "kubectl": r"\[pod/[^ \]]+\] ",
    "compose": r"[0-9A-Za-z][-0-9A-Za-z_.]* +\| ",
    "timestamps": rf"{MOMENT} ",
}
STATED = re.compile(r"<[0-9]{1,3}>1 ")
PRIORITY = re.compile(r"<[0-9]{1,3}>")
DATED = re.compile(rf"({MOMENT}|{SHORT}) [^ ]+ ")
PROGRAM = re.compile(r'[A-Za-z_][^] :["{]{0,99}(\[[^] ]{0,99}\])?: ')


def content_of(value: bytes, envelopes: Sequence[str]) -> bytes:
    """Returns what is inside of these envelopes. Raises Unreadable for a record that is not in them."""
    for name in envelopes:
        if name in KEYS:
            value = _member(value, KEYS[name])
        else:
            text = value.decode("utf-8", "surrogateescape")
            front = _syslog_front(text) if name == "syslog" else re.match(FRONTS[name], text, re.ASCII)
            if front is None:
                raise Unreadable(f"not in the envelope {name}")
            end = front if isinstance(front, int) else front.end()
            value = text[end:].encode("utf-8", "surrogateescape")
    return value


def _syslog_front(text: str) -> int | None:
    """Returns how long the header of syslog is; None where there is none."""
    stated = STATED.match(text)
    if stated is not None and (end := _stated_front(text, stated.end())) is not None:
        return end
    priority = PRIORITY.match(text)
    dated = DATED.match(text, priority.end() if priority else 0)
    if dated is None:
        return None
    program = PROGRAM.match(text, dated.end())
    return program.end() if program else dated.end()


def _stated_front(text: str, begin: int) -> int | None:
    """Returns the end of a header of RFC 5424 whose time begins at `begin`; None if it is none."""
    at = begin
    for number in range(5):  # time, host, program, process, message
        word, blank, _ = text[at:].partition(" ")
        if not word or not blank or (number == 0 and word != "-" and not re.fullmatch(MOMENT, word)):
            return None
        at += len(word) + 1
    if text[at : at + 1] == "-":
        at += 1
    else:
        while text[at : at + 1] == "[":
            at = _behind_element(text, at)
    if text[at : at + 1] != " ":
        return None
    return at + (2 if text[at + 1 : at + 2] == "\ufeff" else 1)


def _behind_element(text: str, at: int) -> int:
    """Returns where an element of structured data ends that begins at `at`."""
    is_quoted = False
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif text[at] == '"':
            is_quoted = not is_quoted
        elif text[at] == "]" and not is_quoted:
            return at + 1
        at += 1
    return at


def _member(value: bytes, key: str) -> bytes:
    try:
        document = json.loads(value.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as error:
        raise Unreadable("not JSON") from error
    line = document.get(key) if isinstance(document, dict) else None
    if isinstance(line, list) and all(type(byte) is int and byte in range(256) for byte in line):
        return bytes(line).rstrip(b"\r\n")
    if not isinstance(line, str):
        raise Unreadable(f"no text in {key}")
    try:
        content = line.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        content = line.encode("utf-8", "surrogatepass")
    return content.rstrip(b"\r\n")
