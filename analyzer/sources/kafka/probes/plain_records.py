"""Records of a partition as kafka-python's consumer gives them, for a count that shares no code with ours."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from analyzer.kernel.errors import LogUnreadable
from analyzer.sources.kafka.options import Options, probe_options

SILENCE_S_MAX = 30.0  # without anything new of the partition
EARLIER_OFFSETS = 10_000  # read in front of the wanted time in any case: ids are remembered while few come


class PlainRecord(NamedTuple):
    """A record of a topic."""

    offset: int
    kafka_ms: int
    value: bytes | None


class PlainStart(NamedTuple):
    """The offset at which reading begins.

    Attributes:
        kept: The first offset of the log, or the one asked for.
        timely: The first offset with a time in Kafka from the wanted one on.
        first: The offset to read from.
    """

    kept: int
    timely: int
    first: int


class PlainLog:
    """The committed records of a partition from a time on, without a consumer group.

    Args:
        topic: Its topic.
        number: Of the partition.
        options: Of kafka-python's consumer.
    """

    def __init__(self, topic: str, number: int, options: Options) -> None:
        self._at = TopicPartition(topic, number)
        self._options = probe_options({**options, "fetch_min_bytes": 1})

    def start(self, begin: int, since_ms: int, end: int) -> PlainStart:
        """Returns where to read from, at or behind `begin`, for the records with a time from `since_ms` on.

        Raises LogUnreadable.
        """
        try:
            with closing(KafkaConsumer(**self._options)) as consumer:
                consumer.assign([self._at])
                kept = max(begin, consumer.beginning_offsets([self._at])[self._at])
                first_timely = consumer.offsets_for_times({self._at: max(0, since_ms)})[self._at]
        except (KafkaError, ValueError) as error:
            raise LogUnreadable(f"{self._at.topic}[{self._at.partition}]: {error!r}") from error
        timely = end if first_timely is None else min(first_timely.offset, end)
        return PlainStart(kept, timely, max(kept, timely - EARLIER_OFFSETS))

    def records(self, first: int, end: int) -> Iterator[PlainRecord]:
        """Yields the committed records from `first` to before `end`. Raises LogUnreadable."""
        try:
            with closing(KafkaConsumer(**self._options)) as consumer:
                consumer.assign([self._at])
                yield from plain_records(consumer, self._at, first, end)
        except KafkaError as error:
            raise LogUnreadable(f"{self._at.topic}[{self._at.partition}]: {error!r}") from error


def plain_records(consumer: KafkaConsumer, tp: TopicPartition, first: int, end: int) -> Iterator[PlainRecord]:
    """Yields the committed records of the assigned `tp` from `first` to before `end`.

    Raises KafkaError, and LogUnreadable after a silence.
    """
    consumer.seek(tp, first)
    moved_s, position = time.monotonic(), first
    while position < end:
        for record in consumer.poll(timeout_ms=200).get(tp, ()):
            if record.offset < end:
                yield PlainRecord(record.offset, record.timestamp, record.value)
        previous, position = position, consumer.position(tp)
        if position > previous:
            moved_s = time.monotonic()
        elif time.monotonic() > moved_s + SILENCE_S_MAX:
            raise LogUnreadable(f"{tp.topic}[{tp.partition}]: nothing was read for {SILENCE_S_MAX:.0f} s")
