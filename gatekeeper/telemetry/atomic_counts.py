"""Counts that many threads add to and one thread reads."""

from __future__ import annotations

import itertools


class AtomicCounts:
    """A counter without a mutex: adding is one call into C, which is atomic under the GIL."""

    __slots__ = ("_count", "_reads", "add")

    def __init__(self) -> None:
        self._count = itertools.count()
        self._reads = 0
        self.add = self._count.__next__

    def read(self) -> int:
        """Returns how often `add` was called. For one reading thread."""
        # itertools.count can only be read by advancing it.
        self._reads += 1
        return next(self._count) - self._reads + 1
