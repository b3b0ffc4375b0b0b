"""State of one limiter whose keys are in a store: its limits, its store, and what this process remembers."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from gatekeeper.limits.engine.decisions import combined
from gatekeeper.limits.engine.key_states import KeyStates
from gatekeeper.limits.engine.protocol import Key
from gatekeeper.limits.engine.reservations import Reservation
from gatekeeper.limits.redis.negative_cache import RefusalCache
from gatekeeper.limits.redis.script_calls import LuaScript, ScriptCall, ScriptStore
from gatekeeper.limits.redis.stored_limit import StoredLimit, hash_tag
from gatekeeper.model import Decision


class ScriptReply(NamedTuple):
    """The result of a decision script, decoded."""

    now_us: int
    wait_us: int  # until all limits admit the request
    spent: bool
    limits: list[tuple[int, list[int]]]  # of each limit: its wait, its numbers
    bookings: list[bytes | str]  # of each limit that was booked: its stored value before and after


class SharedState:
    """A limit, or several (`AllOf`), decided together in one store.

    `keys` of the limiter provides the clock and the waiters of this process; its states stay empty.
    """

    __slots__ = ("clock", "keys", "limits", "local", "name", "refusals", "script", "store")

    def __init__(
        self, store: ScriptStore, limits: tuple[StoredLimit, ...], name: str, keys: KeyStates[Any]
    ) -> None:
        self.store = store
        self.limits = limits
        self.name = name
        self.keys = keys
        self.clock = keys.clock
        self.script: LuaScript = store.decision_script(frozenset(limit.protocol.kind for limit in limits))
        self.refusals = RefusalCache(self.clock, store.remember_ns)
        for limit in limits:
            limit.refusal_caches.append(self.refusals)
        self.local: Any = None  # limiter of this process's share, for on_error="local"

    def call(
        self, op: str, key: Key, cost: int, max_wait_us: int = -1, bookings: tuple[str | bytes, ...] = ()
    ) -> ScriptCall:
        """Returns a call of the script for one key."""
        tag = hash_tag(key)
        if len(self.limits) == 1:
            limit = self.limits[0]
            arguments = (op, cost, max_wait_us, *limit.arguments(cost), *bookings)
            return ScriptCall(self.script, (limit.key(tag),), arguments)
        keys = tuple(limit.key(tag) for limit in self.limits)
        encoded = itertools.chain.from_iterable(limit.arguments(cost) for limit in self.limits)
        return ScriptCall(self.script, keys, (op, cost, max_wait_us, *encoded, *bookings))

    def decode(self, raw: list[Any]) -> ScriptReply:
        """Returns the script's result as a value."""
        now_us, wait_us, spent = raw[:3]
        start, limits = 3, []
        for limit in self.limits:
            end = start + 1 + limit.protocol.size
            limits.append((raw[start], raw[start + 1 : end]))
            start = end
        return ScriptReply(now_us, wait_us, bool(spent), limits, raw[start:])

    def forget(self, key: Key) -> None:
        """Drops the refusals of `key`, here and in limiters that share its limits (AllOf and parts)."""
        for limit in self.limits:
            limit.forget(key)

    def can_never_pass(self, cost: int) -> bool:
        """Whether `cost` is above what can ever pass."""
        return any(limit.can_never_pass(cost) for limit in self.limits)

    def decision(self, reply: ScriptReply, cost: int = 0) -> Decision:
        """Returns the decision of all limits together, as of the moment at which the script ran.

        For a `cost` that can never pass the script was called with a cost of 0.
        """
        decisions = [
            limit.decision(numbers, reply.now_us, None if cost and limit.can_never_pass(cost) else wait_us)
            for limit, (wait_us, numbers) in zip(self.limits, reply.limits, strict=True)
        ]
        return decisions[0] if len(decisions) == 1 else combined(decisions, self.name)

    def booked_decision(self, reply: ScriptReply) -> Decision:
        """Returns the decision about a booking, as of the moment that was booked."""
        limits = [(0, numbers) for _, numbers in reply.limits]
        return self.decision(reply._replace(now_us=reply.now_us + reply.wait_us, limits=limits))

    def fallback_decision(self) -> Decision:
        """Returns the decision while the store fails, without a local limiter."""
        limit = min(limit.rule.decision_limit for limit in self.limits)
        if self.store.on_error == "allow":
            return Decision(True, limit=limit)
        return self.store.unavailable(self.name, limit)

    def fallback_reservation(self) -> Reservation:
        """Returns the reservation while the store fails, without a local limiter."""
        decision = self.fallback_decision()
        return Reservation(decision, decision.retry_after, self.clock())
