"""Bytes become requests once, here, or reasons why not.

Records are judged a column at a time: all callers, then all times, and so on. A column of a thousand values
costs a few calls where the same values one by one cost thousands; that, and `frames.py`, is what makes the
counter fast. The order of the questions is part of the contract: tombstone, size, UTF-8, document, caller,
time, numbers, fields, future, past.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Any, NamedTuple

from analyzer.core.kafka_format.record_decoder import RecordColumns
from analyzer.core.model import RejectReason
from analyzer.core.records.columns import (
    CallerColumn,
    ColumnIndex,
    ConditionColumn,
    NumberColumn,
    TextColumn,
    TimeColumn,
)
from analyzer.core.records.combined_format import CombinedFormat, with_usual_fields
from analyzer.core.records.formats import Format
from analyzer.core.records.json_format import JsonFormat
from analyzer.core.records.mapping import Condition, Mapping

# What a calendar can show, with room for the end of the longest window.
FIRST_MS, END_MS = 0, 253_339_228_800_000  # 1970 up to 9998
EMPTY = b"{}"  # stands for a value that is not looked at


class Projection(NamedTuple):
    """What the plan wants to know of each request, beside when it was."""

    dimensions: tuple[str, ...]  # "caller", or names of text fields
    numbers: tuple[str, ...]
    conditions: tuple[tuple[Condition, ...], ...]


class RequestColumns(NamedTuple):
    """What requests say: one list for each question, one answer for each request."""

    times_ms: list[int]
    denied: list[bool]  # empty when nobody can be
    dimensions: list[list[str]]
    numbers: list[list[int]]  # empty for a number that this source does not have
    conditions: list[list[bool]]

    def only(self, wanted: Sequence[bool]) -> RequestColumns:
        def kept(column: list[Any]) -> list[Any]:
            return list(compress(column, wanted))

        return RequestColumns(
            kept(self.times_ms),
            kept(self.denied),
            [kept(column) for column in self.dimensions],
            [kept(column) for column in self.numbers],
            [kept(column) for column in self.conditions],
        )


class RecordReader:
    """Reads the records of one source as its mapping says, and answers what was asked."""

    def __init__(self, mapping: Mapping, asked: Projection) -> None:
        """Raises ValueError for a mapping by which nobody can be read."""
        if mapping.format == "combined":
            mapping = with_usual_fields(mapping)
        slots = ColumnIndex()
        self._mapping = mapping
        self._dimensions = asked.dimensions
        self._who = CallerColumn(mapping, slots)
        self._when = TimeColumn(mapping.time, slots)
        self._numbers = [NumberColumn(mapping, name, slots) for name in asked.numbers]
        self._denied = ConditionColumn(mapping, mapping.deny_if, slots)
        self._conditions = [ConditionColumn(mapping, conditions, slots) for conditions in asked.conditions]
        self._texts = {
            name: TextColumn(mapping, name, slots) for name in asked.dimensions if name != "caller"
        }
        self._format: Format = (
            JsonFormat(slots.paths) if mapping.format == "json" else CombinedFormat(slots.paths)
        )

    def read(self, frames: RecordColumns) -> tuple[RequestColumns, dict[int, RejectReason]]:
        """The requests among `frames`, which are not none, and the reasons of the others by place."""
        values, unread = self._sized(frames)
        columns, refused = self._format.read(values)
        refused |= unread
        callers = self._who.answers(columns)
        times_ms = self._when.answers(columns, frames.kafka_ms)
        numbers = [number.answers(columns) for number in self._numbers]
        denied = self._denied.answers(columns)
        conditions = [condition.answers(columns) for condition in self._conditions]
        texts = {name: text.answers(columns) for name, text in self._texts.items()}
        note(refused, "bad-caller", [callers])
        note(refused, "bad-time", [times_ms])
        note(refused, "bad-number", numbers)
        note(refused, "bad-field", [denied, *conditions, *texts.values()])
        note_untimely(refused, self._mapping, times_ms, frames.kafka_ms)
        texts["caller"] = callers
        sheet = RequestColumns(
            times_ms, denied, [texts[name] for name in self._dimensions], numbers, conditions
        )
        return sheet.only([at not in refused for at in range(len(values))]) if refused else sheet, refused

    def _sized(self, frames: RecordColumns) -> tuple[Sequence[bytes], dict[int, RejectReason]]:
        """The values with those replaced that must not be read, and why those must not."""
        values, bytes_max = frames.values, self._mapping.value_bytes_max
        refused: dict[int, RejectReason] = {}
        if None in values or frames.size_bytes > bytes_max:
            for at, value in enumerate(values):
                if value is None:
                    refused[at] = "tombstone"
                elif len(value) > bytes_max:
                    refused[at] = "too-large"
        if not refused:
            return values, refused  # type: ignore[return-value]  # none is None
        return [EMPTY if at in refused else value for at, value in enumerate(values)], refused  # type: ignore[misc]  # none is None


def note(refused: dict[int, RejectReason], reason: RejectReason, columns: Iterable[Sequence[Any]]) -> None:
    """Say of each record that has no answer in `columns` that it is refused, unless it is already."""
    for column in columns:
        if None in column:
            for at, answer in enumerate(column):
                if answer is None:
                    refused.setdefault(at, reason)


def note_untimely(
    refused: dict[int, RejectReason],
    mapping: Mapping,
    times_ms: Sequence[int | None],
    kafka_ms: Sequence[int | None],
) -> None:
    """The same of requests that are too far from their record's own Kafka time, or from any calendar."""
    if all_timely(mapping, times_ms, kafka_ms):
        return
    for at, (ms, reference_ms) in enumerate(zip(times_ms, kafka_ms, strict=True)):
        if ms is None or at in refused:
            continue
        judged = reference_ms is not None and reference_ms >= 0  # Kafka itself writes -1 for no time
        if judged and ms > (reference_ms or 0) + mapping.future_ms_max:
            refused[at] = "future"
        elif judged and ms < (reference_ms or 0) - mapping.past_ms_max:
            refused[at] = "past"
        elif not FIRST_MS <= ms < END_MS:
            refused[at] = "bad-time"


def all_timely(mapping: Mapping, times_ms: Sequence[Any], kafka_ms: Sequence[Any]) -> bool:
    """Whether a glance at the extremes is enough: no record can be untimely."""
    try:
        first, last, earliest, latest = min(times_ms), max(times_ms), min(kafka_ms), max(kafka_ms)
        return bool(
            first >= FIRST_MS
            and last < END_MS
            and earliest >= 0
            and last <= earliest + mapping.future_ms_max
            and first >= latest - mapping.past_ms_max
        )
    except TypeError:  # somebody has no time
        return False
