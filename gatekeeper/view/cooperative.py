"""Work that is long but not urgent, done in pieces, so that no request waits for it.

A thread that computes keeps the interpreter for 5 ms at a time when others want it. A poller that takes
over a hundred thousand locks gives it away long before. The price: where requests keep the interpreter
busy without a break, each piece waits 5 ms for its turn, and what takes 40 ms otherwise takes half a second.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

WORK_NS = 400_000  # of work, then a pause; by the thread's own time, because waiting is no work
PAUSE_S = 0.0001  # sleep(0) would take the interpreter back before anybody else is awake
BATCH_SIZE = 250  # items that are kept together; the collector takes 0.1 ms for so many
ITEMS_PER_CLOCK_READ = 8  # items, between two looks at the clock, which costs as much as one


class CooperativeYield:
    """Pauses each time a piece of work is done. Short work never pauses."""

    __slots__ = ("_until_ns",)

    def __init__(self) -> None:
        self._until_ns = time.thread_time_ns() + WORK_NS

    def take(self, *, at_once: bool = False) -> None:
        """Let others run, if it is time."""
        if at_once or time.thread_time_ns() >= self._until_ns:
            pause()
            self._until_ns = time.thread_time_ns() + WORK_NS


def pause() -> None:
    """Let others run."""
    time.sleep(PAUSE_S)


def with_pauses(items: Iterable[T]) -> Iterator[T]:
    """The items, with pauses between them while they are worked on."""
    breath = CooperativeYield()
    for number, item in enumerate(items, 1):
        yield item
        if not number % ITEMS_PER_CLOCK_READ:
            breath.take()


def in_batches(items: Iterable[T]) -> Iterator[tuple[T, ...]]:
    """The items, so many at a time, each part looked through by the collector before the next.

    It runs by itself when there are 700 more objects than before. Where as many are made as are forgotten
    that is never; and then it looks through 100,000 at once, for 18 ms.
    """
    items = iter(items)
    while part := tuple(islice(items, BATCH_SIZE)):
        yield part
        if len(part) == BATCH_SIZE and gc.isenabled():
            gc.collect(0)


def drain(items: list[T]) -> Iterator[T]:
    """The items in their order, each forgotten as it goes: to forget 100,000 at once takes 10 ms."""
    items.reverse()
    while items:
        yield items.pop()
