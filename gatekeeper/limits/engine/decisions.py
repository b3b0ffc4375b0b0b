"""What every limiter does alike, written once: functions that a limiter lends from here.

A limiter is its keys and its rule; these are its methods, by assignment in the body of its class.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple, Protocol

from gatekeeper.limits.engine.key_states import KeyStates
from gatekeeper.limits.engine.protocol import AdmittingRule, Key, KeyStatus, Rule
from gatekeeper.limits.engine.units import to_seconds, whole_number
from gatekeeper.model import Decision


class RuleLimiter(Protocol):
    """A limiter that is made of keys and a rule."""

    @property
    def _keys(self) -> KeyStates[Any]: ...
    @property
    def _rule(self) -> Rule[Any]: ...
    @property
    def _name(self) -> str: ...


class AdmittingLimiter(Protocol):
    """One whose rule admits at once."""

    @property
    def _keys(self) -> KeyStates[Any]: ...
    @property
    def _rule(self) -> AdmittingRule[Any]: ...


def allow(self: AdmittingLimiter, key: Key = "", cost: int = 1) -> bool:
    """Whether `cost` requests of `key` may pass now; they are counted when they may.

    `check(key, cost).allowed`. Raises ValueError for a negative cost.
    """
    if cost != 1:
        whole_number(cost, "cost", least=0)
    keys, rule = self._keys, self._rule
    mutex = keys.mutex
    try:
        if not mutex.acquire(False):
            keys.acquire_mutex()
        now_ns = keys.clock()
        if now_ns >= keys.rotate_ns:
            keys.rotate(now_ns)
        young = keys.young
        state = young.get(key)
        if state is None:  # a newcomer, or of the old generation
            slot = keys.take_slot(key)
            if slot is None:
                return keys.overflow == "allow"
            key, state = slot, young.get(slot)
        if not cost:
            return rule.wait_ns(state, now_ns, 0) == 0
        after = rule.admit(state, now_ns, cost)
        if after is None:
            return False
        young[key] = after
        return True
    finally:
        mutex.release()


def check(self: RuleLimiter, key: Key = "", cost: int = 1) -> Decision:
    """Whether `cost` requests of `key` may pass now; they are counted when they may.

    With limit, remaining, retry_after and reset_after, all of the same moment: what remains after
    this request. A refusal and a cost of 0 change nothing; `retry_after` is None when `cost` is
    above what can ever pass. Raises ValueError for a negative cost.
    """
    whole_number(cost, "cost", least=0)
    keys = self._keys
    mutex = keys.mutex
    try:
        if not mutex.acquire(False):
            keys.acquire_mutex()
        now_ns = keys.clock()
        if now_ns >= keys.rotate_ns:
            keys.rotate(now_ns)
        slot = key if key in keys.young else keys.take_slot(key)
        if slot is None:
            return no_room(self)
        state = keys.young.get(slot)
        wait_ns = self._rule.wait_ns(state, now_ns, cost)
        if wait_ns == 0 and cost:
            state = self._rule.spend(state, now_ns, cost)
            keys.young[slot] = state
        rule = self._rule
        status = rule.status(state, now_ns)
    finally:
        mutex.release()
    return to_decision(rule, self._name, status, wait_ns)  # outside: it takes as long as the rest


def peek(self: RuleLimiter, key: Key = "", cost: int = 1) -> Decision:
    """What `check` would decide now, with what remains before it; nothing is counted."""
    whole_number(cost, "cost", least=0)
    keys = self._keys
    mutex = keys.mutex
    try:
        if not mutex.acquire(False):
            keys.acquire_mutex()
        now_ns = keys.clock()
        if now_ns >= keys.rotate_ns:
            keys.rotate(now_ns)
        slot = keys.find_slot(key)
        if slot is None:
            return no_room(self)
        state, rule = keys.get(slot), self._rule
        wait_ns = rule.wait_ns(state, now_ns, cost)
        status = rule.status(state, now_ns)
    finally:
        mutex.release()
    return to_decision(rule, self._name, status, wait_ns)


def refund(self: RuleLimiter, key: Key = "", cost: int = 1) -> None:
    """Give `cost` permits of `key` back, at most what is counted. Raises ValueError below 0."""
    whole_number(cost, "cost", least=0)
    keys = self._keys
    mutex = keys.mutex
    try:
        if not mutex.acquire(False):
            keys.acquire_mutex()
        now_ns = keys.clock()
        if now_ns >= keys.rotate_ns:
            keys.rotate(now_ns)
        slot = keys.find_slot(key)
        state = None if slot is None else keys.get(slot)
        if slot is not None and state is not None and cost:
            keys.old.pop(slot, None)
            keys.put(slot, self._rule.give_back(state, now_ns, cost))
    finally:
        mutex.release()


def reset(self: RuleLimiter, key: Key = "") -> None:
    """Forget `key`: its next request is its first."""
    keys = self._keys
    mutex = keys.mutex
    try:
        if not mutex.acquire(False):
            keys.acquire_mutex()
        keys.drop(key)
    finally:
        mutex.release()


def decision(self: RuleLimiter, state: object, now_ns: int, wait_ns: int | None) -> Decision:
    """The answer in words; the caller holds the mutex."""
    return to_decision(self._rule, self._name, self._rule.status(state, now_ns), wait_ns)


def to_decision(rule: Rule[Any], name: str, status: KeyStatus, wait_ns: int | None) -> Decision:
    """The answer; `rule` and `status` are of the same moment."""
    remaining, reset_ns = status
    if wait_ns == 0:
        return Decision(True, "", "", "", rule.limit, remaining, 0.0, to_seconds(reset_ns))
    retry_after = None if wait_ns is None else to_seconds(wait_ns)
    return Decision(
        False, name, "limited", rule.description, rule.limit, remaining, retry_after, to_seconds(reset_ns)
    )


def combined(answers: Sequence[Decision], name: str) -> Decision:
    """The one answer of several limits, which `name` names where they have no names of their own.

    A refusal is that of the limit with the longest wait, and `also` names the others that refuse; when all
    pass, the limit and what remains are of the one that is nearest to its end.
    """
    refusals = [answer for answer in answers if not answer.allowed]
    if refusals:
        worst = max(refusals, key=lambda each: inf if each.retry_after is None else each.retry_after)
        also = tuple(each.policy for each in refusals if each is not worst and each.policy)
        return worst._replace(policy=worst.policy or name, also=also)
    nearest = min(answers, key=lambda each: inf if each.remaining is None else each.remaining)
    resets = [each.reset_after for each in answers if each.reset_after is not None]
    return nearest._replace(reset_after=max(resets, default=None))


def no_room(self: RuleLimiter) -> Decision:
    """The answer for a key that found no room and shares no state."""
    keys = self._keys
    if keys.overflow == "allow":
        return Decision(True, limit=self._rule.limit)
    return Decision(
        False,
        policy=self._name,
        reason="limited",
        detail=f"no room for another key: {keys.max_keys} are live",
        limit=self._rule.limit,
        retry_after=to_seconds(keys.forget_after_ns),
    )


class KeySnapshot(NamedTuple):
    """What a limiter sees of one key at one moment."""

    limiter: RuleLimiter
    slot: Key | None  # None: no room for it
    state: Any
    now_ns: int
    wait_ns: int | None

    def decision(self) -> Decision:
        """The answer of this limiter alone."""
        if self.slot is None:
            return no_room(self.limiter)
        return decision(self.limiter, self.state, self.now_ns, self.wait_ns)


def look(self: RuleLimiter, key: Key, cost: int, spending: bool) -> KeySnapshot:
    """What `check` would see, or `peek` when not `spending`; the caller holds the mutex."""
    keys = self._keys
    now_ns = keys.clock()
    if now_ns >= keys.rotate_ns:
        keys.rotate(now_ns)
    if not spending:
        slot = keys.find_slot(key)
    else:
        slot = key if key in keys.young else keys.take_slot(key)
    if slot is None:
        return KeySnapshot(self, None, None, now_ns, 0 if keys.overflow == "allow" else keys.forget_after_ns)
    state = keys.get(slot)
    return KeySnapshot(self, slot, state, now_ns, self._rule.wait_ns(state, now_ns, cost))
