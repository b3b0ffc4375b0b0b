"""One limit in a store: how its keys are called, and its answers in words."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from gatekeeper.limits.engine.protocol import Key, Rule
from gatekeeper.limits.engine.units import MICROSECOND_NS, to_seconds
from gatekeeper.limits.redis.negative_cache import RefusalCache
from gatekeeper.limits.redis.script_protocol import script_protocol_of
from gatekeeper.model import Decision


def hash_tag(key: Key) -> bytes:
    """`key` in braces: a cluster looks at what is within them alone, so that whatever is decided
    about one key is in one slot. Text and tuples never meet."""
    if isinstance(key, str):
        return b"{=" + key.encode("utf-8", "surrogatepass") + b"}"
    return b"{" + json.dumps(key, separators=(",", ":")).encode() + b"}"


def key_prefix(prefix: str, kind: str, name: str) -> bytes:
    """What stands before the tag. No brace is in it, so that the first one is that of the tag."""
    return f"{prefix}:{kind}:{quote(name, safe='/')}:".encode()


class StoredLimit:
    """One limit: its rule, its name, and what the script is told."""

    __slots__ = ("_front", "_one", "name", "remembered", "rule", "speech")

    def __init__(self, kind: str, rule: Any, name: str, prefix: str) -> None:
        """Two limits of one kind and name are one limit; without a name, those of equal numbers are.

        Raises ValueError for what a store cannot hold.
        """
        self.name = name
        self.remembered: list[RefusalCache] = []  # of all limiters of this process that it is a part of
        self.change(rule)
        numbers = (getattr(rule, field.name) for field in dataclasses.fields(rule) if field.init)
        called = name or "/".join(map(str, numbers))
        self._front = key_prefix(prefix, kind, called)

    def change(self, rule: Rule[Any]) -> None:
        """Another rule for the same keys."""
        self.speech = script_protocol_of(rule)
        self._one = self._said(1)
        self.rule = rule  # in nanoseconds, for people
        for refusals in self.remembered:
            refusals.clear()

    def forget(self, key: Key) -> None:
        """Something was given back to `key`, so what is remembered of it holds no more."""
        for refusals in self.remembered:
            refusals.forget(key)

    def words(self, cost: int) -> tuple[bytes, ...]:
        """What the script is told of this limit."""
        return self._one if cost == 1 else self._said(cost)

    def _said(self, cost: int) -> tuple[bytes, ...]:
        return tuple(str(word).encode() for word in (self.speech.kind, *self.speech.words(cost)))

    def key(self, hash_tag: bytes) -> bytes:
        """Where the state of a caller is."""
        return self._front + hash_tag

    def never(self, cost: int) -> bool:
        """Whether `cost` is above what can ever pass."""
        return self.rule.wait_ns(None, 0, cost) is None

    def decision(self, numbers: Sequence[int], now_us: int, wait_us: int | None) -> Decision:
        """The script's answer; a wait of None is one without an end."""
        limit = self.rule.limit
        remaining, reset_us = self.speech.status(numbers, now_us)
        reset_after = to_seconds(reset_us * MICROSECOND_NS)
        if wait_us == 0:
            return Decision(True, "", "", "", limit, remaining, 0.0, reset_after)
        retry_after = None if wait_us is None else to_seconds(wait_us * MICROSECOND_NS)
        description = self.rule.description
        return Decision(False, self.name, "limited", description, limit, remaining, retry_after, reset_after)
