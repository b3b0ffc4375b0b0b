"""The scripts that decide inside Redis, put together from their pieces."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import NamedTuple

PIECES = Path(__file__).parent / "lua"


class LuaScript(NamedTuple):
    """What Redis runs, and the name by which it knows it again."""

    text: str
    sha: str


def piece(name: str) -> str:
    """The text of one piece."""
    return (PIECES / f"{name}.lua").read_text(encoding="utf-8")


@functools.cache
def script(time: str, *names: str) -> LuaScript:
    """The script of the pieces `names`; `time` says how it learns what time it is."""
    text = "\n".join([time, *map(piece, names)])
    return LuaScript(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def deciding(time: str, kinds: frozenset[str]) -> LuaScript:
    """The script that decides over limits of these kinds."""
    return script(time, "decide", *sorted(kinds), "end")
