"""Counts the records of one partition, in the order of their offsets, and keeps its ledger."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Sized
from dataclasses import dataclass, field, replace
from itertools import compress, groupby
from typing import NamedTuple

from analyzer.counting.counter.aggregate import Aggregate
from analyzer.counting.counter.caller_budget import (
    OF_RESOURCE,
    OF_VALUE,
    OVERFLOW,
    CallerBudget,
    ChosenNames,
)
from analyzer.counting.counter.distinct_values import DistinctValues
from analyzer.counting.counter.event_ids import EventIds, without_ids
from analyzer.counting.counter.outcomes import Outcomes
from analyzer.counting.counter.reject_runs import RejectRun
from analyzer.counting.counter.stated_facts import PartitionFacts
from analyzer.counting.counter.verdict_counts import VerdictCounts, minutes_s
from analyzer.counting.records import sample_texts
from analyzer.counting.records.forgotten_callers import ForgottenCallers
from analyzer.counting.records.formats import with_default_fields
from analyzer.counting.records.reader import RecordReader, RequestColumns
from analyzer.kernel.model import (
    CounterState,
    Moment,
    Partition,
    PartitionProgress,
    RecordColumns,
    Rejected,
    RejectReason,
)
from analyzer.kernel.shipping_delays import DelaySample
from analyzer.plan.mapping import ResourceField, SourceMapping
from analyzer.sources.batches.record_decoder import chunked


class PartitionMemory:
    """State of one partition that outlives a drain."""

    def __init__(self, mapping: SourceMapping, state: CounterState, secret: bytes = b"") -> None:
        """`secret` is the key of the hashes of ids."""
        mapping = with_default_fields(mapping)
        self.run = RejectRun.resumed(mapping, state.reject_run, state.rejects_accepted_to)
        self.budget = CallerBudget(mapping.callers_max, state)
        resource = mapping.fields.get("resource")
        # A client chooses paths, and the mapping has no routes to choose among.
        self.bounds_resources = isinstance(resource, ResourceField) and not resource.routes
        self.facts = PartitionFacts(mapping.fact_names)
        rule = mapping.event_ids
        self.ids = None if rule is None else EventIds(rule, secret, state.ids)
        self._unused_ids = state.ids if rule is None and state.ids is not None else None

    def drain(self) -> CounterState:
        """Returns the state for the records to come, with the names that are new since the last call."""
        self.run.first = None
        ids, self._unused_ids = without_ids(self._unused_ids), None
        if self.ids is not None:
            ids = self.ids.drain()
        return self.budget.drain()._replace(reject_run=self.run.stored, ids=ids)


class TooManyRejected(NamedTuple):
    """A run of rejected records that stops the partition: its first record, the offset behind its last."""

    first: Rejected
    end: int


class ReadChunk(NamedTuple):
    """Records that were read together: the requests among them, and the reasons of the others by index."""

    records: RecordColumns
    requests: RequestColumns
    reasons: dict[int, RejectReason]
    fieldless: Collection[int]  # indexes of records without a field of a caller

    def readable(self) -> RecordColumns:
        """Returns the records of the requests."""
        if not self.reasons:
            return self.records
        return self.records.only([index not in self.reasons for index in range(len(self.records.offsets))])


@dataclass(slots=True)
class PartitionCounter:
    """Counts the records of one partition from one drain to the next.

    `count` reads records chunk by chunk; `_add` extends the run of rejected records over a chunk and, unless
    the run is now too long, counts the chunk's requests without duplicates (`_take`, `_count`), the
    denied ones also by the policy that they name (`_note_verdicts`), and keeps its rejected records
    (`_reject`).
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
    forgotten: ForgottenCallers | None = None
    rejected: list[Rejected] = field(default_factory=list)
    seen: int = 0
    late: int = 0
    overflow: int = 0
    renamed: int = 0
    duplicate: int = 0
    without_id: int = 0
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
            rejected += self._rejected_records(chunk)
            index = trial.extend(chunk.records.offsets, chunk.reasons, chunk.fieldless)
            if index is not None:
                first = next(record for record in rejected if record.offset == trial.first)
                return TooManyRejected(first, chunk.records.offsets[index] + 1)
        for chunk in chunks:
            self._add(chunk)
        return None

    def _add(self, chunk: ReadChunk) -> TooManyRejected | None:
        index = self.memory.run.extend(chunk.records.offsets, chunk.reasons, chunk.fieldless)
        if index is not None:
            return self._stop_before_run(chunk, chunk.records.offsets[index] + 1)
        self._take(chunk.requests, chunk.readable())
        if chunk.reasons:
            self._reject(self._rejected_records(chunk))
        return None

    def _stop_before_run(self, chunk: ReadChunk, end: int) -> TooManyRejected:
        """Counts the requests before the run, and keeps the records that were rejected before it."""
        run, rejected = self.memory.run, self.rejected + self._rejected_records(chunk)
        first = next(record for record in rejected if record.offset == run.first)
        records = chunk.readable()
        is_before = [offset < first.offset for offset in records.offsets]
        self._take(chunk.requests.only(is_before), records.only(is_before))
        self.seen -= len(self.rejected)
        self.rejected, self.late = [], 0
        self._reject([record for record in rejected if record.offset < first.offset])
        self.next = first.offset
        run.rewind()
        return TooManyRejected(first, end)

    def _take(self, requests: RequestColumns, records: RecordColumns) -> None:
        """Counts the requests without the duplicates; `records` are theirs."""
        if not requests.times_ms:
            return
        ids, column = self.memory.ids, self.aggregate.caller_index
        callers = None if column is None else requests.dimensions[column]
        new = None
        if ids is not None:
            new = ids.are_new(callers, requests.ids, _times_ms(records.kafka_ms, requests.times_ms))
            self.without_id += requests.ids.count("")
        # Behind the ids, which are remembered by the name.
        if self.forgotten is not None and column is not None and callers is not None:
            requests = _with_column(requests, column, self.forgotten.names_to_count(callers))
        if new is None:
            self._count(requests, records)
        else:
            self._count_new(requests, records, new)

    def _count_new(self, requests: RequestColumns, records: RecordColumns, new: Sequence[bool]) -> None:
        """Counts the requests that are new, and the others as duplicates."""
        column, repeated = self.aggregate.caller_index, [not is_new for is_new in new]
        duplicates = requests.only(repeated)
        span_ms = min(requests.times_ms), max(requests.times_ms)
        if column is None or self.memory.budget.has_names(
            duplicates.dimensions[column], span_ms, self._chosen_names(duplicates)
        ):
            fresh = requests.only(new)
            if fresh.times_ms:
                self._count(fresh, records.only(new))
            self._count_duplicates(duplicates)
            return
        # Whether the caller of a duplicate has a name depends on the records before it.
        begin = 0
        for is_new, run in groupby(new):
            end = begin + len(list(run))
            part = requests.part(begin, end)
            if is_new:
                self._count(part, records.part(begin, end))
            else:
                self._count_duplicates(part)
            begin = end

    def _count_duplicates(self, requests: RequestColumns) -> None:
        column = self.aggregate.caller_index
        if column is not None:
            budget = self.memory.budget
            for index, prefix in self._chosen_columns:
                texts = budget.known_names(requests.dimensions[index], prefix)
                requests = _with_column(requests, index, texts)
            names = budget.known_names(requests.dimensions[column])
            requests = _with_column(requests, column, names)
        self.aggregate.add_duplicates(requests)
        self.seen += len(requests.times_ms)
        self.duplicate += len(requests.times_ms)

    def _count(self, requests: RequestColumns, records: RecordColumns) -> None:
        """Counts requests (at least one); `records` are theirs."""
        span_ms = min(requests.times_ms), max(requests.times_ms)
        self.delays.add(records.kafka_ms, requests.times_ms, self.counted)
        column = self.aggregate.caller_index
        callers = None if column is None else requests.dimensions[column]
        if column is not None:
            requests = self._within_budget(requests, column, span_ms, records.offsets)
        cells = self.aggregate.add(requests, span_ms)
        self.distinct.add(requests)
        self.outcomes.add(cells, requests)
        if column is not None and requests.facts:
            self._note_facts(requests, column, records)
        if True in requests.denied:
            self._note_verdicts(requests, callers, records)
        self.seen += len(requests.times_ms)
        self.renamed += requests.renamed.count(True)

    def _note_facts(self, requests: RequestColumns, column: int, records: RecordColumns) -> None:
        """Notes what records state about their callers; `column` is the index of the caller's column."""

        def moment(index: int) -> Moment:
            kafka_ms = records.kafka_ms[index]
            has_time = kafka_ms is not None and kafka_ms >= 0
            return Moment(kafka_ms or 0 if has_time else requests.times_ms[index], records.offsets[index])

        self.memory.facts.add(requests.dimensions[column], requests.facts, requests.renamed, moment)

    def _note_verdicts(
        self, requests: RequestColumns, callers: Sequence[str] | None, records: RecordColumns
    ) -> None:
        """Adds the denied requests by policy; `callers` has the names before the limit on their number."""
        denied, logged = requests.only(requests.denied), records.only(requests.denied)
        names = [""] * len(logged.values) if callers is None else list(compress(callers, requests.denied))
        policies = self.reader.policies([value or b"" for value in logged.values])
        self.verdicts.add(denied, policies, names, minutes_s(logged.kafka_ms, denied.times_ms))

    def _within_budget(
        self, requests: RequestColumns, column: int, span_ms: tuple[int, int], offsets: Sequence[int]
    ) -> RequestColumns:
        """Returns the requests with OVERFLOW in place of callers and chosen texts beyond the limit.

        `column` is the index of the caller's column.
        """
        callers = requests.dimensions[column]
        names, columns = self.memory.budget.names_to_count(
            callers, requests.times_ms, span_ms, offsets, self._chosen_names(requests)
        )
        if names is callers:
            return requests
        self.overflow += names.count(OVERFLOW)
        for (index, _), texts in zip(self._chosen_columns, columns, strict=True):
            requests = _with_column(requests, index, texts)
        return _with_column(requests, column, names)

    @property
    def _chosen_columns(self) -> list[tuple[int, str]]:
        """The columns of texts that clients choose and that need names, each with the prefix of these.

        The resource, where no routes bound it, and then the named values.
        """
        values = self.aggregate.value_indexes
        resource = self.aggregate.resource_index if self.memory.bounds_resources else None
        columns = [] if resource is None else [(resource, OF_RESOURCE)]
        return [*columns, *((index, OF_VALUE.format(name=name)) for name, index in sorted(values.items()))]

    def _chosen_names(self, requests: RequestColumns) -> list[ChosenNames]:
        """Returns the texts of these columns."""
        return [ChosenNames(prefix, requests.dimensions[index]) for index, prefix in self._chosen_columns]

    def _reject(self, rejected: list[Rejected]) -> None:
        self.rejected += rejected
        self.seen += len(rejected)
        self.late += sum(record.reason == "past" for record in rejected)

    def _rejected_records(self, chunk: ReadChunk) -> list[Rejected]:
        offsets, kafka_ms, values, _ = chunk.records
        return [
            Rejected(
                self.part,
                offsets[index],
                reason,
                sample=self._sample(values[index] or b""),
                kafka_ms=kafka_ms[index],
                value_bytes=None if (value := values[index]) is None else len(value),
            )
            for index, reason in sorted(chunk.reasons.items())
        ]

    def _sample(self, value: bytes) -> bytes:
        """Returns what is kept of a rejected record: nothing that names a caller who must not be named."""
        if self.reader.has_digests:
            return sample_texts.WITHHELD
        sample = value[: self.sample_bytes]
        if self.forgotten is not None and self.forgotten.has_any(self.reader.names_in(sample)):
            return sample_texts.FORGOTTEN
        return sample

    @property
    def values_in_memory(self) -> int:
        kept: tuple[Sized, ...] = (
            self.aggregate, self.verdicts, self.distinct, self.outcomes, self.memory.facts
        )  # fmt: skip
        return sum(map(len, kept))

    @property
    def counted(self) -> int:
        return self.seen - len(self.rejected) - self.duplicate

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
            duplicate=self.duplicate,
            without_id=self.without_id,
        )


def _times_ms(kafka_ms: Sequence[int | None], times_ms: Sequence[int]) -> Sequence[int]:
    """Returns the Kafka time of each record, and the request's own where there is none."""
    known_ms = [ms for ms in kafka_ms if ms is not None and ms >= 0]
    if len(known_ms) == len(kafka_ms):
        return known_ms
    return [own if ms is None or ms < 0 else ms for ms, own in zip(kafka_ms, times_ms, strict=True)]


def _with_column(requests: RequestColumns, column: int, names: Sequence[str]) -> RequestColumns:
    """Returns the requests with other names in a column."""
    preceding, following = requests.dimensions[:column], requests.dimensions[column + 1 :]
    return requests._replace(dimensions=[*preceding, list(names), *following])
