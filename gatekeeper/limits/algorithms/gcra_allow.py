"""`allow` for the limiters whose rule is a GcraRule, written out for speed: one function, lent to each."""

from __future__ import annotations

from typing import Protocol

from gatekeeper.limits.algorithms.gcra import GcraRule
from gatekeeper.limits.engine.key_states import KeyStates
from gatekeeper.limits.engine.protocol import Key
from gatekeeper.model import Decision


class GcraLimiter(Protocol):
    """A limiter that is made of keys and a bucket's rule."""

    @property
    def _keys(self) -> KeyStates[int]: ...
    @property
    def _rule(self) -> GcraRule: ...
    def check(self, key: Key = "", cost: int = 1) -> Decision: ...


def allow(self: GcraLimiter, key: Key = "", cost: int = 1) -> bool:
    """Whether `cost` requests of `key` may pass now; they are counted when they may.

    `check(key, cost).allowed`, written out for speed. Raises ValueError for a negative cost.
    """
    if cost != 1:
        return self.check(key, cost).allowed
    keys = self._keys
    mutex = keys.mutex
    try:
        if not mutex.acquire(False):
            keys.acquire_mutex()
        clock = keys.clock
        now = now_ns = clock()
        rule = self._rule
        if rule.scale != 1:
            now *= rule.scale
        young = keys.young
        ready = young.get(key)
        if ready is None:
            return _allow_newcomer(self, key, now_ns)
        if ready > now:
            return False
        full = now - rule.slack
        if ready < full:
            ready = full
            if now_ns >= keys.rotate_ns:  # here, because a bucket that was spent is no idle key
                keys.rotate(now_ns)
                keys.drop(key)
                young = keys.young
        young[key] = ready + rule.weight
        return True
    finally:
        mutex.release()


def _allow_newcomer(self: GcraLimiter, key: Key, now_ns: int) -> bool:
    """The same for a key that is not among the young; the caller holds the mutex."""
    keys, rule = self._keys, self._rule
    if now_ns >= keys.rotate_ns:
        keys.rotate(now_ns)
    slot = keys.take_slot(key)
    if slot is None:
        return keys.overflow == "allow"
    state = keys.young.get(slot)
    if rule.wait_ns(state, now_ns, 1) != 0:
        return False
    keys.young[slot] = rule.spend(state, now_ns, 1)
    return True
