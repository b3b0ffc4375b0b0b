"""The job behind `gatelock billing audit --against-kafka`: counts the logs of a closed day again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.billing.days.counted_again import CountedAgain
from analyzer.billing.days.day_rows import Day
from analyzer.billing.recount.log_documents import LogReader
from analyzer.billing.recount.read_requests import Unsupported, stored_plan
from analyzer.billing.recount.recount_differences import RecountDifference, differences
from analyzer.billing.recount.recounted_day import (
    CountedStretch,
    LateDay,
    LogRecord,
    Pseudonyms,
    RecountedDay,
    RecountedLog,
)
from analyzer.billing.recount_inputs import (
    LateInputs,
    LogToRecount,
    RecountInputs,
    SeriesKey,
    recount_inputs,
)
from analyzer.kernel.errors import LogUnreadable
from analyzer.sources.files.file_reader import CLUSTER
from analyzer.sources.files.plain_lines import plain_lines
from analyzer.sources.kafka.probes.log_bounds import read_ends
from analyzer.sources.kafka.probes.plain_records import PlainLog

ADVANCED_BY = 500  # records
SHOWN_MAX = 100  # differences that are kept
GIVEN = {
    "unknown": "records that may count or not, because they repeat an id after more than its horizon, or "
    "one from before the first offset",
    "retried": "rejected records that a retry may have counted",
    "untimely": "lines that were rejected because of the time at which they were read",
}


class RecountedPartition(NamedTuple):
    """A partition that was read again: the offsets, and the plans that it was counted by."""

    partition: str
    first: int
    cut: int
    plans: Sequence[Mapping[str, object]]


class DayRecount(NamedTuple):
    """The outcome of a second count.

    Attributes:
        records: Of the day, before the cut.
        series: That were compared.
        differing: How many amounts differ.
        differences: The first of them.
        partitions: What was read.
        given: What was taken as given, in sentences.
    """

    records: int
    series: int
    differing: int
    differences: Sequence[RecountDifference]
    partitions: Sequence[RecountedPartition]
    given: Sequence[str]

    @property
    def equal(self) -> bool:
        return self.differing == 0


def recount(
    engine: sa.Engine,
    day: Day,
    topics: Mapping[str, str],
    options: Mapping[str, Any],
    secrets: Mapping[str, bytes],
    readers: Mapping[str, LogReader],
    advanced: Callable[[int], None] = lambda _: None,
) -> DayRecount:
    """Counts a closed day again and compares it.

    Raises LogUnreadable, LogsUnknown and StoreAway, and Unsupported for a plan that it does not know.

    Args:
        engine: Of the database.
        day: The closed day.
        topics: The source of each configured topic.
        options: Those of kafka-python.
        secrets: Of digests of names, by fingerprint.
        readers: Of records, by format.
        advanced: Called now and then, with the number of records read since the last time.
    """
    inputs = recount_inputs(engine, day)
    _require_logs(inputs.logs, topics, options)
    newest = stored_plan(inputs.newest)
    joins, unknown = _joins(day, inputs)
    renamed = {
        meter["renamed_from"]: meter["name"] for meter in newest["meters"] if meter.get("renamed_from")
    }
    pseudonyms = Pseudonyms(newest.get("forgotten", ()), inputs.references)
    late_days = [_late_day(late.day, inputs) for late in inputs.late]
    counted = RecountedDay(
        day.begin_s, day.end_s, day.groupings, joins, renamed, secrets, pseudonyms, readers, late_days
    )
    partitions, unread = _count_logs(counted, inputs, day, newest, options, advanced)
    frozen = _of_meters(inputs.frozen, joins)
    differing = list(differences(counted, frozen, joins, inputs.moved))
    for late, compared in zip(inputs.late, late_days, strict=True):
        if late.day.id not in unread:
            differing += _late_differences(counted, late, compared.joins)
    assumptions = [
        *_given(day, inputs, counted),
        *(f"{name}: its meaning has changed during the day" for name in unknown),
        *(f"what is booked late of {late.day.date}" for late in inputs.late if late.day.id in unread),
    ]
    series = len(frozen.keys() | counted.amounts.keys())
    return DayRecount(counted.records, series, len(differing), differing[:SHOWN_MAX], partitions, assumptions)


def _count_logs(
    counted: RecountedDay,
    inputs: RecountInputs,
    day: Day,
    newest: Mapping[str, Any],
    options: Mapping[str, Any],
    advanced: Callable[[int], None],
) -> tuple[list[RecountedPartition], set[int]]:
    """Counts all logs; returns what was read, and the late days of which not all records were."""
    partitions, unread = [], set[int]()
    for log in inputs.logs:
        first, records, is_whole = _records(log, day, newest, options)
        late_from = {late.day.id: late.begins[log.part] for late in inputs.late}
        counted.count(
            RecountedLog(
                *(log.part.source, _counted_stretches(log), log.cut, is_whole, log.skipped, log.rejected),
                *(newest, late_from),
            ),
            _advancing(records, advanced),
        )
        unread |= {late.day.id for late in inputs.late if late.begins[log.part] < first}
        plans = [
            {"start": stretch.start, "plan": stretch.plan, "mark": stretch.mark} for stretch in log.stretches
        ]
        partitions.append(RecountedPartition(str(log.part), first, log.cut, plans))
    return partitions, unread


def _late_day(day: Day, inputs: RecountInputs) -> LateDay:
    return LateDay(day.id, day.begin_s, day.end_s, frozenset(day.groupings), _joins(day, inputs)[0])


def _counted_stretches(log: LogToRecount) -> list[CountedStretch]:
    return [
        CountedStretch(stretch.start, stored_plan(stretch.body))
        for stretch in log.stretches
        if stretch.body is not None
    ]


def _of_meters(
    amounts: Mapping[SeriesKey, Mapping[str, tuple[int, int]]], joins: Mapping[str, str]
) -> dict[SeriesKey, dict[str, tuple[int, int]]]:
    """Returns the amounts of the meters that can be compared."""
    return {
        series: {name: amount for name, amount in by_meter.items() if name in joins}
        for series, by_meter in amounts.items()
    }


def _late_differences(
    counted: RecountedDay, late: LateInputs, joins: Mapping[str, str]
) -> Iterator[RecountDifference]:
    """Yields what is booked late of an earlier day otherwise than its log gives."""
    booked = _of_meters(late.booked, joins)
    for difference in differences(counted, booked, joins, late.moved, counted.late_amounts[late.day.id]):
        yield difference._replace(late=late.day.date)


def _advancing(records: Iterator[LogRecord], advanced: Callable[[int], None]) -> Iterator[LogRecord]:
    for number, record in enumerate(records, 1):
        yield record
        if number % ADVANCED_BY == 0:
            advanced(ADVANCED_BY)


def count_again(
    engine: sa.Engine, day: Day, advanced: Callable[[int], None], count: Callable[..., DayRecount]
) -> CountedAgain:
    """Returns the second count of a day that is being closed, or why there is none: see `CountAgain`.

    `count` counts it, and is called with `advanced` by name. Raises LogsUnknown while Kafka does not answer.
    """
    try:
        outcome = count(engine, day, advanced=advanced)
    except (LogUnreadable, Unsupported) as error:
        return CountedAgain(why_not=str(error))
    differences = [str(difference) for difference in outcome.differences]
    return CountedAgain(outcome.records, outcome.series, "", differences, outcome.given)


def _require_logs(
    logs: Sequence[LogToRecount], topics: Mapping[str, str], options: Mapping[str, Any]
) -> None:
    """Raises LogUnreadable if a log does not exist any more, or is not in the configuration."""
    of_kafka = [log.part for log in logs if log.part.cluster != CLUSTER]
    if missing := sorted({part.topic for part in of_kafka} - topics.keys()):
        raise LogUnreadable(f"the configuration has no source for the topic {', '.join(missing)}")
    ends = read_ends(topics, of_kafka, options) if of_kafka else {}
    for log in logs:
        part = log.part
        if part in of_kafka and ends.get(part) is None:
            raise LogUnreadable(f"{part}: its log does not exist any more, or is in another cluster")
        if log.is_recounted:
            raise LogUnreadable(f"{part}: offsets of it were counted, and given to other records since")
        if any(stretch.body is None for stretch in log.stretches):
            raise LogUnreadable(f"{part}: a plan that it was counted by is not stored any more")


def _records(
    log: LogToRecount, day: Day, newest: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[int, Iterator[LogRecord], bool]:
    """Returns the first offset, the records from there on, and whether counting began there."""
    part = log.part
    if part.cluster == CLUSTER:
        lines = plain_lines(part.topic, part.topic_id, log.cut)
        of_file = (LogRecord(offset, None, line) for offset, line in lines if offset >= log.begin)
        return log.begin, of_file, True
    mappings = [
        stored_plan(stretch.body)["sources"].get(part.source) for stretch in log.stretches if stretch.body
    ]
    known_mappings = [mapping for mapping in mappings if mapping is not None]
    ahead_ms = max((mapping["future_ms_max"] for mapping in known_mappings), default=0)
    horizon_ms = max(
        (mapping["id"]["horizon_ms"] for mapping in known_mappings if "id" in mapping), default=0
    )
    since_ms = day.begin_s * 1000 - ahead_ms - 2 * horizon_ms
    plain = PlainLog(part.topic, part.number, options)
    reading = plain.start(log.begin, since_ms, log.cut)
    is_skipped = any(start < reading.kept <= until for start, until in log.skipped)
    if reading.timely <= reading.kept > max(log.begin, log.settled) and not is_skipped:
        raise LogUnreadable(f"{part}: the records before {reading.kept:,} were deleted after their retention")
    records = (LogRecord(*record) for record in plain.records(reading.first, log.cut))
    return reading.first, records, reading.first <= log.begin


def _joins(day: Day, inputs: RecountInputs) -> tuple[dict[str, str], list[str]]:
    """Returns the join of each meter that can be compared, and the names of the others."""
    meanings: dict[str, set[str]] = {}
    for body in {
        stretch.body for log in inputs.logs for stretch in log.stretches if stretch.body is not None
    }:
        for meter in stored_plan(body)["meters"]:
            meaning = {name: value for name, value in meter.items() if name != "renamed_from"}
            meanings.setdefault(meter["name"], set()).add(json.dumps(meaning, sort_keys=True))
    changed = sorted(name for name, variants in meanings.items() if len(variants) > 1)
    joins = {
        meter.name: meter.join
        for meter in day.meters
        if not any(meter.name == name or meter.name.startswith(f"{name} (") for name in changed)
    }
    return joins, changed


def _given(day: Day, inputs: RecountInputs, counted: RecountedDay) -> Iterator[str]:
    """Yields what was taken as given, besides the plans."""
    for log in inputs.logs:
        for start, until in log.skipped:
            yield f"{log.part}: the offsets from {start:,} to {until:,}, which an operator has skipped"
    if inputs.why_not_late:
        yield f"what is booked late of earlier days: {inputs.why_not_late} meanwhile"
    for name, sentence in GIVEN.items():
        if counted.given[name]:
            yield f"{sentence}: {counted.given[name]:,}"
    for name in sorted(counted.dependent_formats):
        yield (
            f"the values in records of the format {name}: the second count has no separate reader for it, "
            "and reads by the counter's"
        )
    believed = sum(number for series, number in inputs.moved.items() if series[0] == "caller")
    if believed:
        yield f"requests that count although denied in the log, as no lock was in force: {believed:,}"
    # A day that is being closed has no origin yet, and all verdicts.
    disbelieved = json.loads(day.given)["given"]["disbelieved_verdicts"] if day.given else 0
    if disbelieved and not inputs.moved:
        yield f"requests that count although denied, of which callers is not stored any more: {disbelieved:,}"
    overflow = sum(
        sum(amounts.get("requests", (0, 0)))
        for (grouping, name, _), amounts in inputs.frozen.items()
        if grouping == "caller" and name in ("overflow:", "folded:")
    )
    if overflow:
        yield f"requests that are counted without the name of their caller: {overflow:,}"
