"""The vectors of `tests/vectors`: names of a request and its caller, equal for gate, counter and log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from gatekeeper.identity import UNNAMED

FOLDER = Path(__file__).parents[1] / "vectors"
FILE = FOLDER / "callers.json"


class Vector(NamedTuple):
    """Names of a request in the order of precedence, and the caller: "unnamed:" when no name is usable."""

    names: dict[str, str | None]
    caller: str
    prefix6: int = 64

    def __str__(self) -> str:
        return json.dumps(self.names)[:60]


def vectors() -> list[Vector]:
    found = []
    for entry in json.loads(FILE.read_text()):
        times = entry.pop("times", 1)  # a long text is its short form, repeated
        names = {kind: text and text * times for kind, text in entry.pop("names").items()}
        caller = entry.pop("caller")
        if caller != UNNAMED and times > 1:
            kind, _, text = caller.partition(":")
            caller = f"{kind}:{text * times}"
        found.append(Vector(names, caller, **entry))
    return found


VECTORS = vectors()


class DigestVector(NamedTuple):
    """A name and its digest, computed by OpenSSL: `openssl dgst -sha256 -hmac SECRET`, 32 digits of it."""

    secret: str
    text: str
    digest: str

    def __str__(self) -> str:
        return ascii(self.text)


DIGESTS = [DigestVector(**entry) for entry in json.loads((FOLDER / "digests.json").read_text())]


class ForwardedVector(NamedTuple):
    """A value of X-Forwarded-For, the proxies that are trusted, and the client's address; "": unknown."""

    forwarded: str
    trusted: tuple[str, ...]
    address: str

    def __str__(self) -> str:
        return f"{self.forwarded} behind {', '.join(self.trusted) or 'none'}"


FORWARDED = [
    ForwardedVector(entry["forwarded"], tuple(entry["trusted"]), entry["address"])
    for entry in json.loads((FOLDER / "forwarded.json").read_text())
]
