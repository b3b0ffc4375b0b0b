"""Readers of logs by their format: JSON objects, and combined lines."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from analyzer.billing.recount.log_envelopes import Unreadable
from analyzer.billing.recount.single_values import Digits, StoredField

Path = Sequence[str]
ValueAt = Callable[[Path], Any]  # the value of a record at a path; None where it has none

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


class LogReader(NamedTuple):
    """The reader of one format.

    Attributes:
        make: Returns by the paths of all fields a function that reads a record without its envelopes, and
            raises Unreadable.
        caller: The fields that name the caller, unless a source says otherwise.
        fields: Of a source that maps none.
        time: Of such a source.
        is_independent: Whether it shares no code with the counter.
    """

    make: Callable[[Sequence[Path]], Callable[[bytes], ValueAt]]
    caller: Sequence[str]
    fields: Mapping[str, StoredField] = {}
    time: Mapping[str, Any] | None = None
    is_independent: bool = True


def _reader(parse: Callable[[str], dict[str, Any]], _paths: Sequence[Path]) -> Callable[[bytes], ValueAt]:
    """Returns a function that reads a record by the parser of its format."""

    def read(value: bytes) -> ValueAt:
        document = parse(value.decode("utf-8", "surrogateescape"))

        def look_up(path: Path) -> Any:
            node: Any = document
            for key in path:
                node = node.get(key) if isinstance(node, dict) else None
            return node

        return look_up

    return read


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


COMBINED = LogReader(
    partial(_reader, _parse_combined),
    caller=("address",),
    fields={
        "address": {"type": "address", "path": ["address"], "prefix6": 64},
        "user": {"type": "text", "path": ["user"]},
        "resource": {"type": "resource", "path": ["path"], "routes": [], "other": "other"},
        "method": {"type": "text", "path": ["method"]},
        "status": {"type": "text", "path": ["status"]},
        "bytes": {"type": "number", "path": ["bytes"], "kind": "whole", "unit": "s", "default": 0},
    },
    time={"path": ["time"], "unit": "clf"},
)
READERS: Mapping[str, LogReader] = {
    "json": LogReader(partial(_reader, _parse_json), caller=("api_key", "user", "address")),
    "combined": COMBINED,
    "vhost_combined": COMBINED,
}
