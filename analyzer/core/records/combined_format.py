"""The "combined" and "common" log formats of Apache and nginx: the parts of each line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from analyzer.core.model import RejectReason
from analyzer.core.records.format_decoder import Columns, invalid_utf8
from analyzer.core.records.mapping import (
    AddressField,
    Field,
    FieldPath,
    NumberField,
    ResourceField,
    TextField,
    TimeField,
)

# Anchored, possessive, one way to match each part: a hostile line cannot make the expression backtrack.
QUOTED = r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
LINE = re.compile(
    rf'([^ ]++) [^ ]++ ([^ ]++(?: [^\[" ]++)*+) \[([^\]]++)\] {QUOTED} ([0-9]{{3}}|-) ([0-9]++|-)'
    rf"(?: {QUOTED} {QUOTED})?+(?: .*+)?",
    re.DOTALL,
)
REQUEST = re.compile(r"([A-Z]++) ([^ ]++)(?: (HTTP/[0-9.]++))?")
LINE_PARTS = ("address", "user", "time", "", "status", "bytes", "referer", "agent")  # "": the request
REQUEST_PARTS = ("method", "path", "protocol")
PARTS = ("address", "user", "time", "method", "path", "protocol", "status", "bytes", "referer", "agent")
INTEGER_PARTS = ("status", "bytes")
INTEGER_DIGITS_MAX = 19

NO_LINE = (None,) * len(LINE_PARTS)
NO_REQUEST = (None,) * len(REQUEST_PARTS)

# The fields of a source that maps none.
FIELDS: dict[str, Field] = {
    "address": AddressField(("address",)),
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
        reasons: dict[int, RejectReason] = dict.fromkeys(invalid_utf8(values), "bad-utf8")
        rows: list[tuple[str | None, ...]] = []
        for index, value in enumerate(values):
            match = None if index in reasons else LINE.fullmatch(value.decode().rstrip("\r\n"))
            rows.append(NO_LINE if match is None else match.groups())
            if match is None:
                reasons.setdefault(index, "bad-line")
        parts = dict(zip(LINE_PARTS, zip(*rows, strict=True), strict=True))
        if any(name in REQUEST_PARTS for name in self._names):
            matches = (None if line is None else REQUEST.fullmatch(line) for line in parts[""])
            requests = [NO_REQUEST if match is None else match.groups() for match in matches]
            parts |= dict(zip(REQUEST_PARTS, zip(*requests, strict=True), strict=True))
        return [self._column(name, parts.get(name, ()), len(values)) for name in self._names], reasons

    def _column(self, name: str, texts: Sequence[str | None], size: int) -> list[Any]:
        if name not in PARTS:
            return [None] * size
        if name in INTEGER_PARTS:
            return [None if text is None or text == "-" else _integer(text) for text in texts]
        return [None if text == "-" else text for text in texts]


def _integer(text: str) -> int | bytes:
    return int(text) if len(text) <= INTEGER_DIGITS_MAX else text.encode()
