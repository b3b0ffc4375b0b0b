"""Runs of rejected records: of a log of which no record was read yet, the mapping may be wrong."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from analyzer.kernel.model import RejectReason
from analyzer.plan.mapping import SourceMapping

SAY_NOTHING: tuple[RejectReason, ...] = ("tombstone", "too-large")


@dataclass(slots=True)
class RejectRun:
    """The number of records of a partition that were rejected before the first one that the mapping fits.

    Once a record was read that has a field of its caller, the mapping fits this log. What it rejects later is
    the fault of a client or a server: that is kept among the rejected records, and stops nothing.

    A tombstone says nothing about the mapping, nor do a value that is too large, and a record without a field
    of a caller, which counts as unnamed. Nor do records before `accepted_to`, which an operator has accepted.
    """

    too_long_at: int
    fingerprint: int  # of the mapping
    length: int = 0
    accepted_to: int = 0
    fits: bool = False
    first: int | None = None  # offset at which the part of the run begins that is not drained yet
    drained: int = 0  # length of the run before `first`

    @classmethod
    def resumed(cls, mapping: SourceMapping, stored: int, accepted_to: int) -> Self:
        """Returns the run of a partition by what is stored of it; see `stored`."""
        fingerprint = mapping.fingerprint
        fits, length = stored == -fingerprint, max(stored, 0)
        return cls(mapping.rejected_in_row_max, fingerprint, length, accepted_to, fits)

    @property
    def stored(self) -> int:
        """The length of the run; below 0 the fingerprint of the mapping that fits, negated."""
        return -self.fingerprint if self.fits else self.length

    def extend(
        self, offsets: Sequence[int], reasons: Mapping[int, RejectReason], fieldless: Collection[int]
    ) -> int | None:
        """Continues over the records at `offsets`.

        Returns the index of the record that makes the run too long; None when none does.

        Args:
            offsets: Of the records.
            reasons: Why records are rejected, by index.
            fieldless: The indexes of records without a field of a caller.
        """
        if self.fits:
            return None
        for index, offset in enumerate(offsets):
            reason = reasons.get(index)
            if reason is None:
                if index not in fieldless:
                    self.end()
                    return None
            elif reason not in SAY_NOTHING and offset >= self.accepted_to:
                if self.first is None:
                    self.first, self.drained = offset, self.length
                self.length += 1
                if self.length >= self.too_long_at:
                    return index
        return None

    def end(self) -> None:
        """A record was read that the mapping fits."""
        self.fits, self.length, self.first = True, 0, None

    def rewind(self) -> None:
        """Returns to the state before `first`."""
        self.length, self.first = self.drained, None
