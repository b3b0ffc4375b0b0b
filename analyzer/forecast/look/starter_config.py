"""The source and the policy that follow from a look at a log, as the text of a configuration."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from typing import Any

from analyzer.counting.records.formats import FORMATS
from analyzer.forecast.look.json_fields import Table

POLICY = "surge"
# A policy that was never watched must lock no caller. The one place that says how it only watches.
WATCHING: Mapping[str, str] = {"mode": "shadow"}
COMMENTS: Mapping[str, str] = {
    "mode": "judged, and no gate gets its locks; remove this line to enforce the limit",
    "deny_if": "requests that a gate denied, which are not counted as use",
}
DENIED_STATUS = "429"  # of guards, unless a policy says otherwise


def policy_table(per: str, limit: int, window: str) -> Table:
    """Returns the suggested policy as [[policies]] has it."""
    table: Table = {"name": POLICY, "kind": "surge", "per": per, "limit": limit}
    return table | {"window": {"rolling": window}, "lock_for": ["10m"], **WATCHING}


def source_text(source: Table, file: str) -> str:
    """Returns [[sources]] and [sources.fields] of a file.

    A log without a field for it shows by the status which requests a gate denied. Without `deny_if` these
    count as use, and a caller that continues is locked again and again.
    """
    fields = source["fields"]
    head = {"file": file} | {key: value for key, value in source.items() if key != "fields"}
    if "deny_if" not in head and "status" in {*FORMATS[source["format"]].table, *fields}:
        head["deny_if"] = {"status": DENIED_STATUS}
    return f"[[sources]]\n{_lines(head)}\n[sources.fields]\n{_lines(fields)}"


def policy_text(policy: Table, reason: str) -> str:
    """Returns [[policies]], with the reason for its limit above."""
    comment = textwrap.wrap(reason, 100, initial_indent="# ", subsequent_indent="# ")
    return "\n".join([*comment, "[[policies]]", _lines(policy)])


def _lines(table: Table) -> str:
    width = max(map(len, table))
    comments = {key: f"  # {text}" for key, text in COMMENTS.items()}
    return "".join(
        f"{key:<{width}} = {toml_value(value)}{comments.get(key, '')}\n" for key, value in table.items()
    )


def toml_value(value: Any) -> str:
    r"""Returns a value as TOML has it on one line; long lists have a line for each item.

    >>> toml_value({"path": "ts", "unit": "s"}), toml_value(['a"b', 1]), toml_value(10_000)
    ('{ path = "ts", unit = "s" }', '["a\\"b", 1]', '10_000')
    """
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {toml_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        items = [toml_value(item) for item in value]
        short = f"[{', '.join(items)}]"
        return short if len(short) <= 60 else "[\n" + "".join(f"    {item},\n" for item in items) + "]"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for DEL, and for characters beyond 16 bits.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return f"{value:_}"
