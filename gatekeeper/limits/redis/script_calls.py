"""What a decision wants done by whoever runs it: a thread, or a task of asyncio."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

from gatekeeper.limits.engine.wait_queue import Waker
from gatekeeper.limits.redis.scripts import LuaScript

T = TypeVar("T")


class ScriptCall(NamedTuple):
    """Run this script; the answer to this step is the script's, or None while the store is failing."""

    script: LuaScript
    keys: tuple[bytes, ...]
    words: tuple[str | int | bytes, ...]


class ScriptCalls(NamedTuple):
    """Run all of these in one round trip; the answer is a list, or None while the store is failing."""

    calls: list[ScriptCall]


class Sleep(NamedTuple):
    """Let `duration` seconds pass, or less when the waker rings; None: until it rings.

    Whoever was cancelled or interrupted hears of it here and nowhere else, and may then have
    something to give back.
    """

    duration: float | None
    waker: Waker


StoreSteps = Generator[ScriptCall | ScriptCalls | Sleep, Any, T]
