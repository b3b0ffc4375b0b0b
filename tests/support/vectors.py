"""The vectors of `tests/vectors`: who a caller is, for everybody who says it, gate, counter and log alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).parents[1] / "vectors" / "callers.json"


class Vector(NamedTuple):
    """Names in the order in which they are asked for, and the one name that comes of them: "" for nobody,
    None for what cannot be a name."""

    names: dict[str, str | None]
    caller: str | None
    prefix6: int = 128

    def __str__(self) -> str:
        return json.dumps(self.names)[:60]


def vectors() -> list[Vector]:
    found = []
    for each in json.loads(FILE.read_text()):
        times = each.pop("times", 1)  # of what is long: how often its text stands there
        names = {kind: text and text * times for kind, text in each.pop("names").items()}
        caller = each.pop("caller")
        if caller and times > 1:
            kind, _, text = caller.partition(":")
            caller = f"{kind}:{text * times}"
        found.append(Vector(names, caller, **each))
    return found


VECTORS = vectors()
