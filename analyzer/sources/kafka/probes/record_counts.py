"""Counts the records that Kafka has between two offsets, to compare them with what analyzers have seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from kafka import TopicPartition
from kafka.errors import KafkaError

from analyzer.kernel.errors import LogUnreadable
from analyzer.kernel.model import Partition
from analyzer.sources.kafka.client import connect
from analyzer.sources.kafka.connection_errors import ConnectionTrouble
from analyzer.sources.kafka.options import Options, probe_options
from analyzer.sources.kafka.probes.plain_records import plain_records

Range = tuple[int, int]  # offsets from the first one to before the second one


class RecordCount(NamedTuple):
    """The records of a partition that Kafka has.

    Attributes:
        first: The first offset that was read: later than the wanted one where retention has deleted records.
        records: How many there are from there on, without markers of transactions and aborted records.
    """

    first: int
    records: int


def count_records(
    part: Partition, begin: int, end: int, skipped: Sequence[Range], options: Options
) -> RecordCount:
    """Returns the records from `begin` to before `end` that are in none of the `skipped` ranges.

    Reads committed records, one partition at a time, without a consumer group, and decodes them by
    kafka-python alone. Raises LogUnreadable.
    """
    tp = TopicPartition(part.topic, part.number)
    try:
        options = probe_options({**options, "fetch_min_bytes": 1})
        with closing(connect(options).public) as consumer:
            consumer.assign([tp])
            first = max(begin, consumer.beginning_offsets([tp])[tp])
            return RecordCount(
                first,
                sum(
                    1
                    for start, until in _readable(first, end, skipped)
                    for _ in plain_records(consumer, tp, start, until)
                ),
            )
    except (ConnectionTrouble, ValueError) as error:
        raise LogUnreadable(str(error)) from error
    except KafkaError as error:
        raise LogUnreadable(f"{part}: {error!r}") from error


def _readable(first: int, end: int, skipped: Sequence[Range]) -> Iterator[Range]:
    """Yields what is left of the offsets from `first` to `end` without the skipped ones."""
    for start, until in sorted(skipped):
        if first < min(start, end):
            yield first, min(start, end)
        first = max(first, until)
    if first < end:
        yield first, end
