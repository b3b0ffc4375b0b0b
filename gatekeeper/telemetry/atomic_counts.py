"""Counts that many threads add to, and one reads."""

from __future__ import annotations

import itertools


class AtomicCounts:
    """Counts without a mutex: adding is one call into C, which no other thread can divide."""

    __slots__ = ("_count", "_reads", "add")

    def __init__(self) -> None:
        self._count = itertools.count()
        self._reads = 0
        self.add = self._count.__next__

    def read(self) -> int:
        """How often `add` was called. For one reader."""
        # To look at the count is to move it on.
        self._reads += 1
        return next(self._count) - self._reads + 1
