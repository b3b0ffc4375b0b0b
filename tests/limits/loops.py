"""An asyncio loop whose time is a clock moved by hand: who sleeps moves it, nobody waits."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any

from tests.limits.oracles import HandClock


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, clock: HandClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout:
            self._clock.now_ns += -int(-timeout * 1e9 // 1)
            timeout = 0
        return super().select(timeout)


class HandLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: HandClock) -> None:
        super().__init__(_JumpingSelector(clock))
        self._clock = clock

    def time(self) -> float:
        return self._clock.now_ns / 1e9


def run(clock: HandClock, main: Coroutine[Any, Any, Any]) -> Any:
    """What `main` returns; all of its sleeping is done at once."""
    with asyncio.Runner(loop_factory=lambda: HandLoop(clock)) as runner:
        return runner.run(main)
