"""Runs of rejected records: when too many fail in a row, the mapping is wrong rather than the records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analyzer.core.model import RejectReason

SAY_NOTHING: tuple[RejectReason, ...] = ("tombstone", "too-large")


@dataclass(slots=True)
class RejectRun:
    """The number of records of a partition that were rejected since the last one that was counted.

    A tombstone says nothing about the mapping, nor does a value that is too large: they neither count nor end
    a run. Nor do records before `accepted_to`, which an operator has accepted.
    """

    too_long_at: int
    length: int = 0
    accepted_to: int = 0
    first: int | None = None  # offset at which the part of the run begins that is not drained yet
    drained: int = 0  # length of the run before `first`

    def extend(self, offsets: Sequence[int], reasons: Mapping[int, RejectReason]) -> int | None:
        """Continues over the records at `offsets`; `reasons` has the rejected ones, by index.

        Returns the index of the record that makes the run too long; None when none does.
        """
        expected = 0
        for index in sorted(reasons):
            if index > expected:
                self.end()
            expected = index + 1
            if reasons[index] in SAY_NOTHING or offsets[index] < self.accepted_to:
                continue
            if self.first is None:
                self.first, self.drained = offsets[index], self.length
            self.length += 1
            if self.length >= self.too_long_at:
                return index
        if expected < len(offsets):
            self.end()
        return None

    def end(self) -> None:
        """A record was counted."""
        self.length, self.first = 0, None

    def rewind(self) -> None:
        """Returns to the state before `first`."""
        self.length, self.first = self.drained, None
