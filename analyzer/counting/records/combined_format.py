"""The "combined", "common" and "vhost_combined" log formats of Apache and nginx: the parts of each line.

A line may have a host in front, with its port, as in Debian's vhost_combined, or without; each line is
recognised by itself. Behind the agent a quoted X-Forwarded-For may follow, as nginx has it. The user is
what a client says, and servers write it as it is: blanks, brackets, nothing at all. So the line is read from
both ends: what stands between the identity and the last bracket before the request is the user.

The regular expression LINE and `_front_parts` define the format. They take a quarter of the time of an
import, so blocks of ordinary lines are not matched but split: the text of the whole block at its quotes, and
the texts between two quotes, joined again, at their spaces. That is several calls for a block instead of
several for a line. The separators show whether each line has its parts where an ordinary line has them;
`split_block` returns None for a block in which any line differs, and its lines are matched one by one.
So both ways find the same parts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from analyzer.kernel.model import RejectReason
from analyzer.plan.format_decoder import Columns, invalid_utf8, text_of_bytes
from analyzer.plan.mapping import (
    AddressField,
    Field,
    FieldPath,
    NumberField,
    ResourceField,
    TextField,
    TimeField,
)
from gatekeeper.identity import PREFIX6

# Anchored, possessive, one way to match each part: a hostile line cannot make the expression backtrack.
QUOTED = r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
# A host, only in front of an address: an IPv6 address alone is not a host. Without its port, `-` and a user
# must follow the address, too: `192.0.2.1 a.be ann [` has no host in front.
HOST = r"(?:[^ :]++|\[[^ \]]++\])"
PORT = r":[0-9]{1,5}(?= [0-9A-Fa-f]*+[.:][0-9A-Fa-f.:]*+ )"
NO_PORT = r"(?= (?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9A-Fa-f]*+(?::[0-9A-Fa-f.]*+){2,}+) - [^\[])"
VHOST = rf"(?:({HOST}(?:{PORT}|{NO_PORT})) )?+"
AGENT = rf"(?: {QUOTED} {QUOTED}(?: {QUOTED}(?= |\Z))?+)?+"
BEHIND = rf"{QUOTED} ([0-9]{{3}}|-) ([0-9]++|-){AGENT}(?: .*+)?"
# Apache writes "" for an empty user.
LINE = re.compile(rf'{VHOST}([^ ]++) [^ ]++ ("" )?+([^"\\]*+(?:\\.[^"\\]*+)*+){BEHIND}', re.DOTALL)
# A line without host, with a user of one word: the same parts in half the time. Group 1 never matches.
USUAL_LINE = re.compile(rf'(?:(?!)())?+([^ ]++) - ([^ \["\\]++) \[([^\[\]"\\]++)\] {BEHIND}', re.DOTALL)
STATUS = re.compile("[0-9]{3}|-")
REQUEST = re.compile(r"([A-Z]++) ([^ ]++)(?: (HTTP/[0-9.]++))?")
# "": the request.
LINE_PARTS = ("vhost", "address", "user", "time", "", "status", "bytes", "referer", "agent", "forwarded")
REQUEST_PARTS = ("method", "path", "protocol")
PARTS = (
    "vhost",
    "address",
    "user",
    "time",
    "method",
    "path",
    "protocol",
    "status",
    "bytes",
    "referer",
    "agent",
    "forwarded",
)
INTEGER_PARTS = ("status", "bytes")
INTEGER_DIGITS_MAX = 19

BLOCK_LINES = 200  # one unusual line makes a block slower; a block has fixed costs of some calls
ORDINARY_QUOTES = 6
QUOTES = (ORDINARY_QUOTES, 8)  # nginx's own configuration adds X-Forwarded-For: the part "forwarded"

LineParts = dict[str, Sequence[str | None]]  # by the names in LINE_PARTS, with one text per line

NO_LINE = (None,) * len(LINE_PARTS)
NO_REQUEST = (None,) * len(REQUEST_PARTS)

# The fields of a source that maps none.
FIELDS: dict[str, Field] = {
    "address": AddressField(("address",), PREFIX6),
    "user": TextField(("user",)),
    "resource": ResourceField(("path",)),
    "method": TextField(("method",)),
    "status": TextField(("status",)),
    "bytes": NumberField(("bytes",)),
}
TIME = TimeField(("time",), "clf")

# Defaults of [sources.fields]: each part but the path is a field of its name.
TABLE: dict[str, Any] = {part: part for part in PARTS if part != "path"} | {
    "resource": "path",
    "time": {"path": "time", "unit": "clf"},
    "bytes": {"path": "bytes", "kind": "bytes"},
}


class CombinedFormat:
    """Reads the parts that `paths` name, of many lines at once.

    `-` is missing, and so are method and path of a malformed request line. Parts with other names are always
    missing.
    """

    def __init__(self, paths: Sequence[FieldPath]) -> None:
        self._names = [path[0] if len(path) == 1 else "" for path in paths]

    def read(self, values: Sequence[bytes]) -> tuple[Columns, dict[int, RejectReason]]:
        """Returns a column per path, and the reasons of unreadable lines, whose parts are None."""
        columns: Columns = [[] for _ in self._names]
        reasons: dict[int, RejectReason] = {}
        for begin in range(0, len(values), BLOCK_LINES):
            block = values[begin : begin + BLOCK_LINES]
            parts = split_block(block)
            if parts is None:
                parts, unread = match_lines(block)
                reasons |= {begin + index: reason for index, reason in unread.items()}
            if any(name in REQUEST_PARTS for name in self._names):
                parts |= _request_parts(parts[""])
            for column, name in zip(columns, self._names, strict=True):
                column.extend(_values(name, parts.get(name), len(block)))
        return columns, reasons


def match_lines(values: Sequence[bytes]) -> tuple[LineParts, dict[int, RejectReason]]:
    """Returns the parts of lines, which are None for an unreadable one, and the reasons of these by index."""
    reasons: dict[int, RejectReason] = {}
    rows: list[tuple[str | None, ...]] = []
    for index, value in enumerate(values):
        line = text_of_bytes(value).rstrip("\r\n")
        usual = USUAL_LINE.fullmatch(line)
        if usual is not None:
            rows.append(usual.groups())
            continue
        match = LINE.fullmatch(line)
        parts = None if match is None else _front_parts(match)
        rows.append(parts or NO_LINE)
        if parts is None:
            reasons[index] = "bad-line"
    if reasons:
        reasons |= dict.fromkeys(reasons.keys() & invalid_utf8(values), "bad-utf8")
    return dict(zip(LINE_PARTS, zip(*rows, strict=True), strict=True)), reasons


def _front_parts(match: re.Match[str]) -> tuple[str | None, ...] | None:
    """Returns the parts of a line that LINE matches; None when no time stands in front of its request."""
    vhost, address, empty_user, front, *behind = match.groups()
    prefix, bracket, time = front[:-2].rpartition("[")
    if not (bracket and time and front.endswith("] ")) or "]" in time:
        return None
    if empty_user is None:  # a blank is between the user and the bracket
        if not prefix.endswith(" "):
            return None
        prefix = prefix[:-1]
    elif prefix:
        return None
    # No user is made of hyphens: a line of another format would have one.
    user = "-" if set(prefix.split(" ")) <= {"-", ""} else prefix
    return vhost, address, user, time, *behind


def split_block(values: Sequence[bytes]) -> LineParts | None:
    """Returns the parts of ordinary lines (at least one), or None when any line may not be ordinary.

    An ordinary line has three quoted texts or more without a backslash, no identity, and a user and a time
    zone without a space. For such lines the answer equals that of `match_lines`.
    """
    count = len(values)
    try:
        text = b"\n ".join(values).decode()
    except UnicodeDecodeError:
        return None
    texts = text.split('"')  # of each line `quotes` texts: in front of, between and behind its quotes
    quotes, remainder = divmod(len(texts) - 1, count)
    is_regular = not remainder and quotes in QUOTES and not texts[-1] and text.count("\n") == count - 1
    if not is_regular or "\\" in text:
        return None
    gaps = {*texts[4::quotes], *texts[6:-1:quotes]} if quotes > ORDINARY_QUOTES else {*texts[4::quotes]}
    fronts = _split_fronts(texts[:-1:quotes])
    numbers = _split_numbers(texts[2::quotes])
    if gaps != {" "} or fronts is None or numbers is None:
        return None
    parts = fronts | numbers | {"": texts[1::quotes], "referer": texts[3::quotes], "agent": texts[5::quotes]}
    return parts if quotes == ORDINARY_QUOTES else parts | {"forwarded": texts[7::quotes]}


def _split_fronts(fronts: Sequence[str]) -> LineParts | None:
    """Returns address, user and time of texts such as `192.0.2.1 - ann [10/Oct/2000:13:55:36 -0700] `.

    All but the first have a newline and a space in front. None if any does not: then a line has more quotes
    than another, or something behind its last one.
    """
    words = '"'.join(fronts).split(" ")
    if len(words) != 6 * len(fronts) or words[5::6] != ['"\n'] * (len(fronts) - 1) + [""]:
        return None
    words.pop()
    times, zones = words[3::6], words[4::6]
    distinct, zone = set(times), zones[0]
    if "" in words or zone.find("]") != len(zone) - 1 or "[" in zone or zones.count(zone) != len(zones):
        return None
    if words[1::6].count("-") != len(fronts):  # an address behind a host and its port
        return None
    if not all(time.rfind("[") == 0 and "]" not in time for time in distinct):
        return None
    text_of = {time: f"{time[1:]} {zone[:-1]}" for time in distinct}
    return {"address": words[0::6], "user": words[2::6], "time": [text_of[time] for time in times]}


def _split_numbers(numbers: Sequence[str]) -> LineParts | None:
    """Returns status and size of texts such as ` 200 1270 `; None if any has another form."""
    words = '"'.join(numbers).split(" ")
    if len(words) != 3 * len(numbers) + 1 or words[0::3] != ["", *['"'] * (len(numbers) - 1), ""]:
        return None
    statuses, sizes = words[1::3], words[2::3]
    digits = "".join([size for size in sizes if size != "-"] if "-" in sizes else sizes) or "0"
    if "" in sizes or not (digits.isascii() and digits.isdigit()):
        return None
    return {"status": statuses, "bytes": sizes} if all(map(STATUS.fullmatch, set(statuses))) else None


def _request_parts(requests: Sequence[str | None]) -> LineParts:
    matches = (None if request is None else REQUEST.fullmatch(request) for request in requests)
    rows = [NO_REQUEST if match is None else match.groups() for match in matches]
    return dict(zip(REQUEST_PARTS, zip(*rows, strict=True), strict=True))


def _values(name: str, texts: Sequence[str | None] | None, size: int) -> Sequence[Any]:
    """Returns a part's values, numbers for status and bytes, None for `-`; `size` times None for no part."""
    if name not in PARTS or texts is None:
        return [None] * size
    if name in INTEGER_PARTS:
        number_of = {text: None if text is None or text == "-" else _integer(text) for text in {*texts}}
        return list(map(number_of.__getitem__, texts))
    return [None if text == "-" else text for text in texts] if "-" in texts else texts


def _integer(text: str) -> int | bytes:
    return int(text) if len(text) <= INTEGER_DIGITS_MAX else text.encode()
