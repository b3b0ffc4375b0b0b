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
LOGIN_MODULE = "login module"  # stands among the options: the class of the line, which implies a mechanism
CURE = (
    'write ... ScramLoginModule required username="USER" password="PASSWORD"; or remove it and set '
    "sasl_plain_username and sasl_plain_password"
)


def parse_login(value: Any) -> Iterator[tuple[str, Any]]:
    """The options that a login line sets: login module, user and password. Raises OptionFault."""
    line = LINE.fullmatch(value) if isinstance(value, str) else None
    if line is None:
        raise OptionFault("is not a login line that can be parsed", CURE)
    module, options = line[1].rpartition(".")[2], line[2]
    if module not in ("ScramLoginModule", "PlainLoginModule"):
        raise OptionFault(f"{module} is not available", "use SCRAM-SHA-512, PLAIN over TLS, or a certificate")
    if ENTRY.sub("", options).strip():
        raise OptionFault("is not a login line that can be parsed", CURE)
    entries = {name: unquote(text) for name, text in ENTRY.findall(options)}
    if not entries.get("username") or not entries.get("password"):
        raise OptionFault("lacks the user or the password", CURE)
    yield LOGIN_MODULE, module
    yield "sasl_plain_username", entries["username"]
    yield "sasl_plain_password", entries["password"]


def unquote(text: str) -> str:
    """The value that Java reads: between quotation marks, backslashes escape."""
    if text[0] not in "\"'":
        return text
    return ESCAPED.sub(lambda hit: chr(int(hit[1], 8)) if hit[1] else ESCAPES.get(hit[2], hit[2]), text[1:-1])
