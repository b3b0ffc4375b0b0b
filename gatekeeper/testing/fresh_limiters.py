"""Limiters that count anew, by a clock moved by hand, for as long as a test wants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

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
            start_over = getattr(limiter, "start_over", None)
            if start_over is None:
                raise TypeError(f"expected a limiter of a rate in this process, got {limiter!r:.80}")
            undo.callback(start_over(given))
        yield given
