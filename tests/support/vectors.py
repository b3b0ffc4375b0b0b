"""The vectors of `tests/vectors`: names of a request and its caller, equal for gate, counter and log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).parents[1] / "vectors" / "callers.json"


class Vector(NamedTuple):
    """Names of a request in the order of precedence, and the caller.

    The caller is "" when no name is given, and None when a name is invalid.
    """

    names: dict[str, str | None]
    caller: str | None
    prefix6: int = 128

    def __str__(self) -> str:
        return json.dumps(self.names)[:60]


def vectors() -> list[Vector]:
    found = []
    for entry in json.loads(FILE.read_text()):
        times = entry.pop("times", 1)  # a long text is its short form, repeated
        names = {kind: text and text * times for kind, text in entry.pop("names").items()}
        caller = entry.pop("caller")
        if caller and times > 1:
            kind, _, text = caller.partition(":")
            caller = f"{kind}:{text * times}"
        found.append(Vector(names, caller, **entry))
    return found


VECTORS = vectors()
