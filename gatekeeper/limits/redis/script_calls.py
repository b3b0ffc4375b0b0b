"""Lua scripts, and the steps in which a decision calls them.

A decision over a store is written once, as a generator of steps (`StoreSteps`): calls of scripts, and sleeps.
The store runs the steps in a thread (`run`) or in an asyncio task (`run_async`), so no decision is written
twice. `ScriptStore` is the store as limiters see it.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar

from gatekeeper.limits.engine.protocol import LimiterStore
from gatekeeper.limits.engine.wait_queue import Waker
from gatekeeper.model import Decision

T = TypeVar("T")
OnError = Literal["allow", "deny", "local"]
SCRIPTS: Final = Path(__file__).parent / "lua"


class LuaScript(NamedTuple):
    """A script, and the digest by which Redis finds it again."""

    text: str
    sha: str


class ScriptCall(NamedTuple):
    """Runs a script; the step's result is the script's, or None while the store is failing."""

    script: LuaScript
    keys: tuple[bytes, ...]
    arguments: tuple[str | int | bytes, ...]


class ScriptCalls(NamedTuple):
    """Runs all calls in one round trip; the step's result is a list, or None while the store is failing."""

    calls: list[ScriptCall]


class Sleep(NamedTuple):
    """Sleeps `duration` seconds, or less when woken; None: until woken.

    With `finish_calls`, a task that was cancelled during a call notices it at this step. Its steps may then
    have something to give back. An exception in a thread is thrown into the step that it interrupts.
    """

    duration: float | None
    waker: Waker


StoreStep = ScriptCall | ScriptCalls | Sleep
StoreSteps = Generator[StoreStep, Any, T]


class NodePosition(NamedTuple):
    """Number of a process among those that share the limits of a store."""

    node: int  # from 0
    nodes: int


class ScriptStore(LimiterStore, Protocol):
    """The part of `RedisStore` that its limiters use."""

    @property
    def on_error(self) -> OnError: ...
    @property
    def prefix(self) -> str: ...

    @property
    def remember_ns(self) -> int | None:
        """Longest time that a refusal is remembered; None: to its end."""

    @property
    def local_position(self) -> NodePosition | None:
        """This process's position for on_error="local", by which it decides while the store fails."""

    def decision_script(self, kinds: frozenset[str]) -> LuaScript:
        """Returns the script that decides over limits of these kinds."""

    def script(self, name: str) -> LuaScript:
        """Returns the script in `lua/NAME.lua`."""

    def unavailable(self, name: str, limit: int) -> Decision:
        """Returns the refusal of every request while the store fails."""

    def run(self, steps: StoreSteps[T]) -> T:
        """Returns the result of `steps`, run in this thread. Raises TypeError for an asyncio client."""

    async def run_async(self, steps: StoreSteps[T], *, finish_calls: bool = False) -> T:
        """Returns the result of `steps`, run in this task. Raises TypeError for a client that blocks."""


@functools.cache
def build_script(time: str, *names: str) -> LuaScript:
    """Returns the script that consists of the files `names`; `time` is the Lua code that reads the clock."""
    files = [(SCRIPTS / f"{name}.lua").read_text(encoding="utf-8") for name in names]
    text = "\n".join([time, *files])
    return LuaScript(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def read_time_code() -> str:
    """Returns the Lua code that reads the server's clock."""
    return (SCRIPTS / "time.lua").read_text(encoding="utf-8")
