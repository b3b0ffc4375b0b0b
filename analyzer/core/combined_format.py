"""Lines as Apache and nginx write them, "combined" or the shorter "common": values of their parts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from analyzer.core.mapping import Path

# Anchored, possessive, one way to match each part: a hostile line cannot make it try again and again.
QUOTED = r'"((?:[^"\\]|\\.)*+)"'
LINE = re.compile(
    rf'(\S++) (\S++) (\S++(?: [^\[" ]++)*+) \[([^\]]++)\] {QUOTED} (\d{{3}}|-) (\d++|-)'
    rf"(?: {QUOTED} {QUOTED})?+(?: .*+)?",
    re.DOTALL,
)
REQUEST = re.compile(r"([A-Z]++) (\S++)(?: (HTTP/[\d.]++))?")
PARTS = ("address", "user", "time", "method", "path", "protocol", "status", "bytes", "referer", "agent")


class CombinedFormat:
    """Reads the parts that `paths` name; `-` is missing, and so are method and path of a request line that
    is no request. Parts with other names are missing always."""

    def __init__(self, paths: Sequence[Path], digits: frozenset[Path]) -> None:
        self._names = [(path[0] if len(path) == 1 else "", path in digits) for path in paths]

    def read(self, value: bytes, text: str | None) -> tuple[Any, ...] | None:
        """The values in a line; None when it is none."""
        match = LINE.fullmatch((value.decode("ascii") if text is None else text).rstrip("\r\n"))
        if match is None:
            return None
        address, _, user, time, request, status, size, referer, agent = match.groups()
        asked = REQUEST.fullmatch(request)
        method, path, protocol = asked.groups() if asked else (None, None, None)
        found = dict(
            zip(
                PARTS,
                (address, user, time, method, path, protocol, status, size, referer, agent),
                strict=True,
            )
        )
        return tuple(_given(found.get(name), name, digits) for name, digits in self._names)

    exact = read


def _given(text: str | None, name: str, digits: bool) -> str | int | None:
    if text is None or text == "-":
        return None
    return int(text) if name in ("status", "bytes") and not digits and len(text) < 20 else text
