"""Counts the records of one partition twice: as they were counted, and by another plan.

The first count takes the plan of each stretch of offsets, with the names and ids that the one before it has
left, as analyzers do. So it has what is stored for these records, and the difference of both counts is what
must be added to the stored ones.

A record that is among the rejected ones was not counted. One that the plan of its time rejects, and that is
not among them any more, was counted by a retry, or was deleted there: which, is not stored. It stays as it
is, in neither count.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from analyzer.kernel.model import (
    NO_HOUR,
    Counter,
    CounterState,
    CountTable,
    DrainedCounts,
    IdState,
    Partition,
    Records,
    Rejected,
    Verdict,
)
from analyzer.replay.count_differences import differences

LATE = "past"  # the reason of rejected records that the ledger calls late


class TwinStretch(NamedTuple):
    """Offsets from `start` on, and what counts them as they were counted."""

    start: int
    new_counter: Callable[[], Counter]


class LedgerChange(NamedTuple):
    """By how much the outcomes of records differ from those in the ledger, and how many were seen."""

    seen: int = 0
    counted: int = 0
    duplicate: int = 0
    dead: int = 0
    late: int = 0
    renamed: int = 0
    kept: int = 0  # records that stay as they are

    def plus(self, *changes: LedgerChange) -> LedgerChange:
        return LedgerChange(*map(sum, zip(self, *changes, strict=True)))


class ReplayedCounts(NamedTuple):
    """The difference of both counts since the last drain.

    Attributes:
        start: The first offset.
        next: The offset behind the last one.
        tables: What must be added to the stored counts.
        ledger: What must be added to the ledger.
        rejected: Records that are rejected now, and were not.
        readable: Offsets of rejected records that are not rejected any more.
        verdicts: Of the denied requests, by the new plan.
        overflow: Requests that are in the overflow of either count.
    """

    start: int
    next: int
    tables: Sequence[CountTable]
    ledger: LedgerChange
    rejected: Sequence[Rejected]
    readable: Sequence[int]
    verdicts: Sequence[Verdict]
    overflow: int


class TwinCounter:
    """Counts records of one partition, in their order.

    Args:
        part: The partition.
        stretches: The plans that counted it, by offset; the first one holds where reading begins.
        counter: Counts by the new plan.
        begin: Records before this offset are not replayed: they fill the counters' memory alone.
        rejected: Offsets of the records that are rejected at present, with their reasons.
    """

    def __init__(
        self,
        part: Partition,
        stretches: Sequence[TwinStretch],
        counter: Counter,
        begin: int,
        rejected: Mapping[int, str],
    ) -> None:
        self._part = part
        self._begin = begin
        self._rejected = rejected
        self._later = [*stretches]
        self._old = self._later.pop(0).new_counter()
        self._new = counter
        self._state = CounterState()
        for twin in (self._old, self._new):
            twin.resume(part, self._state)
        self._old_parts: list[DrainedCounts] = []
        self._kept: list[Rejected] = []
        self._known: list[int] = []  # offsets of rejected records since the last drain
        self._start: int | None = None

    def feed(self, records: Records, read_ms: int | None = None) -> None:
        """Counts records; `read_ms` is the time of this machine, for those without a Kafka time."""
        bounds = [self._begin, *(stretch.start for stretch in self._later)]
        for piece in pieces(records, bounds):
            if self._start is None:
                self._start = piece.start
            if piece.start == self._begin and self._start < self._begin:
                self.drain()  # what filled the memory
                self._start = piece.start
            while self._later and self._later[0].start <= piece.start:
                self._change_plan(self._later.pop(0))
            self._feed(piece, read_ms)

    def full(self) -> bool:
        """Whether a bound of the counters is reached: drain before feeding more."""
        return self._old.full() or self._new.full()

    def drain(self) -> ReplayedCounts | None:
        """Returns what was counted since the last call, without what is before `begin`; None: nothing."""
        start, self._start = self._start, None
        if start is None:
            return None
        self._drain_old()
        new, old = self._new.drain(), self._old_parts
        kept, rejected_offsets = self._kept, self._known
        self._old_parts, self._kept, self._known = [], [], []
        [progress] = new.parts
        if start < self._begin:
            return None
        reasons = [self._rejected[offset] for offset in rejected_offsets]
        unreadable = {rejected.offset for rejected in new.rejected}
        was = _ledger(old).plus(
            _rejected_ledger(reasons), _rejected_ledger([rejected.reason for rejected in kept])
        )
        now = _ledger([new]).plus(_rejected_ledger([rejected.reason for rejected in kept]))
        change = LedgerChange(*(new_value - old_value for old_value, new_value in zip(was, now, strict=True)))
        return ReplayedCounts(
            start,
            progress.next,
            differences([table for counts in old for table in counts.tables], new.tables),
            change._replace(seen=now.seen, kept=len(kept)),
            [rejected for rejected in new.rejected if rejected.offset not in self._rejected],
            [offset for offset in rejected_offsets if offset not in unreadable],
            new.verdicts,
            progress.overflow + sum(part.overflow for counts in old for part in counts.parts),
        )

    def _feed(self, piece: Records, read_ms: int | None) -> None:
        columns = piece.columns
        rejected_offsets = (
            [offset for offset in columns.offsets if offset in self._rejected] if self._rejected else []
        )
        counted = (
            columns.only([offset not in self._rejected for offset in columns.offsets])
            if rejected_offsets
            else columns
        )
        self._known += rejected_offsets
        fed = self._old.feed(piece._replace(columns=counted, read_ms=None, resume_token=""))
        kept: list[Rejected] = []
        if fed.counted < fed.seen:  # duplicates, or rejected ones
            kept = list(self._drain_old().rejected)
            self._kept += kept
        if kept:
            offsets = {rejected.offset for rejected in kept}
            columns = columns.only([offset not in offsets for offset in columns.offsets])
        self._new.feed(piece._replace(columns=columns, read_ms=read_ms, resume_token=""))

    def _drain_old(self) -> DrainedCounts:
        drained = self._old.drain()
        for progress in drained.parts:
            self._state = carried(self._state, progress.state)
        self._old_parts.append(drained)
        return drained

    def _change_plan(self, stretch: TwinStretch) -> None:
        self._drain_old()
        self._old = stretch.new_counter()
        self._old.resume(self._part, self._state)


def pieces(records: Records, bounds: Sequence[int]) -> Iterator[Records]:
    """Yields a record set cut at some offsets."""
    inner = sorted({bound for bound in bounds if records.start < bound < records.next})
    edges = [records.start, *inner, records.next]
    offsets = records.columns.offsets
    for start, end in pairwise(edges):
        part = records.columns.part(bisect_left(offsets, start), bisect_left(offsets, end))
        yield records._replace(start=start, next=end, columns=part)


def _ledger(counts: Sequence[DrainedCounts]) -> LedgerChange:
    return LedgerChange().plus(
        *(
            LedgerChange(part.seen, part.counted, part.duplicate, part.dead, part.late, part.renamed)
            for drained in counts
            for part in drained.parts
        )
    )


def _rejected_ledger(reasons: Sequence[str]) -> LedgerChange:
    """Returns the outcomes of records that were rejected for these reasons."""
    late = sum(reason == LATE for reason in reasons)
    return LedgerChange(seen=len(reasons), dead=len(reasons) - late, late=late)


def carried(earlier: CounterState, drained: CounterState | None) -> CounterState:
    """Returns the whole state after a drain, of the one before it and what is new since."""
    if drained is None:
        return earlier
    named_callers = [
        callers for callers in earlier.named if drained.kept is None or callers.hour in drained.kept
    ]
    return CounterState(
        reject_run=drained.reject_run,
        hour=earlier.hour if drained.hour == NO_HOUR else drained.hour,
        hour_before=earlier.hour_before if drained.hour_before == NO_HOUR else drained.hour_before,
        behind_run=drained.behind_run,
        named=[*named_callers, *drained.named],
        ids=_carried_ids(earlier.ids, drained.ids),
    )


def _carried_ids(earlier: IdState | None, drained: IdState | None) -> IdState | None:
    if drained is None:
        return earlier
    blobs = {} if earlier is None else {(blob.generation, blob.number): blob for blob in earlier.blobs}
    if drained.forgotten_to is not None:
        blobs = {key: blob for key, blob in blobs.items() if key[0] >= drained.forgotten_to}
    blobs |= {(blob.generation, blob.number): blob for blob in drained.blobs}
    return IdState(drained.reached_ms, drained.far_run, [blob for _, blob in sorted(blobs.items())])
