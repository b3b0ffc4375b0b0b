"""Counts the records of one partition, in the order of their offsets, and keeps its ledger."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import NamedTuple

from analyzer.core.counting.aggregate import Aggregate
from analyzer.core.counting.caller_budget import OVERFLOW, CallerBudget
from analyzer.core.counting.distinct_values import DistinctValues
from analyzer.core.counting.outcomes import Outcomes
from analyzer.core.counting.reject_runs import RejectRun
from analyzer.core.counting.stated_facts import FactLog
from analyzer.core.counting.verdict_counts import VerdictCounts, minutes_s
from analyzer.core.delays.shipping_delays import DelaySample
from analyzer.core.kafka_format.record_decoder import chunked
from analyzer.core.model import (
    CounterState,
    Moment,
    Partition,
    PartitionProgress,
    RecordColumns,
    Rejected,
    RejectReason,
)
from analyzer.core.records.mapping import SourceMapping
from analyzer.core.records.reader import RecordReader, RequestColumns


class PartitionMemory:
    """State of one partition that outlives a drain."""

    def __init__(self, mapping: SourceMapping, state: CounterState) -> None:
        self.run = RejectRun(mapping.rejected_in_row_max, state.reject_run, state.rejects_accepted_to)
        self.budget = CallerBudget(mapping.callers_max, state)
        self.facts = FactLog(mapping.fact_names)

    def drain(self) -> CounterState:
        """Returns the state for the records to come, with the names that are new since the last call."""
        self.run.first = None
        return self.budget.drain()._replace(reject_run=self.run.length)


class TooManyRejected(NamedTuple):
    """A run of rejected records that stops the partition: its first record, the offset behind its last."""

    first: Rejected
    end: int


class ReadChunk(NamedTuple):
    """Records that were read together: the requests among them, and the reasons of the others by index."""

    records: RecordColumns
    requests: RequestColumns
    reasons: dict[int, RejectReason]

    def counted_offsets(self) -> list[int]:
        return [offset for index, offset in enumerate(self.records.offsets) if index not in self.reasons]


@dataclass(slots=True)
class PartitionCounter:
    """Counts the records of one partition from one drain to the next.

    `count` reads records chunk by chunk; `_add` extends the run of rejected records over a chunk and, unless
    the run is now too long, counts the chunk's requests (`_count`), the denied ones also by the policy that
    they name (`_note_verdicts`), and keeps its rejected records (`_reject`).
    """

    part: Partition
    start: int
    next: int
    reader: RecordReader
    sample_bytes: int
    memory: PartitionMemory
    aggregate: Aggregate
    verdicts: VerdictCounts
    distinct: DistinctValues
    outcomes: Outcomes
    delays: DelaySample
    rejected: list[Rejected] = field(default_factory=list)
    seen: int = 0
    late: int = 0
    overflow: int = 0
    renamed: int = 0
    resume_token: str = ""

    def count(self, records: RecordColumns, read_ms: int | None = None) -> TooManyRejected | None:
        """Counts the records up to a run of rejected ones that is too long; nothing of that run is kept.

        `read_ms`: when records without a Kafka time were read; None: unknown, and no bound on their times.
        """
        for chunk in chunked(records):
            if chunk.values:
                too_many = self._add(ReadChunk(chunk, *self.reader.read(chunk, read_ms)))
                if too_many is not None:
                    return too_many
        return None

    def count_all_or_none(self, records: RecordColumns, read_ms: int | None = None) -> TooManyRejected | None:
        """Counts all records, or none of them if too many in a row are rejected. `read_ms`: see `count`."""
        chunks = [
            ReadChunk(chunk, *self.reader.read(chunk, read_ms)) for chunk in chunked(records) if chunk.values
        ]
        trial = replace(self.memory.run, first=None)
        rejected: list[Rejected] = []
        for chunk in chunks:
            rejected += self._rejected_of(chunk)
            index = trial.extend(chunk.records.offsets, chunk.reasons)
            if index is not None:
                first = next(record for record in rejected if record.offset == trial.first)
                return TooManyRejected(first, chunk.records.offsets[index] + 1)
        for chunk in chunks:
            self._add(chunk)
        return None

    def _add(self, chunk: ReadChunk) -> TooManyRejected | None:
        index = self.memory.run.extend(chunk.records.offsets, chunk.reasons)
        if index is not None:
            return self._stop_before_run(chunk, chunk.records.offsets[index] + 1)
        self._count(chunk.requests, chunk)
        if chunk.reasons:
            self._reject(self._rejected_of(chunk))
        return None

    def _stop_before_run(self, chunk: ReadChunk, end: int) -> TooManyRejected:
        """Counts the requests before the run, and keeps the records that were rejected before it."""
        run, rejected = self.memory.run, self.rejected + self._rejected_of(chunk)
        first = next(record for record in rejected if record.offset == run.first)
        before = [offset < first.offset for offset in chunk.counted_offsets()]
        self._count(chunk.requests.only(before), chunk)
        self.seen -= len(self.rejected)
        self.rejected, self.late = [], 0
        self._reject([record for record in rejected if record.offset < first.offset])
        self.next = first.offset
        run.rewind()
        return TooManyRejected(first, end)

    def _count(self, requests: RequestColumns, chunk: ReadChunk) -> None:
        if requests.times_ms:
            span_ms = min(requests.times_ms), max(requests.times_ms)
            self._note_delays(requests, chunk)
            column = self.aggregate.caller_index
            callers = None if column is None else requests.dimensions[column]
            if column is not None:
                requests = self._within_budget(requests, column, span_ms, chunk)
            cells = self.aggregate.add(requests, span_ms)
            self.distinct.add(requests)
            self.outcomes.add(cells, requests)
            if column is not None and requests.facts:
                self._note_facts(requests, column, chunk)
            if True in requests.denied:
                self._note_verdicts(requests, callers, chunk)
            self.seen += len(requests.times_ms)
            self.renamed += requests.renamed.count(True)

    def _note_delays(self, requests: RequestColumns, chunk: ReadChunk) -> None:
        kafka_ms: Sequence[int | None] = chunk.records.kafka_ms
        if chunk.reasons:
            kafka_ms = [ms for index, ms in enumerate(kafka_ms) if index not in chunk.reasons]
        # If the chunk was cut before a run, only its first requests remain.
        kafka_ms = kafka_ms[: len(requests.times_ms)]
        self.delays.add(kafka_ms, requests.times_ms, self.counted)

    def _note_facts(self, requests: RequestColumns, column: int, chunk: ReadChunk) -> None:
        """Notes what records state about their callers; `column` is the index of the caller's column."""
        counted: list[int] = []

        def moment(index: int) -> Moment:
            # If the chunk was cut before a run, only its first requests remain.
            if chunk.reasons and not counted:
                counted.extend(at for at in range(len(chunk.records.offsets)) if at not in chunk.reasons)
            place = counted[index] if chunk.reasons else index
            kafka_ms = chunk.records.kafka_ms[place]
            has_time = kafka_ms is not None and kafka_ms >= 0
            return Moment(
                kafka_ms or 0 if has_time else requests.times_ms[index], chunk.records.offsets[place]
            )

        self.memory.facts.add(requests.dimensions[column], requests.facts, requests.renamed, moment)

    def _note_verdicts(
        self, requests: RequestColumns, callers: Sequence[str] | None, chunk: ReadChunk
    ) -> None:
        """Adds the denied requests by policy; `callers` has the names before the limit on their number."""
        _, kafka_ms, values, _ = chunk.records
        # If the chunk was cut before a run, only its first requests remain: `compress` ends with them.
        counted = (index for index in range(len(values)) if index not in chunk.reasons)
        places = list(compress(counted, requests.denied))
        denied = requests.only(requests.denied)
        named = [""] * len(places) if callers is None else list(compress(callers, requests.denied))
        policies = self.reader.policies([values[place] or b"" for place in places])
        logged_s = minutes_s([kafka_ms[place] for place in places], denied.times_ms)
        self.verdicts.add(denied, policies, named, logged_s)

    def _within_budget(
        self, requests: RequestColumns, column: int, span_ms: tuple[int, int], chunk: ReadChunk
    ) -> RequestColumns:
        """Returns the requests with OVERFLOW in place of callers beyond the limit.

        `column` is the index of the caller's column.
        """

        def offsets() -> list[int]:
            counted = chunk.counted_offsets() if chunk.reasons else chunk.records.offsets
            # If the chunk was cut before a run, only its first requests remain.
            return counted[: len(requests.times_ms)]

        callers = requests.dimensions[column]
        names = self.memory.budget.names_of(callers, requests.times_ms, span_ms, offsets)
        if names is callers:
            return requests
        self.overflow += names.count(OVERFLOW)
        before, after = requests.dimensions[:column], requests.dimensions[column + 1 :]
        return requests._replace(dimensions=[*before, names, *after])

    def _reject(self, rejected: list[Rejected]) -> None:
        self.rejected += rejected
        self.seen += len(rejected)
        self.late += sum(record.reason == "past" for record in rejected)

    def _rejected_of(self, chunk: ReadChunk) -> list[Rejected]:
        offsets, kafka_ms, values, _ = chunk.records
        return [
            Rejected(
                self.part,
                offsets[index],
                reason,
                sample=(values[index] or b"")[: self.sample_bytes],
                kafka_ms=kafka_ms[index],
                value_bytes=None if (value := values[index]) is None else len(value),
            )
            for index, reason in sorted(chunk.reasons.items())
        ]

    @property
    def values_in_memory(self) -> int:
        kept: tuple[Sized, ...] = (
            self.aggregate, self.verdicts, self.distinct, self.outcomes, self.memory.facts
        )  # fmt: skip
        return sum(map(len, kept))

    @property
    def counted(self) -> int:
        return self.seen - len(self.rejected)

    @property
    def has_progress(self) -> bool:
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
            renamed=self.renamed,
            state=self.memory.drain(),
            delays=self.delays.delays(),
        )
