"""Lines as Apache and nginx write them, "combined" or the shorter "common": values of their parts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from analyzer.core.model import RejectReason
from analyzer.core.records.formats import Columns, not_utf8
from analyzer.core.records.mapping import (
    AddressField,
    Field,
    FieldPath,
    Mapping,
    NumberField,
    ResourceField,
    TextField,
    TimeField,
)

# Anchored, possessive, one way to match each part: a hostile line cannot make it try again and again.
QUOTED = r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
LINE = re.compile(
    rf'([^ ]++) [^ ]++ ([^ ]++(?: [^\[" ]++)*+) \[([^\]]++)\] {QUOTED} ([0-9]{{3}}|-) ([0-9]++|-)'
    rf"(?: {QUOTED} {QUOTED})?+(?: .*+)?",
    re.DOTALL,
)
REQUEST = re.compile(r"([A-Z]++) ([^ ]++)(?: (HTTP/[0-9.]++))?")
OUTSIDE = ("address", "user", "time", "", "status", "bytes", "referer", "agent")  # "": the request
INSIDE = ("method", "path", "protocol")
PARTS = ("address", "user", "time", "method", "path", "protocol", "status", "bytes", "referer", "agent")
WHOLE = ("status", "bytes")

NOTHING = (None,) * len(OUTSIDE)
NO_REQUEST = (None,) * len(INSIDE)
WHOLE_DIGITS_MAX = 19

FIELDS: dict[str, Field] = {
    "address": AddressField(("address",)),
    "user": TextField(("user",)),
    "resource": ResourceField(("path",)),
    "method": TextField(("method",)),
    "status": TextField(("status",)),
    "bytes": NumberField(("bytes",)),
}
TIME = TimeField(("time",), "clf")


class CombinedFormat:
    """Reads the parts that `paths` name, of many lines at once; `-` is missing, and so are method and path of
    a request line that is no request. Parts with other names are missing always."""

    def __init__(self, paths: Sequence[FieldPath]) -> None:
        self._names = [path[0] if len(path) == 1 else "" for path in paths]

    def read(self, values: Sequence[bytes]) -> tuple[Columns, dict[int, RejectReason]]:
        """A column of values for each path, and which lines are none; their parts are missing."""
        refused: dict[int, RejectReason] = dict.fromkeys(not_utf8(values), "bad-utf8")
        rows: list[tuple[str | None, ...]] = []
        for at, value in enumerate(values):
            match = None if at in refused else LINE.fullmatch(value.decode().rstrip("\r\n"))
            rows.append(NOTHING if match is None else match.groups())
            if match is None:
                refused.setdefault(at, "bad-line")
        parts = dict(zip(OUTSIDE, zip(*rows, strict=True), strict=True))
        if any(name in INSIDE for name in self._names):
            asked = (None if line is None else REQUEST.fullmatch(line) for line in parts[""])
            inside = [NO_REQUEST if match is None else match.groups() for match in asked]
            parts |= dict(zip(INSIDE, zip(*inside, strict=True), strict=True))
        return [self._column(name, parts.get(name, ()), len(values)) for name in self._names], refused

    def _column(self, name: str, found: Sequence[str | None], size: int) -> list[Any]:
        if name not in PARTS:
            return [None] * size
        if name in WHOLE:
            return [None if text is None or text == "-" else _whole(text) for text in found]
        return [None if text == "-" else text for text in found]


def _whole(text: str) -> int | bytes:
    return int(text) if len(text) <= WHOLE_DIGITS_MAX else text.encode()


def with_usual_fields(mapping: Mapping) -> Mapping:
    """A combined line has its parts in known places: who maps nothing gets them under their own names."""
    if mapping.fields:
        return mapping
    return replace(mapping, fields=FIELDS, time=mapping.time or TIME)
