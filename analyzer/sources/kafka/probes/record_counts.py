"""Counts the records that Kafka has between two offsets, to compare them with what analyzers have seen."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kafka import TopicPartition
from kafka.errors import KafkaError

from analyzer.kernel.errors import LogUnreadable
from analyzer.kernel.model import Partition
from analyzer.sources.kafka.client import KafkaClient, UnreadablePartition
from analyzer.sources.kafka.connection_errors import ConnectionTrouble
from analyzer.sources.kafka.internals.features import supported_features
from analyzer.sources.kafka.options import Options, consumer_options

CONNECT_MS = 3_000
SILENCE_S_MAX = 30.0  # without an answer for the partition

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

    Reads committed records, one partition at a time, without a consumer group. Raises LogUnreadable.
    """
    tp = TopicPartition(part.topic, part.number)
    try:
        options = consumer_options({"bootstrap_timeout_ms": CONNECT_MS, **options, "fetch_min_bytes": 1})
        client = KafkaClient(
            [part.topic], options, raw=False, features=supported_features(), uptime_s=time.monotonic
        )
    except (KafkaError, ConnectionTrouble, ValueError) as error:
        raise LogUnreadable(str(error)) from error
    try:
        first = max(begin, client.begins([tp])[tp])
        client.assign([tp])
        client.pause([tp])
        records = sum(_count(client, part, *span) for span in _readable(first, end, skipped))
        return RecordCount(first, records)
    except KafkaError as error:
        raise LogUnreadable(f"{part}: {error!r}") from error
    finally:
        client.close()


def _readable(first: int, end: int, skipped: Sequence[Range]) -> Iterator[Range]:
    """Yields what is left of the offsets from `first` to `end` without the skipped ones."""
    for start, until in sorted(skipped):
        if first < min(start, end):
            yield first, min(start, end)
        first = max(first, until)
    if first < end:
        yield first, end


def _count(client: KafkaClient, part: Partition, first: int, end: int) -> int:
    tp, records, answered_s = TopicPartition(part.topic, part.number), 0, time.monotonic()
    client.resume(tp, first, part.topic_id)
    while True:
        for fetched in client.poll(0.1):
            if isinstance(fetched, UnreadablePartition):
                raise LogUnreadable(f"{part}: {fetched.gap.why}")
            answered_s = time.monotonic()
            if not isinstance(fetched.content, bytes):
                records += sum(record.offset < end for record in fetched.content)
            if fetched.next >= end:
                client.pause([tp])
                return records
        if time.monotonic() > answered_s + SILENCE_S_MAX:
            raise LogUnreadable(f"{part}: nothing was read for {SILENCE_S_MAX:.0f} s")
