"""Turns the values of records into requests, or into the reasons why they are rejected.

Records are read a column at a time: all callers, then all times, and so on. A column of a thousand values
costs a few calls where the same values one by one cost thousands; that, and the record decoder, is what makes
the counter fast. The order of the checks is part of the contract (docs/spec/counter.md): tombstone, size,
UTF-8, document, caller, time, numbers, fields, future, past, range of the time. The first check that fails is
the reason of the rejection.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import compress
from typing import Any, NamedTuple

from analyzer.counting.records.columns import (
    CallerColumn,
    CallerNames,
    ColumnIndex,
    ConditionColumn,
    CountIfColumn,
    DistinctColumn,
    FactColumn,
    IdColumn,
    NumberColumn,
    TextColumn,
    TimeColumn,
    WeightColumn,
)
from analyzer.counting.records.formats import make_decoder, with_default_fields
from analyzer.counting.records.policy_names import PolicyNames
from analyzer.counting.records.sample_texts import texts_within
from analyzer.kernel.model import RecordColumns, RejectReason
from analyzer.plan.format_decoder import Columns
from analyzer.plan.groupings import CALLER, Dimension
from analyzer.plan.mapping import Condition, SourceMapping, TextField
from analyzer.plan.value_rules import NO_DIGESTS, Digests

# The range of times that calendars can show, with room for the end of the longest window.
FIRST_MS, END_MS = 0, 253_339_228_800_000  # 1970 up to 9998
EMPTY_DOCUMENT = b"{}"  # read in place of a value that must not be read


class Projection(NamedTuple):
    """The fields that a plan needs of each request, besides its time."""

    dimensions: tuple[Dimension, ...]
    numbers: tuple[str, ...]
    conditions: tuple[tuple[Condition, ...], ...]
    distinct: tuple[str, ...] = ()  # fields whose distinct values are counted


class RequestColumns(NamedTuple):
    """Requests as columns: one list per field, with one value per request."""

    times_ms: list[int]
    denied: list[bool]  # empty when the source has no `deny_if`
    dimensions: list[list[str]]
    numbers: list[list[int]]  # empty for a number that this source does not have
    conditions: list[list[bool]]
    renamed: list[bool]  # whether the caller had an unusable name, or none; empty where none had
    # Digests of texts, NO_VALUE where a record lacks the field; empty for a field that the source lacks.
    distinct: list[list[int | str]]
    weights: list[int]  # requests that each record stands for; empty: one
    # What records state as facts about their callers, by the mapping's names; see `FactColumn`.
    facts: Sequence[list[Any]] = ()
    ids: list[str] = []  # noqa: RUF012 - never changed; of the events, "" for none; empty: no ids

    def only(self, mask: Sequence[bool]) -> RequestColumns:
        """The requests for which `mask` is true."""
        return self._each(lambda column: list(compress(column, mask)))

    def part(self, begin: int, end: int) -> RequestColumns:
        return self._each(lambda column: column[begin:end])

    def _each(self, kept: Callable[[list[Any]], list[Any]]) -> RequestColumns:
        """Returns the requests with each column replaced."""
        return RequestColumns(
            kept(self.times_ms),
            kept(self.denied),
            [kept(column) for column in self.dimensions],
            [kept(column) for column in self.numbers],
            [kept(column) for column in self.conditions],
            kept(self.renamed),
            [kept(column) for column in self.distinct],
            kept(self.weights),
            [kept(column) for column in self.facts],
            kept(self.ids),
        )


class ReadRecords(NamedTuple):
    """Records that were read.

    Attributes:
        requests: Those that count.
        reasons: Why each of the others is rejected, by index.
        fieldless: The indexes of records that have no field of a caller.
    """

    requests: RequestColumns
    reasons: dict[int, RejectReason]
    fieldless: Collection[int]


class RecordReader:
    """Reads the records of one source as its mapping says."""

    def __init__(self, mapping: SourceMapping, projection: Projection, digests: Digests = NO_DIGESTS) -> None:
        """Raises ValueError for a mapping without a caller field, or with wrong ones of weight, facts, id.

        Also KeyError for an unknown format, and SecretMissing when a field is counted by a digest that is not
        among `digests`.
        """
        mapping = with_default_fields(mapping)
        index = ColumnIndex()
        self._mapping = mapping
        self._dimensions = projection.dimensions
        caller = CallerColumn(mapping, index, digests)
        self._caller = caller if CALLER in projection.dimensions else None
        self._count_if = CountIfColumn(mapping, index) if mapping.count_if and self._caller else None
        self._time = TimeColumn(mapping.time, index)
        self._numbers = [NumberColumn(mapping, name, index) for name in projection.numbers]
        self._weight = WeightColumn(mapping, index)
        self._denied = ConditionColumn(mapping, mapping.deny_if, index)
        self._policies = PolicyNames(mapping)
        self._conditions = [ConditionColumn(mapping, all_of, index) for all_of in projection.conditions]
        self._texts = {
            dimension: TextColumn(mapping, dimension, index, digests)
            for dimension in projection.dimensions
            if dimension != CALLER
        }
        self._distinct = [DistinctColumn(mapping, name, index, digests) for name in projection.distinct]
        self._facts = [FactColumn(mapping, name, index, digests) for name in mapping.fact_names]
        self._ids = IdColumn(mapping, index)
        self._format = make_decoder(mapping, index.paths)

    def read(self, records: RecordColumns, read_ms: int | None = None) -> ReadRecords:
        """Returns the requests among `records` (at least one).

        `read_ms` is when they were read, for the bound on times of records without a Kafka time.
        """
        values, unread = self._readable(records)
        columns, reasons = self._format.read(values)
        reasons |= unread
        denied = self._denied.read(columns)
        callers, renamed, fieldless = self._read_callers(columns, denied)
        times_ms = self._time.read(columns, records.kafka_ms)
        numbers = [number.read(columns) for number in self._numbers]
        weights = self._weight.read(columns)
        conditions = [condition.read(columns) for condition in self._conditions]
        texts = {dimension: text.read(columns) for dimension, text in self._texts.items()}
        distinct = [values.read(columns) for values in self._distinct]
        reject_missing(reasons, "bad-caller", [callers])
        reject_missing(reasons, "bad-time", [times_ms])
        reject_missing(reasons, "bad-number", [*numbers, weights])
        reject_missing(reasons, "bad-field", [denied, *conditions, *texts.values(), *distinct])
        reject_untimely(reasons, self._mapping, times_ms, records.kafka_ms, read_ms)
        texts[CALLER] = callers
        dimensions = [texts[dimension] for dimension in self._dimensions]
        facts = [fact.read(columns) for fact in self._facts] if self._caller else []
        ids = self._ids.read(columns)
        requests = RequestColumns(
            times_ms, denied, dimensions, numbers, conditions, renamed, distinct, weights, facts, ids
        )
        if reasons:
            requests = requests.only([index not in reasons for index in range(len(values))])
        return ReadRecords(requests, reasons, fieldless)

    @property
    def has_times(self) -> bool:
        """Whether requests have a time besides the one in Kafka."""
        return self._mapping.time is not None

    def names_in(self, sample: bytes) -> set[str]:
        """Returns the names of callers that a part of a record may contain; none if callers do not count."""
        return set() if self._caller is None else self._caller.names_of(texts_within(sample))

    @property
    def has_digests(self) -> bool:
        """Whether callers are counted by a digest of their names, so that no name may be stored."""
        fields = (self._mapping.fields.get(name) for name in self._mapping.caller)
        return any(isinstance(field, TextField) and field.digest for field in fields)

    def policies(self, values: Sequence[bytes]) -> list[str]:
        """Returns the policy that each of these records (at least one, readable) says denied the request.

        "" where it names none.
        """
        return self._policies.read(values)

    def _read_callers(self, columns: Columns, denied: list[Any]) -> CallerNames:
        if self._caller is None:
            return CallerNames([], [])
        callers = self._caller.read(columns)
        return callers if self._count_if is None else self._count_if.applied_to(callers, denied, columns)

    def _readable(self, records: RecordColumns) -> tuple[Sequence[bytes], dict[int, RejectReason]]:
        """Returns the values with a stand-in for those that must not be read, and the reasons of these."""
        values, bytes_max = records.values, self._mapping.value_bytes_max
        reasons: dict[int, RejectReason] = {}
        if None in values or records.size_bytes > bytes_max:
            for index, value in enumerate(values):
                if value is None:
                    reasons[index] = "tombstone"
                elif len(value) > bytes_max:
                    reasons[index] = "too-large"
        if not reasons:
            return values, reasons  # type: ignore[return-value]  # none of them is None
        readable = [EMPTY_DOCUMENT if index in reasons else value for index, value in enumerate(values)]
        return readable, reasons  # type: ignore[return-value]  # none of them is None


def reject_missing(
    reasons: dict[int, RejectReason], reason: RejectReason, columns: Iterable[Sequence[Any]]
) -> None:
    """Adds `reason` for each record with None in one of `columns`, unless it has a reason already."""
    for column in columns:
        if None in column:
            for index, answer in enumerate(column):
                if answer is None:
                    reasons.setdefault(index, reason)


def reject_untimely(
    reasons: dict[int, RejectReason],
    mapping: SourceMapping,
    times_ms: Sequence[int | None],
    kafka_ms: Sequence[int | None],
    read_ms: int | None = None,
) -> None:
    """Adds a reason for each request too far from its record's Kafka time, or outside of all calendars.

    Without a Kafka time, a request must not be too far ahead of `read_ms`.
    """
    if all_timely(mapping, times_ms, kafka_ms, read_ms):
        return
    latest_ms = END_MS if read_ms is None else read_ms + mapping.future_ms_max
    for index, (ms, reference_ms) in enumerate(zip(times_ms, kafka_ms, strict=True)):
        if ms is None or index in reasons:
            continue
        has_reference = reference_ms is not None and reference_ms >= 0  # Kafka itself writes -1 for no time
        if has_reference and ms > (reference_ms or 0) + mapping.future_ms_max:
            reasons[index] = "future"
        elif has_reference and ms < (reference_ms or 0) - mapping.past_ms_max:
            reasons[index] = "past"
        elif not has_reference and latest_ms < ms < END_MS:
            reasons[index] = "future"
        elif not FIRST_MS <= ms < END_MS:
            reasons[index] = "bad-time"


def all_timely(
    mapping: SourceMapping, times_ms: Sequence[Any], kafka_ms: Sequence[Any], read_ms: int | None = None
) -> bool:
    """Whether the extremes alone show that no record is untimely."""
    try:
        first, last = min(times_ms), max(times_ms)
        if first < FIRST_MS or last >= END_MS:
            return False
        if kafka_ms.count(None) == len(kafka_ms):
            return read_ms is None or last <= read_ms + mapping.future_ms_max  # lines of a file
        earliest, latest = min(kafka_ms), max(kafka_ms)
        return bool(
            earliest >= 0
            and last <= earliest + mapping.future_ms_max
            and first >= latest - mapping.past_ms_max
        )
    except TypeError:  # one of them has no time
        return False
