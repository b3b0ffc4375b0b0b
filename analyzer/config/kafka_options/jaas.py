"""`sasl.jaas.config`: the user and password in a login line of Java's clients."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from analyzer.config.diagnostics.faults import OptionFault

LINE = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(.*);\s*", re.DOTALL)
ENTRY = re.compile(r"""\s+([\w.-]+)\s*=\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s;"'=]+)""", re.DOTALL)
ESCAPED = re.compile(r"\\(?:([0-7]{1,3})|(.))", re.DOTALL)
ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
MODULE = "Java's module"  # not an option: by which way of logging in a line of JAAS goes
LOGIN = (
    'write ... ScramLoginModule required username="USER" password="PASSWORD"; or leave it out and give '
    + ("sasl_plain_username and sasl_plain_password")
)


def login(value: Any) -> Iterator[tuple[str, Any]]:
    """User and password out of a line of JAAS. Raises Wrong."""
    found = LINE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise OptionFault("is no login that can be read", LOGIN)
    module, rest = found[1].rpartition(".")[2], found[2]
    if module not in ("ScramLoginModule", "PlainLoginModule"):
        raise OptionFault(f"{module} is not available", "use SCRAM-SHA-512, PLAIN over TLS, or a certificate")
    if ENTRY.sub("", rest).strip():
        raise OptionFault("is no login that can be read", LOGIN)
    entries = {name: unquoted(text) for name, text in ENTRY.findall(rest)}
    if not entries.get("username") or not entries.get("password"):
        raise OptionFault("names no user, or no password", LOGIN)
    yield MODULE, module
    yield "sasl_plain_username", entries["username"]
    yield "sasl_plain_password", entries["password"]


def unquoted(text: str) -> str:
    """As Java reads it: backslashes escape between quotation marks."""
    if text[0] not in "\"'":
        return text
    return ESCAPED.sub(lambda hit: chr(int(hit[1], 8)) if hit[1] else ESCAPES.get(hit[2], hit[2]), text[1:-1])
