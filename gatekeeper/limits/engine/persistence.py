"""States that outlive a change of the limit, or a restart of the process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from gatekeeper.limits.engine.key_states import KeyStates
from gatekeeper.limits.engine.protocol import Key, Period, Rule, SavedState
from gatekeeper.limits.engine.units import SECOND_NS, to_ns, whole_number

FORMAT = 1


def changed_rule(rule: Any, limit: int | None, period: Period | None, burst: int | None) -> Any:
    """Returns `rule` with other numbers; None keeps one. Raises ValueError."""
    if limit is not None:
        whole_number(limit, "limit")
    return rule.with_limits(limit, None if period is None else to_ns(period), burst)


def convert_states(keys: KeyStates[Any], old: Rule[Any], new: Rule[Any]) -> None:
    """Converts all states from one rule to another; the caller holds the mutex."""
    now_ns = keys.clock()
    if now_ns >= keys.rotate_ns:
        keys.rotate(now_ns)
    for generation in (keys.young, keys.old):
        for key, state in list(generation.items()):
            converted = new.convert(old, state, now_ns)
            if converted is None:
                del generation[key]
            else:
                generation[key] = converted
    _retain_all(keys, new, now_ns)


def dump_states(keys: KeyStates[Any], rule: Rule[Any], kind: str, wall_ns: Callable[[], int]) -> SavedState:
    """Returns all states, as json.dumps accepts them; the caller holds the mutex."""
    numbers: Any = rule
    return {
        "format": FORMAT,
        "limiter": kind,
        "rule": {
            field.name: getattr(rule, field.name) for field in dataclasses.fields(numbers) if field.init
        },
        "wall_ns": wall_ns(),
        "clock_ns": keys.clock(),
        "keys": [[key, rule.pack(state)] for key, state in (keys.old | keys.young).items()],
    }


def require_saved_by(kind: str, saved: SavedState) -> None:
    """Raises ValueError unless `saved` is of this class of limiters, in this format."""
    if saved.get("format") != FORMAT or saved.get("limiter") != kind:
        raise ValueError(f"saved: expected {kind} in format {FORMAT}, got {saved!r:.80}")


def clock_shift_ns(saved: SavedState, now_ns: int, wall_ns: int) -> int:
    """Returns how far a limiter's clock is ahead of the one that `saved` was saved by; 0 for the same clock.

    The wall clock says how much time passed since; if it was set back, none.
    """
    passed_ns = max(0, wall_ns - saved["wall_ns"])
    shift_ns: int = now_ns - passed_ns - saved["clock_ns"]
    if abs(shift_ns) < SECOND_NS and now_ns >= saved["clock_ns"]:
        return 0  # both clocks are read a moment apart
    return shift_ns


def load_states(
    keys: KeyStates[Any],
    rule: Rule[Any],
    saved: SavedState,
    saved_under: Rule[Any],
    shift_ns: int,
) -> None:
    """Replaces all states by those of the rule `saved_under`, under `rule`; the caller holds the mutex.

    This limiter's clock is `shift_ns` ahead of the one that they were saved by.
    """
    now_ns = keys.clock()
    keys.young, keys.old = {}, {}
    for name, numbers in saved["keys"]:
        state = rule.convert(saved_under, saved_under.unpack(numbers, shift_ns), now_ns)
        if state is not None:
            keys.young[restore_key(name)] = state
    _retain_all(keys, rule, now_ns)


def _retain_all(keys: KeyStates[Any], rule: Rule[Any], now_ns: int) -> None:
    """Keeps all states for as long as the furthest reservation in them lies ahead under `rule`."""
    keys.young, keys.old = keys.old | keys.young, {}
    keys.set_retention(rule.forget_after_ns, now_ns)
    ahead_ns = max((rule.status(state, now_ns)[1] for state in keys.young.values()), default=0)
    keys.keep_for_booking(ahead_ns)


def restore_key(name: Any) -> Key:
    """Returns a key as it was before it became JSON, which has lists for tuples."""
    return tuple(name) if isinstance(name, list) else name
