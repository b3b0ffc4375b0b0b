"""Limiters that start afresh, with a clock moved by hand, for the duration of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from gatekeeper.testing.manual_clock import ManualClock

__all__ = ["fresh"]


@contextmanager
def fresh(*limiters: Any, clock: ManualClock | None = None) -> Iterator[ManualClock]:
    """Has limiters start afresh inside a `with` statement; yields the clock that they use meanwhile.

    For a limiter that is a global variable, which all tests share. Afterwards its state is as before.

    Args:
        *limiters: Limiters of a rate in this process, and the composites AllOf, ByPlan and Sharded.
        clock: The clock to use; by default a new one.

    Raises:
        TypeError: A limiter has no keys in this process: Concurrency, a scheduler, or one with a store.

    Example:
        >>> from gatekeeper import SlidingLog
        >>> burst = SlidingLog(limit=1, period=60)
        >>> with fresh(burst) as clock:
        ...     first = burst.allow("user:ann"), burst.allow("user:ann")
        ...     clock.advance(60)
        ...     first, burst.allow("user:ann")
        ((True, False), True)
    """
    manual_clock = ManualClock() if clock is None else clock
    with ExitStack() as undo:
        for limiter in limiters:
            start_over = getattr(limiter, "start_over", None)
            if start_over is None:
                raise TypeError(f"expected a limiter of a rate in this process, got {limiter!r:.80}")
            undo.callback(start_over(manual_clock))
        yield manual_clock
