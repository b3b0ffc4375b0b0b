"""A limit in a store: the names of its keys, the arguments of its script, and its decisions."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from gatekeeper.limits.engine.protocol import Key, Rule
from gatekeeper.limits.engine.units import MICROSECOND_NS, require_key, to_seconds
from gatekeeper.limits.redis.negative_cache import RefusalCache
from gatekeeper.limits.redis.script_protocol import choose_script
from gatekeeper.model import Decision


def hash_tag(key: Key) -> bytes:
    """Returns `key` as a hash tag of Redis Cluster, in braces, so that all about one key is in one slot.

    Text and tuples never result in the same tag. Raises TypeError for another type.
    """
    require_key(key)
    if isinstance(key, str):
        return b"{=" + key.encode("utf-8", "surrogatepass") + b"}"
    return b"{" + json.dumps(key, separators=(",", ":")).encode() + b"}"


def key_prefix(prefix: str, kind: str, name: str) -> bytes:
    """Returns the part of a key's name before its hash tag. It contains no brace."""
    return f"{prefix}:{kind}:{quote(name, safe='/')}:".encode()


class StoredLimit:
    """A limit in a store: its rule, its name, and its encoding for the script.

    Two limits of one kind and name are one limit; without a name, those with equal numbers are. Raises
    ValueError for numbers that a script cannot hold.
    """

    __slots__ = ("_key_prefix", "_unit_arguments", "name", "protocol", "refusal_caches", "rule")

    def __init__(self, kind: str, rule: Any, name: str, prefix: str) -> None:
        self.name = name
        self.refusal_caches: list[RefusalCache] = []  # of all limiters in this process that it is part of
        self.change(rule)
        numbers = (getattr(rule, field.name) for field in dataclasses.fields(rule) if field.init)
        self._key_prefix = key_prefix(prefix, kind, name or "/".join(map(str, numbers)))

    def change(self, rule: Rule[Any]) -> None:
        """Applies another rule to the same keys."""
        self.protocol = choose_script(rule)
        self._unit_arguments = self._encoded(1)
        self.rule = rule  # in nanoseconds, for descriptions
        for refusals in self.refusal_caches:
            refusals.clear()

    def forget(self, key: Key) -> None:
        """Drops the cached refusals of `key`, because permits were given back."""
        for refusals in self.refusal_caches:
            refusals.forget(key)

    def arguments(self, cost: int) -> tuple[bytes, ...]:
        """Returns the arguments of the script for this limit, its kind first."""
        return self._unit_arguments if cost == 1 else self._encoded(cost)

    def _encoded(self, cost: int) -> tuple[bytes, ...]:
        protocol = self.protocol
        return tuple(str(word).encode() for word in (protocol.kind, *protocol.arguments(cost)))

    def key(self, tag: bytes) -> bytes:
        """Returns the name of the Redis key that holds the state of one key."""
        return self._key_prefix + tag

    def can_never_pass(self, cost: int) -> bool:
        """Whether `cost` is above what can ever pass."""
        return self.rule.wait_ns(None, 0, cost) is None

    def decision(self, numbers: Sequence[int], now_us: int, wait_us: int | None) -> Decision:
        """Returns the decision from the script's numbers; a wait of None never ends."""
        limit = self.rule.decision_limit
        remaining, reset_us = self.protocol.status(numbers, now_us)
        reset_after = to_seconds(reset_us * MICROSECOND_NS)
        if wait_us == 0:
            return Decision(True, "", "", "", limit, remaining, 0.0, reset_after)
        retry_after = None if wait_us is None else to_seconds(wait_us * MICROSECOND_NS)
        detail = self.rule.description
        return Decision(False, self.name, "limited", detail, limit, remaining, retry_after, reset_after)
