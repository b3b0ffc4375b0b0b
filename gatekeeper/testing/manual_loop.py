"""An asyncio event loop whose time is a clock that a test moves by hand."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from math import ceil
from typing import Any, TypeVar

from gatekeeper.testing.manual_clock import ManualClock

__all__ = ["run"]

R = TypeVar("R")
SECOND_NS = 1_000_000_000


def run(main: Coroutine[Any, Any, R], clock: ManualClock) -> R:
    """Runs a coroutine as `asyncio.run` does, in time that passes without waiting; returns its result.

    Whenever all tasks sleep, `clock` moves to the moment when the first of them wakes. For limiters with the
    same clock; not for sockets.

    Args:
        main: The coroutine.
        clock: The clock of the loop.

    Example:
        >>> clock = ManualClock()
        >>> run(asyncio.sleep(3600, "an hour later"), clock), clock.uptime_s()
        ('an hour later', 3600.0)
    """
    with asyncio.Runner(loop_factory=lambda: ManualLoop(clock)) as runner:
        return runner.run(main)


class ManualLoop(asyncio.SelectorEventLoop):
    """An event loop that moves a clock instead of sleeping."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(AdvancingSelector(clock))
        self._manual_clock = clock

    def time(self) -> float:
        return self._manual_clock.uptime_s()


class AdvancingSelector(selectors.DefaultSelector):
    """A selector that moves a clock by the time-out and returns at once."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout:
            # Rounded up to a whole nanosecond: a timer a fraction later would never fall due.
            self._clock.advance(ceil(timeout * SECOND_NS) / SECOND_NS)
            timeout = 0
        return super().select(timeout)
