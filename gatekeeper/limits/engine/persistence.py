"""Limits that change while they are in force, and limits that survive a restart."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any, Protocol

from gatekeeper.limits.engine.key_states import KeyStates
from gatekeeper.limits.engine.protocol import Key, Period, Rule, SavedState
from gatekeeper.limits.engine.units import SECOND_NS, to_ns, whole_number

FORMAT = 1


class PersistentLimiter(Protocol):
    """A limiter whose rule may be replaced."""

    _rule: Any

    @property
    def _keys(self) -> KeyStates[Any]: ...


def configure(
    self: PersistentLimiter, limit: int | None = None, period: Period | None = None, burst: int | None = None
) -> None:
    """Another limit from now on, with the history kept: what was used stays used.

    None leaves a number as it is. All keys are converted at once, one to three microseconds each, while
    decisions wait. Raises ValueError.
    """
    if limit is not None:
        whole_number(limit, "limit")
    rule: Rule[Any] = self._rule.with_limits(limit, None if period is None else to_ns(period), burst)
    keys = self._keys

    def change() -> None:
        old, now_ns = self._rule, keys.clock()
        if now_ns >= keys.rotate_ns:
            keys.rotate(now_ns)
        for generation in (keys.young, keys.old):
            for key, state in list(generation.items()):
                adopted = rule.convert(old, state, now_ns)
                if adopted is None:
                    del generation[key]
                else:
                    generation[key] = adopted
        self._rule = rule
        keys.set_retention(rule.forget_after_ns, now_ns)

    keys.exclusively(change)


def dump(self: PersistentLimiter, wall_ns: Callable[[], int] = time.time_ns) -> SavedState:
    """All that is counted, as json.dumps takes it; `load` counts on from there."""
    keys, rule = self._keys, self._rule

    def save() -> SavedState:
        states = keys.old | keys.young
        return {
            "format": FORMAT,
            "limiter": type(self).__name__,
            "rule": {f.name: getattr(rule, f.name) for f in dataclasses.fields(rule) if f.init},
            "wall_ns": wall_ns(),
            "clock_ns": keys.clock(),
            "keys": [[key, self._rule.pack(state)] for key, state in states.items()],
        }

    return keys.exclusively(save)


def load(self: PersistentLimiter, saved: SavedState, wall_ns: Callable[[], int] = time.time_ns) -> None:
    """Count on from what `dump` saved, under the limit that this limiter has.

    The time in between counts. Where the clock is another one since, as after a reboot, the wall
    clock tells how much time passed. Raises ValueError for what another class or version saved.
    """
    if saved.get("format") != FORMAT or saved.get("limiter") != type(self).__name__:
        raise ValueError(f"saved: expected {type(self).__name__} in format {FORMAT}, got {saved!r:.80}")
    old: Rule[Any] = type(self._rule)(**saved["rule"])
    keys = self._keys

    def restore() -> None:
        now_ns = keys.clock()
        passed_ns = max(0, wall_ns() - saved["wall_ns"])
        shift_ns = now_ns - passed_ns - saved["clock_ns"]
        if abs(shift_ns) < SECOND_NS and now_ns >= saved["clock_ns"]:
            shift_ns = 0  # the same clock, read a moment apart
        keys.young, keys.old = {}, {}
        for name, numbers in saved["keys"]:
            state = self._rule.convert(old, old.unpack(numbers, shift_ns), now_ns)
            if state is not None:
                keys.young[_key(name)] = state
        # A reservation may lie ahead; what was saved is kept for as long as the furthest.
        keys.set_retention(self._rule.forget_after_ns, now_ns)
        ahead_ns = max((self._rule.status(s, now_ns).reset_ns for s in keys.young.values()), default=0)
        keys.keep_for_booking(ahead_ns)

    keys.exclusively(restore)


def _key(name: Any) -> Key:
    return tuple(name) if isinstance(name, list) else name
