"""Rejected records in a row: when they are too many, the mapping is wrong rather than the records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analyzer.core.model import RejectReason


@dataclass(slots=True)
class RejectRun:
    """How many records of a partition were rejected since the last one that was counted.

    A tombstone says nothing about the mapping: it neither counts nor ends a run. Nor do records before
    `rejects_accepted_to`, which an operator has accepted. `first` is the offset at which the part of the run
    that is not drained yet begins, `drained` the run's length before it.
    """

    most: int
    length: int = 0
    rejects_accepted_to: int = 0
    first: int | None = None
    drained: int = 0

    def follow(self, offsets: Sequence[int], refused: Mapping[int, RejectReason]) -> int | None:
        """Go on over the records at `offsets`, of which those in `refused` (by place) were rejected; the
        place of the one that makes too many, None when none does."""
        expected = 0
        for place in sorted(refused):
            if place > expected:
                self.end()
            expected = place + 1
            if refused[place] == "tombstone" or offsets[place] < self.rejects_accepted_to:
                continue
            if self.first is None:
                self.first, self.drained = offsets[place], self.length
            self.length += 1
            if self.length >= self.most:
                return place
        if expected < len(offsets):
            self.end()
        return None

    def end(self) -> None:
        """A record was counted."""
        self.length, self.first = 0, None

    def go_back(self) -> None:
        """To before `first`."""
        self.length, self.first = self.drained, None
