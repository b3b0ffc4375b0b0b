"""Counts the records of a day again: a least and a most amount of each series and meter."""

from __future__ import annotations

import hmac
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from analyzer.billing.recount.log_documents import READERS, LogReader
from analyzer.billing.recount.log_envelopes import Unreadable
from analyzer.billing.recount.read_requests import DUPLICATES, Request, SourceReading, Unsupported
from analyzer.billing.recount.repeated_ids import RepeatedIds

RecountedSeries = tuple[str, str, str]  # grouping, key, resource


class LogRecord(NamedTuple):
    """A record as it stands in a log."""

    offset: int
    kafka_ms: int | None  # None: it has no time there
    value: bytes | None


class CountedStretch(NamedTuple):
    """Offsets from `start` on that were counted by a plan."""

    start: int
    plan: Mapping[str, Any]


class Pseudonyms:
    """The names of callers, with pseudonyms in place of those that are forgotten.

    Args:
        forgotten: References of callers.
        secret: The key of references.
    """

    def __init__(self, forgotten: Collection[str] = (), secret: bytes = b"") -> None:
        self._forgotten, self._secret = frozenset(forgotten), secret
        self._names: dict[str, str] = {}

    def of(self, caller: str) -> str:
        """Returns the name that a caller is counted under."""
        if not self._forgotten:
            return caller
        if caller not in self._names:
            reference = hmac.digest(self._secret, caller.encode(), "sha256").hex()[:32]
            self._names[caller] = f"forgotten:{reference}" if reference in self._forgotten else caller
        return self._names[caller]


class RecountedLog(NamedTuple):
    """A partition whose log is counted again.

    Attributes:
        source: The name of its source.
        stretches: The plans that it was counted by, in order.
        cut: The offset before which its records are in the day.
        is_whole: Whether it is read from where counting began.
        skipped: Ranges of offsets that an operator let it skip.
        rejected: Offsets of records that are rejected to this day.
        newest: The newest plan, by which rejected records may have been counted later.
        late_from: The offset from which records of each late day are booked on this one.
    """

    source: str
    stretches: Sequence[CountedStretch]
    cut: int
    is_whole: bool
    skipped: Sequence[tuple[int, int]]
    rejected: frozenset[int]
    newest: Mapping[str, Any]
    late_from: Mapping[int, int] = {}


class LateDay(NamedTuple):
    """An earlier day, of which late records are booked on the day that is counted.

    Attributes:
        number: Of the day.
        begin_s: Its beginning.
        end_s: Its end, exclusive.
        groupings: That are counted.
        joins: Of each meter.
    """

    number: int
    begin_s: int
    end_s: int
    groupings: frozenset[str]
    joins: Mapping[str, str]


class RecountedAmount:
    """The least and the most that a meter of a series can have, admitted and denied."""

    __slots__ = ("denied", "denied_most", "value", "value_most")

    def __init__(self) -> None:
        self.value = self.denied = self.value_most = self.denied_most = 0

    def add(self, number: int, join: str, *, is_denied: bool, is_certain: bool) -> None:
        """Adds a number, or takes the larger one."""
        for name in ("denied_most", "denied") if is_denied else ("value_most", "value"):
            if is_certain or name.endswith("most"):
                present = getattr(self, name)
                setattr(self, name, max(present, number) if join == "max" else present + number)


RecountedAmounts = dict[RecountedSeries, dict[str, RecountedAmount]]


