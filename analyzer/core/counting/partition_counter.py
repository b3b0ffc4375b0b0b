"""What becomes of one partition's records, in the order of their offsets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from analyzer.core.counting.aggregate import Aggregate
from analyzer.core.counting.caller_budget import OVERFLOW, CallerBudget
from analyzer.core.counting.reject_runs import RejectRun
from analyzer.core.kafka_format.record_decoder import RecordColumns, stretches
from analyzer.core.model import CounterState, Partition, PartitionProgress, Rejected, RejectReason
from analyzer.core.records.mapping import Mapping
from analyzer.core.records.reader import RecordReader, RequestColumns


class PartitionMemory:
    """What is remembered of one partition from drain to drain."""

    def __init__(self, mapping: Mapping, carried: CounterState) -> None:
        self.run = RejectRun(mapping.rejected_in_row_max, carried.run, carried.rejects_accepted_to)
        self.budget = CallerBudget(mapping.callers_max, carried)

    def drain(self) -> CounterState:
        """What the records to come depend on; of the names, those that are new."""
        self.run.first = None
        return self.budget.drain()._replace(run=self.run.length)


class TooManyRejected(NamedTuple):
    """Why a partition is not read on: the first rejected record of the run; the offset behind its last."""

    first: Rejected
    end: int


class ReadChunk(NamedTuple):
    """Records that were looked at together: the requests among them, and why the others are none."""

    frames: RecordColumns
    sheet: RequestColumns
    refused: dict[int, RejectReason]

    def counted_offsets(self) -> list[int]:
        return [offset for at, offset in enumerate(self.frames.offsets) if at not in self.refused]


@dataclass(slots=True)
class PartitionCounter:
    """What was counted of one partition since the last drain."""

    part: Partition
    start: int
    next: int
    reader: RecordReader
    sample_bytes: int
    memory: PartitionMemory
    tables: Aggregate
    rejected: list[Rejected] = field(default_factory=list)
    seen: int = 0
    late: int = 0
    overflow: int = 0
    resume_token: str = ""

    def count(self, frames: RecordColumns) -> TooManyRejected | None:
        """Count the records, up to where too many in a row are rejected; of these nothing is kept."""
        for stretch in stretches(frames):
            if stretch.values:
                many = self._add(ReadChunk(stretch, *self.reader.read(stretch)))
                if many is not None:
                    return many
        return None

    def count_whole(self, frames: RecordColumns) -> TooManyRejected | None:
        """Count the records, or none of them where too many in a row are rejected."""
        pieces = [ReadChunk(each, *self.reader.read(each)) for each in stretches(frames) if each.values]
        trial = replace(self.memory.run, first=None)
        seen: list[Rejected] = []
        for piece in pieces:
            seen += self._rejected_of(piece)
            place = trial.follow(piece.frames.offsets, piece.refused)
            if place is not None:
                first = next(each for each in seen if each.offset == trial.first)
                return TooManyRejected(first, piece.frames.offsets[place] + 1)
        for piece in pieces:
            self._add(piece)
        return None

    def _add(self, piece: ReadChunk) -> TooManyRejected | None:
        frames, sheet, refused = piece
        place = self.memory.run.follow(frames.offsets, refused)
        if place is not None:
            return self._cut(piece, frames.offsets[place] + 1)
        self._count(sheet, piece)
        if refused:
            self._set_aside(self._rejected_of(piece))
        return None

    def _cut(self, piece: ReadChunk, end: int) -> TooManyRejected:
        """Keep what is before the run."""
        run, every = self.memory.run, self.rejected + self._rejected_of(piece)
        first = next(each for each in every if each.offset == run.first)
        counted = [offset < first.offset for offset in piece.counted_offsets()]
        self._count(piece.sheet.only(counted), piece)
        self.seen -= len(self.rejected)
        self.rejected, self.late = [], 0
        self._set_aside([each for each in every if each.offset < first.offset])
        self.next = first.offset
        run.go_back()
        return TooManyRejected(first, end)

    def _count(self, sheet: RequestColumns, piece: ReadChunk) -> None:
        if sheet.times_ms:
            span_ms = min(sheet.times_ms), max(sheet.times_ms)
            at = self.tables.callers_at
            self.tables.add(sheet if at is None else self._by_name(sheet, at, span_ms, piece), span_ms)
            self.seen += len(sheet.times_ms)

    def _by_name(
        self, sheet: RequestColumns, at: int, span_ms: tuple[int, int], piece: ReadChunk
    ) -> RequestColumns:
        """The same with the overflow in the place of callers for whom there is no room, in column `at`."""

        def offsets() -> list[int]:
            every = piece.counted_offsets() if piece.refused else piece.frames.offsets
            return every[: len(sheet.times_ms)]  # of a piece that was cut, the beginning is left

        known = sheet.dimensions[at]
        callers = self.memory.budget.named(known, sheet.times_ms, span_ms, offsets)
        if callers is known:
            return sheet
        self.overflow += callers.count(OVERFLOW)
        return sheet._replace(dimensions=[*sheet.dimensions[:at], callers, *sheet.dimensions[at + 1 :]])

    def _set_aside(self, rejected: list[Rejected]) -> None:
        self.rejected += rejected
        self.seen += len(rejected)
        self.late += sum(each.reason == "past" for each in rejected)

    def _rejected_of(self, piece: ReadChunk) -> list[Rejected]:
        frames, _, refused = piece
        found = []
        for at, reason in sorted(refused.items()):
            value = frames.values[at]
            sample = (value or b"")[: self.sample_bytes]
            size = None if value is None else len(value)
            found.append(Rejected(self.part, frames.offsets[at], reason, sample, frames.kafka_ms[at], size))
        return found

    @property
    def counted(self) -> int:
        return self.seen - len(self.rejected)

    @property
    def moved(self) -> bool:
        return self.next > self.start or self.seen > 0

    def drain(self) -> PartitionProgress:
        return PartitionProgress(
            self.part,
            self.start,
            self.next,
            seen=self.seen,
            counted=self.counted,
            dead=len(self.rejected) - self.late,
            late=self.late,
            resume_token=self.resume_token,
            overflow=self.overflow,
            carried=self.memory.drain(),
        )
