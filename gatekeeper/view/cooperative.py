"""Cooperative yields: long work in the background that gives up the GIL often, so that requests do not wait.

A thread that computes keeps the GIL for 5 ms at a time while others want it (`sys.getswitchinterval`). The
poller may apply 100,000 locks at once; it sleeps for a moment after each 0.4 ms of work instead. The cost:
where requests keep the interpreter busy without a break, each pause lasts 5 ms, so that 40 ms of work take
half a second.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

WORK_NS = 400_000  # between two pauses; CPU time of this thread, because waiting is not work
PAUSE_S = 0.0001  # sleep(0) would take the GIL back before another thread is awake
BATCH_SIZE = 250  # items in one tuple; the garbage collector needs 0.1 ms for them
ITEMS_PER_CLOCK_READ = 8  # reading the clock costs as much as the work on one item


class CooperativeYield:
    """Pauses whenever the time for one piece of work is used up. Short work never pauses."""

    __slots__ = ("_until_ns",)

    def __init__(self) -> None:
        self._until_ns = time.thread_time_ns() + WORK_NS

    def pause_if_due(self, *, now: bool = False) -> None:
        """Lets other threads run if this one has worked long enough, or in any case with `now`."""
        if now or time.thread_time_ns() >= self._until_ns:
            pause()
            self._until_ns = time.thread_time_ns() + WORK_NS


def pause() -> None:
    """Lets other threads run."""
    time.sleep(PAUSE_S)


def with_pauses(items: Iterable[T]) -> Iterator[T]:
    """Yields the items and pauses between them while the consumer works on them."""
    cooperative_yield = CooperativeYield()
    for number, item in enumerate(items, 1):
        yield item
        if not number % ITEMS_PER_CLOCK_READ:
            cooperative_yield.pause_if_due()


def in_batches(items: Iterable[T]) -> Iterator[tuple[T, ...]]:
    """Yields the items in tuples of BATCH_SIZE and runs a young collection after each full one.

    The collector starts by itself only when there are 700 more container objects than before. Where as many
    are freed as are made, that never happens until it meets 100,000 of them at once, which takes 18 ms.
    """
    items = iter(items)
    while batch := tuple(islice(items, BATCH_SIZE)):
        yield batch
        if len(batch) == BATCH_SIZE and gc.isenabled():
            gc.collect(0)


def drain(items: list[T]) -> Iterator[T]:
    """Yields the items in their order and frees each one at once: to free 100,000 together takes 10 ms."""
    items.reverse()
    while items:
        yield items.pop()
