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


def unwrap_envelopes(value: bytes, envelopes: Sequence[str]) -> bytes:
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
    versioned = STATED.match(text)
    if versioned is not None and (end := _stated_front(text, versioned.end())) is not None:
        return end
    priority = PRIORITY.match(text)
    dated = DATED.match(text, priority.end() if priority else 0)
    if dated is None:
        return None
    program = PROGRAM.match(text, dated.end())
    return program.end() if program else dated.end()


def _stated_front(text: str, begin: int) -> int | None:
    """Returns the end of a header of RFC 5424 whose time begins at `begin`; None if it is none."""
    position = begin
    for number in range(5):  # time, host, program, process, message
        word, blank, _ = text[position:].partition(" ")
        if not word or not blank or (number == 0 and word != "-" and not re.fullmatch(MOMENT, word)):
            return None
        position += len(word) + 1
    if text[position : position + 1] == "-":
        position += 1
    else:
        while text[position : position + 1] == "[":
            position = _behind_element(text, position)
    if text[position : position + 1] != " ":
        return None
    return position + (2 if text[position + 1 : position + 2] == "\ufeff" else 1)


def _behind_element(text: str, position: int) -> int:
    """Returns where an element of structured data ends that begins at `position`."""
    is_quoted = False
    while position < len(text):
        if text[position] == "\\":
            position += 1
        elif text[position] == '"':
            is_quoted = not is_quoted
        elif text[position] == "]" and not is_quoted:
            return position + 1
        position += 1
    return position


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
