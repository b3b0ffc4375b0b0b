"""Documents in a log: JSON objects and combined lines as dictionaries."""

from __future__ import annotations

import json
import re
from typing import Any

FORMATS = ("json", "combined", "vhost_combined")

LINE = re.compile(
    r"(?:(?P<vhost>(?:[^: ]+|\[[^\] ]+\]):[0-9]{1,5}) (?=[0-9a-fA-F.:]*[.:][0-9a-fA-F.:]* ))?"
    r"(?P<address>[^ ]+) [^ ]+ "
    r'(?:"" \[(?P<time>[^\[\]]+)\] |(?P<user>(?:[^"\\]|\\.)*) \[(?P<time_behind>[^\[\]"]+)\] )'
    r'"(?P<request>(?:[^"\\]|\\.)*)" (?P<status>[0-9]{3}|-) (?P<bytes>[0-9]+|-)(?: .*)?',
    re.DOTALL,
)
REQUEST = re.compile(r"([A-Z]+) ([^ ]+)(?: HTTP/[0-9.]+)?", re.DOTALL)


class Unreadable(ValueError):
    """A record that cannot be counted."""


class Digits(str):
    """A number as it is written."""

    __slots__ = ()


def document_of(value: bytes, format_: str) -> dict[str, Any]:
    """Returns the document in a record. Raises Unreadable."""
    text = value.decode("utf-8", "surrogateescape")
    return _object_of(text) if format_ == "json" else _parts_of(text)


def _object_of(text: str) -> dict[str, Any]:
    def refuse(_constant: str) -> None:
        raise Unreadable("not JSON")  # NaN and Infinity, which Python reads

    try:
        found = json.loads(text, parse_int=Digits, parse_float=Digits, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise Unreadable("not JSON") from error
    if not isinstance(found, dict):
        raise Unreadable("not an object")
    return found


def _parts_of(text: str) -> dict[str, Any]:
    line = LINE.fullmatch(text.rstrip("\r\n"))
    if line is None:
        raise Unreadable("not a combined line")
    user = line["user"] or "-"
    if all(word in {"", "-"} for word in user.split(" ")):
        user = "-"
    request = REQUEST.fullmatch(line["request"])
    method, path = request.groups() if request else ("-", "-")
    found = {
        "vhost": line["vhost"] or "-", "address": line["address"], "user": user, "method": method,
        "path": path, "time": line["time"] or line["time_behind"],
        "status": Digits(line["status"]), "bytes": Digits(line["bytes"]),
    }  # fmt: skip
    return {name: None if text == "-" else text for name, text in found.items()}
