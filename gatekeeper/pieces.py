"""Work that is long but not urgent, done in pieces, so that no request waits for it.

A thread that computes keeps the interpreter for up to 5 ms at a time when others want it. A poller that
applies a hundred thousand locks must give it away long before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

PIECE_NS = 250_000  # of work, then a pause
PAUSE_S = 0.0001  # sleep(0) would take the interpreter back before anybody else is awake
LOOK_EVERY = 8  # items, between two looks at the clock


class Breath:
    """Pauses each time a piece of work is done. Short work never pauses."""

    def __init__(
        self, now_ns: Callable[[], int] = time.perf_counter_ns, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._now_ns = now_ns
        self._sleep = sleep
        self._until_ns = now_ns() + PIECE_NS

    def take(self) -> None:
        """Let others run, if it is time."""
        if self._now_ns() >= self._until_ns:
            self._sleep(PAUSE_S)
            self._until_ns = self._now_ns() + PIECE_NS


def in_pieces(items: Iterable[T]) -> Iterator[T]:
    """The items, with pauses between them while they are worked on."""
    breath = Breath()
    for number, item in enumerate(items):
        if not number % LOOK_EVERY:
            breath.take()
        yield item
