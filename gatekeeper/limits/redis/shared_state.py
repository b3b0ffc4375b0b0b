"""What a limiter holds that keeps its keys in a store."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from gatekeeper.limits.engine.decisions import combined
from gatekeeper.limits.engine.key_states import KeyStates
from gatekeeper.limits.engine.protocol import Key, NanosecondClock
from gatekeeper.limits.engine.reservations import Reservation
from gatekeeper.limits.engine.units import MICROSECOND_NS, to_seconds
from gatekeeper.limits.redis.negative_cache import RefusalCache
from gatekeeper.limits.redis.script_calls import ScriptCall
from gatekeeper.limits.redis.scripts import LuaScript
from gatekeeper.limits.redis.stored_limit import StoredLimit, hash_tag
from gatekeeper.model import Decision

if TYPE_CHECKING:
    from gatekeeper.limits.redis.store import RedisStore


class ScriptReply(NamedTuple):
    """A script's answer, sorted."""

    now_us: int
    wait_us: int  # until all of it may pass
    spent: bool
    each: list[tuple[int, list[int]]]  # of each part: its own wait, its numbers
    texts: list[bytes | str]  # of a booking: each part's line before and after


class SharedState:
    """The parts of one shared limiter, their store, and what this process knows by itself."""

    __slots__ = ("clock", "local", "name", "parts", "refusals", "script", "store")

    def __init__(
        self, store: RedisStore, parts: tuple[StoredLimit, ...], name: str, clock: NanosecondClock
    ) -> None:
        self.store = store
        self.parts = parts
        self.name = name
        self.clock = clock
        self.script: LuaScript = store.script(frozenset(part.speech.kind for part in parts))
        self.refusals = RefusalCache(clock, store.remember_ns)
        for part in parts:
            part.remembered.append(self.refusals)
        self.local: Any = None  # this process's share, where that is what the store's failing asks for

    def call(
        self, do: str, key: Key, cost: int, longest_us: int = -1, texts: tuple[str | bytes, ...] = ()
    ) -> ScriptCall:
        """The script's run for one key."""
        caller = hash_tag(key)
        if len(self.parts) == 1:
            part = self.parts[0]
            return ScriptCall(
                self.script, (part.key(caller),), (do, cost, longest_us, *part.words(cost), *texts)
            )
        keys = tuple(part.key(caller) for part in self.parts)
        words = itertools.chain.from_iterable(part.words(cost) for part in self.parts)
        return ScriptCall(self.script, keys, (do, cost, longest_us, *words, *texts))

    def reply(self, raw: list[Any]) -> ScriptReply:
        """The answer to such a run."""
        now_us, wait_us, spent = raw[:3]
        at, each = 3, []
        for part in self.parts:
            end = at + 1 + part.speech.size
            each.append((raw[at], raw[at + 1 : end]))
            at = end
        return ScriptReply(now_us, wait_us, bool(spent), each, raw[at:])

    def forget(self, key: Key) -> None:
        """Ask again about `key`, here and wherever else in this process its parts are decided about."""
        for part in self.parts:
            part.forget(key)

    def never(self, cost: int) -> bool:
        """Whether `cost` is above what can ever pass."""
        return any(part.never(cost) for part in self.parts)

    def decision(self, reply: ScriptReply, cost: int = 0) -> Decision:
        """The answer of all parts together, of the moment at which the script ran.

        A `cost` that can never pass was not asked about.
        """
        answers = [
            part.decision(numbers, reply.now_us, None if cost and part.never(cost) else wait_us)
            for part, (wait_us, numbers) in zip(self.parts, reply.each, strict=True)
        ]
        return answers[0] if len(answers) == 1 else combined(answers, self.name)

    def passed(self, reply: ScriptReply) -> Decision:
        """The answer of all parts to a booking, as of the moment that was booked."""
        free = [(0, numbers) for _, numbers in reply.each]
        return self.decision(reply._replace(now_us=reply.now_us + reply.wait_us, each=free))

    def alone(self) -> Decision:
        """The answer while the store is failing and nobody decides in its place."""
        limit = min(part.rule.limit for part in self.parts)
        if self.store.on_error == "allow":
            return Decision(True, limit=limit)
        return self.store.unavailable(self.name, limit)

    def alone_booked(self) -> Reservation:
        """The same for a booking."""
        answer = self.alone()
        return Reservation(answer, answer.retry_after, self.clock())


class SharedLimiter(Protocol):
    """A limiter whose keys a store holds."""

    _rule: Any

    @property
    def _keys(self) -> KeyStates[Any]: ...
    @property
    def _name(self) -> str: ...
    @property
    def _sharing(self) -> SharedState: ...


def wait_seconds(wait_us: int) -> float:
    """Microseconds as seconds."""
    return to_seconds(wait_us * MICROSECOND_NS)
