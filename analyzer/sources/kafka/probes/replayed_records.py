"""Records of a topic, read again between two offsets without a consumer group."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from analyzer.kernel.errors import LogUnreadable
from analyzer.kernel.model import Partition, RecordColumns, Records
from analyzer.sources.batches.codecs import Decompressor
from analyzer.sources.batches.record_batches import decode_batches
from analyzer.sources.batches.record_decoder import concatenate
from analyzer.sources.kafka.client import KafkaClient
from analyzer.sources.kafka.connection_errors import ConnectionTrouble
from analyzer.sources.kafka.fetched_batches import FetchedPartition, UnreadablePartition
from analyzer.sources.kafka.options import Options, probe_options

SILENCE_S_MAX = 30.0  # without anything new of the partition
READ_TOGETHER = 2_000  # records of small batches: every column of a count has a fixed cost


class LogTimes(NamedTuple):
    """The first offset of a log, and the first ones at or behind some times; -1: there is none."""

    kept: int
    at: Sequence[int]


def log_times(part: Partition, times_ms: Sequence[int], options: Options) -> LogTimes:
    """Returns the offsets at which times begin, by the Kafka times of the records. Raises LogUnreadable."""
    tp = TopicPartition(part.topic, part.number)
    client_options = probe_options(options)
    try:
        with closing(KafkaConsumer(**client_options)) as consumer:
            consumer.assign([tp])
            kept = consumer.beginning_offsets([tp])[tp]
            offsets = [consumer.offsets_for_times({tp: max(0, at_ms)})[tp] for at_ms in times_ms]
    except (KafkaError, ValueError) as error:
        raise LogUnreadable(f"{part}: {error!r}") from error
    return LogTimes(kept, [-1 if entry is None else entry.offset for entry in offsets])


def logged_records(
    part: Partition,
    begin: int,
    end: int,
    skipped: Sequence[tuple[int, int]],
    options: Options,
    batch_bytes_max: int,
    uptime_s: Callable[[], float] = time.monotonic,
) -> Iterator[Records]:
    """Yields the committed records of [begin, end), without those that an operator let the partition skip.

    The topic is asked for by its id: another one of that name does not answer. Raises LogUnreadable.
    """
    tp, offset = TopicPartition(part.topic, part.number), begin
    client_options = probe_options(options)
    decompressor = Decompressor(batch_bytes_max)
    try:
        with closing(KafkaClient([part.topic], client_options)) as client:
            client.assign([tp])
            offset = _behind(skipped, begin)
            if offset > begin and begin < end:
                yield Records.of(part, begin, min(offset, end), [])
            client.resume(tp, offset, part.topic_id)
            moved_s = uptime_s()
            while offset < end:
                for fetched in client.poll(0.2):
                    if isinstance(fetched, UnreadablePartition):
                        raise LogUnreadable(f"{part}: {fetched.gap.why}")
                    if fetched.start != offset:
                        continue  # fetched before a gap was skipped
                    until = next(
                        (start for start, _ in skipped if offset <= start < fetched.next), fetched.next
                    )
                    yield from _decoded(part, fetched, min(until, end), decompressor)
                    moved_s, offset = uptime_s(), min(until, end)
                    if (behind := _behind(skipped, offset)) > offset:
                        yield Records.of(part, offset, min(behind, end), [])
                        offset = behind
                        client.resume(tp, offset, part.topic_id)
                if uptime_s() > moved_s + SILENCE_S_MAX:
                    raise LogUnreadable(f"{part}: nothing was read for {SILENCE_S_MAX:.0f} s")
    except (KafkaError, ConnectionTrouble, ValueError) as error:
        raise LogUnreadable(f"{part}: {error!r}") from error


def _behind(skipped: Sequence[tuple[int, int]], offset: int) -> int:
    """Returns where to continue at an offset that may be skipped."""
    return max((until for start, until in skipped if start <= offset < until), default=offset)


def _decoded(
    part: Partition, fetched: FetchedPartition, end: int, decompressor: Decompressor
) -> Iterator[Records]:
    """Yields the records of a fetch that lie before `end`, up to it."""
    offset, pending, number = fetched.start, list[RecordColumns](), 0
    for batch in decode_batches(fetched.raw, fetched.start, fetched.aborted, decompressor):
        if batch.status != "ok":
            raise LogUnreadable(f"{part}: the batch at offset {batch.base:,} cannot be read: {batch.status}")
        pending.append(batch.records)
        number += len(batch.records.values)
        if number >= READ_TOGETHER and batch.next > offset:
            yield _before(Records(part, offset, batch.next, concatenate(pending)), end)
            offset, pending, number = batch.next, [], 0
        if offset >= end:
            return
    if offset < fetched.next:
        yield _before(Records(part, offset, fetched.next, concatenate(pending)), end)


def _before(records: Records, end: int) -> Records:
    if records.next <= end:
        return records
    columns = records.columns
    kept = columns.only([offset < end for offset in columns.offsets])
    return records._replace(next=end, columns=kept)
