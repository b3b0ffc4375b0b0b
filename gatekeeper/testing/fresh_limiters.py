"""Limiters that count anew, by a clock moved by hand, for as long as a test wants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from gatekeeper.limits.composites.all_of import AllOf
from gatekeeper.limits.composites.by_plan import ByPlan
from gatekeeper.limits.composites.sharded import Sharded
from gatekeeper.limits.engine.key_states import KeyStates
from gatekeeper.testing.manual_clock import ManualClock


@contextmanager
def fresh(*limiters: Any, clock: ManualClock | None = None) -> Iterator[ManualClock]:
    """Inside, these limiters have counted nothing yet and go by the clock that comes back; afterwards
    they go on where they were. For the limiter at the top of a module, which all tests share.

    Takes what is made of others, too: AllOf, ByPlan, Sharded. Raises TypeError for what has no keys in
    this process, as Concurrency, a scheduler, or a limiter with a store.
    """
    given = ManualClock() if clock is None else clock
    with ExitStack() as undo:
        for limiter in limiters:
            _renew(limiter, given, undo)
        yield given


def _renew(limiter: Any, clock: ManualClock, undo: ExitStack) -> None:
    if isinstance(limiter, ByPlan | Sharded):
        for part in limiter._limiters.values() if isinstance(limiter, ByPlan) else limiter._shards:
            _renew(part, clock, undo)
        return
    before = getattr(limiter, "_keys", None)
    if not isinstance(before, KeyStates) or getattr(limiter, "_sharing", None) is not None:
        raise TypeError(f"expected a limiter of a rate in this process, got {limiter!r:.80}")
    after: KeyStates[Any] = KeyStates(before.forget_after_ns, before.max_keys, before.overflow, clock)
    after.max_waiters = before.max_waiters
    undo.callback(setattr, limiter, "_keys", before)
    limiter._keys = after
    if isinstance(limiter, AllOf):
        for part in limiter._parts:
            _renew(part, clock, undo)
        undo.callback(setattr, limiter, "_ordered", limiter._ordered)
        limiter._ordered = sorted((part._keys for part in limiter._parts), key=id)