class RecountedDay:
    """The counts of a day by its logs.

    Args:
        begin_s: The beginning of the day.
        end_s: Its end, exclusive.
        groupings: That are counted.
        joins: The join of each meter that is counted, by its name when the day was cut.
        renamed: Names when the day was cut, by earlier ones.
        secrets: Of digests of names, by fingerprint.
        pseudonyms: Of callers that are forgotten.
        readers: Of records, by format.
        late_days: In order.
    """

    def __init__(
        self,
        begin_s: int,
        end_s: int,
        groupings: Sequence[str],
        joins: Mapping[str, str],
        renamed: Mapping[str, str],
        secrets: Mapping[str, bytes],
        pseudonyms: Pseudonyms,
        readers: Mapping[str, LogReader] = READERS,
        late_days: Sequence[LateDay] = (),
    ) -> None:
        self._begin_ms, self._end_ms = begin_s * 1000, end_s * 1000
        self._groupings, self._joins, self._renamed = frozenset(groupings), joins, renamed
        self._late_days, self._late_begins_ms = late_days, [day.begin_s * 1000 for day in late_days]
        self._secrets, self._pseudonyms, self._readers = secrets, pseudonyms, readers
        self.amounts: RecountedAmounts = {}
        self.late_amounts: dict[int, RecountedAmounts] = {day.number: {} for day in late_days}
        self.records = 0  # of the day, before the cut
        self.given: Counter[str] = Counter()  # records of which something was taken as given, by what
        self.callers: dict[int, dict[str, set[str]]] = {}  # by partition and kind, to tell whether all fit
        # By partition, and resource or named value, for the same reason.
        self.chosen: dict[tuple[int, str], set[str]] = {}
        self._named_values: set[str] = set()
        self.callers_max = 0
        self.dependent_formats: set[str] = set()  # whose reader is the counter's
        self._partitions = 0

    def count(self, log: RecountedLog, records: Iterable[LogRecord]) -> None:
        """Counts the records of a partition, which come in the order of their offsets. Raises Unsupported."""
        self._partitions += 1
        readings = [
            (stretch.start, SourceReading(log.source, stretch.plan, self._secrets, self._readers))
            for stretch in log.stretches
        ]
        newest = SourceReading(log.source, log.newest, self._secrets, self._readers)
        self._named_values.update(newest.named_values, *(reading.named_values for _, reading in readings))
        if not readings:
            raise Unsupported(f"no plan of its records is stored for the source {log.source}")
        self.dependent_formats |= {
            reading.mapping["format"] for _, reading in readings if not reading.reader.is_independent
        }
        self.callers_max = max(
            [self.callers_max, *(int(reading.mapping["callers_max"]) for _, reading in readings)]
        )
        rule = readings[-1][1].rule
        ids = None
        if rule is not None:
            ids = RepeatedIds(rule["horizon_ms"], rule["ids_max"], is_whole=log.is_whole)
        for record in records:
            if record.offset >= log.cut:
                break
            if any(start <= record.offset < until for start, until in log.skipped):
                continue
            index = max(
                (place for place, (start, _) in enumerate(readings) if start <= record.offset), default=0
            )
            kafka_ms = record.kafka_ms if record.kafka_ms is not None and record.kafka_ms >= 0 else None
            try:
                request = readings[index][1].read_request(record.value, kafka_ms)
            except Unreadable:
                self._count_rejected(log, newest, record, kafka_ms)
                continue
            if kafka_ms is None and record.offset in log.rejected:
                self.given["untimely"] += 1  # ahead of the clock of the machine that read the file
                continue
            answer = "new"
            if ids is not None and readings[index][1].rule is not None:
                answer = ids.ask(request.caller, request.id, request.ms if kafka_ms is None else kafka_ms)
            self._add(request, answer, log, record.offset)

    def _count_rejected(
        self, log: RecountedLog, newest: SourceReading, record: LogRecord, kafka_ms: int | None
    ) -> None:
        """Counts a record as possible which a retry may have counted by the newest plan."""
        if record.offset in log.rejected:
            return
        try:
            request = newest.read_request(record.value, kafka_ms)
        except Unreadable:
            return
        self._add(request, "retried", log, record.offset)

    def _add(self, request: Request, answer: str, log: RecountedLog, offset: int) -> None:
        if self._begin_ms <= request.ms < self._end_ms:
            self.records += 1
            self._add_to(self.amounts, self._groupings, self._joins, request, answer)
        elif (late := self._late_day(request.ms)) and offset >= log.late_from.get(late.number, offset + 1):
            self._add_to(self.late_amounts[late.number], late.groupings, late.joins, request, answer)

    def _late_day(self, at_ms: int) -> LateDay | None:
        """Returns the late day that holds a moment."""
        place = bisect_right(self._late_begins_ms, at_ms)
        day = self._late_days[place - 1] if place else None
        return day if day is not None and at_ms < day.end_s * 1000 else None

    def _add_to(
        self,
        of_day: RecountedAmounts,
        groupings: frozenset[str],
        joins: Mapping[str, str],
        request: Request,
        answer: str,
    ) -> None:
        kind = request.caller.partition(":")[0]
        self.callers.setdefault(self._partitions, {}).setdefault(kind, set()).add(request.caller)
        if answer in ("unknown", "retried"):
            self.given[answer] += 1
        for grouping, key, resource in request.series:
            if grouping not in groupings:
                continue
            for part, text in zip(grouping.split("+"), (key, resource), strict=False):
                if self.is_chosen(part) and text:
                    self.chosen.setdefault((self._partitions, part), set()).add(text)
            of_callers = grouping.partition("+")[0] == "caller"
            series = grouping, self._pseudonyms.of(key) if of_callers else key, resource
            amounts = of_day.setdefault(series, {})
            if answer in ("repeated", "unknown"):
                self._joined(amounts, joins, DUPLICATES, 1, is_denied=False, is_certain=answer == "repeated")
            if answer != "repeated":
                for meter, number in request.amounts.items():
                    certain = answer == "new"
                    is_denied = request.is_denied
                    self._joined(amounts, joins, meter, number, is_denied=is_denied, is_certain=certain)

    def _joined(
        self,
        amounts: dict[str, RecountedAmount],
        joins: Mapping[str, str],
        meter: str,
        number: int,
        *,
        is_denied: bool,
        is_certain: bool,
    ) -> None:
        name = self._renamed.get(meter, meter)
        if name in joins and number:
            amount = amounts.get(name)
            if amount is None:
                amount = amounts[name] = RecountedAmount()
            amount.add(number, joins[name], is_denied=is_denied, is_certain=is_certain)

    @property
    def has_overflow(self) -> bool:
        """Whether a partition may have had more callers than are counted by name."""
        return any(
            len(callers) > self.callers_max for kinds in self.callers.values() for callers in kinds.values()
        )

    def is_chosen(self, part: str) -> bool:
        """Whether a part of a grouping has texts that clients choose: the resource, or a named value."""
        return part == "resource" or part in self._named_values

    def has_chosen_overflow(self, grouping: str) -> bool:
        """Whether a partition may have had more of such texts in a grouping than are counted by name."""
        full = {part for (_, part), texts in self.chosen.items() if len(texts) > self.callers_max}
        return not full.isdisjoint(grouping.split("+"))
