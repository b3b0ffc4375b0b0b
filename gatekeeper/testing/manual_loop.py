"""An asyncio loop whose time is a clock moved by hand."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from math import ceil
from typing import Any, TypeVar

from gatekeeper.testing.manual_clock import ManualClock

R = TypeVar("R")
SECOND_NS = 1_000_000_000


def run(main: Coroutine[Any, Any, R], clock: ManualClock) -> R:
    """What `main` returns, run as asyncio.run does; whenever all tasks sleep, `clock` moves to when
    the first of them wakes, so nobody waits. For limiters on the same clock; not for sockets."""
    with asyncio.Runner(loop_factory=lambda: ManualLoop(clock)) as runner:
        return runner.run(main)


class ManualLoop(asyncio.SelectorEventLoop):
    """Sleeps by moving the clock."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(MovingSelector(clock))
        self._clock_moved_by_hand = clock

    def time(self) -> float:
        return self._clock_moved_by_hand.uptime_s()


class MovingSelector(selectors.DefaultSelector):
    """Where a loop would sleep, time passes instead."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout:
            # Up to a whole nanosecond: a timer set a fraction later would be looked at for ever.
            self._clock.advance(ceil(timeout * SECOND_NS) / SECOND_NS)
            timeout = 0
        return super().select(timeout)
