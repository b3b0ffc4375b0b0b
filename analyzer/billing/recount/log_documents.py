"""Documents in a log: JSON objects and combined lines as dictionaries."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from analyzer.billing.recount.log_envelopes import Unreadable, unwrap_envelopes

FORMATS = ("json", "combined", "vhost_combined")

LINE = re.compile(
    r"(?:(?P<vhost>(?:[^: ]+|\[[^\] ]+\]):[0-9]{1,5}) (?=[0-9a-fA-F.:]*[.:][0-9a-fA-F.:]* )"
    r"|(?P<host>(?:[^: ]+|\[[^\] ]+\])) (?=(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}"
    r"|[0-9a-fA-F]*:[0-9a-fA-F.]*:[0-9a-fA-F.:]*) - [^\[]))?"
    r"(?P<address>[^ ]+) [^ ]+ "
    r'(?:"" \[(?P<time>[^\[\]]+)\] |(?P<user>(?:[^"\\]|\\.)*) \[(?P<time_behind>[^\[\]"]+)\] )'
    r'"(?P<request>(?:[^"\\]|\\.)*)" (?P<status>[0-9]{3}|-) (?P<bytes>[0-9]+|-)(?: (?P<rest>.*))?',
    re.DOTALL,
)
BEHIND_BYTES = re.compile(r'(?:"(?:[^"\\]|\\.)*" ){2}"(?P<forwarded>(?:[^"\\]|\\.)*)"(?: .*)?', re.DOTALL)
REQUEST = re.compile(r"([A-Z]+) ([^ ]+)(?: HTTP/[0-9.]+)?", re.DOTALL)


class Digits(str):
    """A number as it is written."""

    __slots__ = ()


def parse_document(value: bytes, format_: str, envelopes: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the document in a record, within these envelopes. Raises Unreadable."""
    text = unwrap_envelopes(value, envelopes).decode("utf-8", "surrogateescape")
    return _parse_json(text) if format_ == "json" else _parse_combined(text)


def _parse_json(text: str) -> dict[str, Any]:
    def refuse(_constant: str) -> None:
        raise Unreadable("not JSON")  # NaN and Infinity, which Python reads

    try:
        document = json.loads(text, parse_int=Digits, parse_float=Digits, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise Unreadable("not JSON") from error
    if not isinstance(document, dict):
        raise Unreadable("not an object")
    return document


def _parse_combined(text: str) -> dict[str, Any]:
    line = LINE.fullmatch(text.rstrip("\r\n"))
    if line is None:
        raise Unreadable("not a combined line")
    user = line["user"] or "-"
    if all(word in {"", "-"} for word in user.split(" ")):
        user = "-"
    request = REQUEST.fullmatch(line["request"])
    behind = BEHIND_BYTES.fullmatch(line["rest"] or "")
    method, path = request.groups() if request else ("-", "-")
    fields = {
        "vhost": line["vhost"] or line["host"] or "-", "forwarded": behind["forwarded"] if behind else "-",
        "address": line["address"], "user": user, "method": method,
        "path": path, "time": line["time"] or line["time_behind"],
        "status": Digits(line["status"]), "bytes": Digits(line["bytes"]),
    }  # fmt: skip
    return {name: None if text == "-" else text for name, text in fields.items()}
