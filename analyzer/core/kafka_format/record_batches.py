"""Reads Kafka's record batches (magic 2, KIP-98) out of raw bytes, each whole or not at all.

A client makes several Python objects for each record; here a record is an offset, a time and its value,
in three lists. What is read of the format, and what is refused, stands in docs/counter.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import NamedTuple

from crc32c import crc32c

from analyzer.core.kafka_format.codecs import DamagedError, Decompressor, TooLargeError
from analyzer.core.kafka_format.record_decoder import RecordColumns, is_abort, read_records
from analyzer.core.model import FeedStatus

# base offset, length, leader epoch, magic | checksum, attributes, offset of the last record from the base,
# first time, greatest time, producer id, epoch and sequence, records
HEAD = struct.Struct(">qiib")
REST = struct.Struct(">IhiqqqhiI")
HEAD_BYTES = HEAD.size + REST.size
MAGIC = 2
LENGTH_AT = 12  # a batch's length counts from here
CHECKED_AT = 21  # and its checksum from here
OFFSET_MAX = 2**63 - 1

CODEC, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20

RECORD_BYTES_MIN = 7
# A batch may hold a record for each so many bytes of its bound: as an object, even the smallest takes that.
RECORD_OBJECT_BYTES = 256
NO_RECORDS = RecordColumns([], [], [], 0)


class BatchHeader(NamedTuple):
    """What a batch says of itself."""

    base: int
    crc: int
    attributes: int
    delta: int  # of the last record
    first_ms: int
    greatest_ms: int
    producer: int
    epoch: int
    sequence: int
    records: int

    @property
    def next(self) -> int:
        return self.base + self.delta + 1


class DecodedBatch(NamedTuple):
    """One batch: where the next one begins, and the records that count, unless it is refused."""

    base: int
    next: int
    frames: RecordColumns
    status: FeedStatus = "ok"


def decode_batches(
    raw: bytes, start: int, aborted: Sequence[tuple[int, int]], unpacker: Decompressor
) -> Iterator[DecodedBatch]:
    """The batches of one record set with their records at or after `start`, up to the first batch that is
    refused, or that the fetch cut off.

    Control batches and batches of aborted transactions have no records. `aborted` is what the fetch said:
    (producer id, first offset).
    """
    to_come = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
    aborting: set[int] = set()  # producers inside an aborted transaction
    at = 0
    while len(raw) - at >= HEAD.size:
        base, length, _epoch, magic = HEAD.unpack_from(raw, at)
        end = at + LENGTH_AT + length
        if length < 0 or (end <= len(raw) and magic == MAGIC and end - at < HEAD_BYTES):
            yield DecodedBatch(base, -1, NO_RECORDS, "corrupt")
            return
        if end > len(raw):
            return
        if magic != MAGIC:
            yield DecodedBatch(base, -1, NO_RECORDS, "unsupported")
            return
        head = BatchHeader(base, *REST.unpack_from(raw, at + HEAD.size))
        while to_come and to_come[-1][1] < head.next:
            aborting.add(to_come.pop()[0])
        batch = _read(head, memoryview(raw)[at:end], start, aborting, unpacker)
        yield batch
        if batch.status != "ok":
            return
        at = end


def intact_batch(raw: bytes, at: int) -> tuple[BatchHeader, int] | None:
    """The batch at `at` with where the next one begins, if it is whole and its checksum right."""
    if len(raw) - at < HEAD_BYTES:
        return None
    base, length, _epoch, magic = HEAD.unpack_from(raw, at)
    end = at + LENGTH_AT + length
    if magic != MAGIC or not at + HEAD_BYTES <= end <= len(raw):
        return None
    head = BatchHeader(base, *REST.unpack_from(raw, at + HEAD.size))
    whole = base >= 0 and head.delta >= 0 and crc32c(memoryview(raw)[at + CHECKED_AT : end]) == head.crc
    return (head, end) if whole else None


def _read(  # noqa: PLR0911 - each way out is a kind of batch
    head: BatchHeader, batch: memoryview, start: int, aborting: set[int], unpacker: Decompressor
) -> DecodedBatch:
    """One batch; takes its producer out of `aborting` where the transaction ends."""
    if head.base < 0 or head.delta < 0 or head.next > OFFSET_MAX:
        return DecodedBatch(head.base, -1, NO_RECORDS, "corrupt")
    if crc32c(batch[CHECKED_AT:]) != head.crc:
        return DecodedBatch(head.base, head.next, NO_RECORDS, "corrupt")
    data = batch[HEAD_BYTES:]
    if head.attributes & CONTROL:
        if not head.attributes & CODEC and is_abort(bytes(data), head.records, head.delta):
            aborting.discard(head.producer)
        return DecodedBatch(head.base, head.next, NO_RECORDS)
    if head.next <= start or (head.attributes & TRANSACTIONAL and head.producer in aborting):
        return DecodedBatch(head.base, head.next, NO_RECORDS)
    try:
        frames = _frames(head, unpacker.unpack(head.attributes & CODEC, data), unpacker.bytes_max)
    except TooLargeError:
        return DecodedBatch(head.base, head.next, NO_RECORDS, "too-large")
    except DamagedError:
        return DecodedBatch(head.base, head.next, NO_RECORDS, "corrupt")
    except KeyError:
        return DecodedBatch(head.base, head.next, NO_RECORDS, "unsupported")
    return DecodedBatch(head.base, head.next, frames if head.base >= start else _from(start, frames))


def _frames(head: BatchHeader, plain: bytes, bytes_max: int) -> RecordColumns:
    if head.records * RECORD_BYTES_MIN > len(plain):
        raise DamagedError
    if head.records * RECORD_OBJECT_BYTES > bytes_max:
        raise TooLargeError
    frames = read_records(plain, head.records, head.delta, head.base, head.first_ms)
    if head.attributes & LOG_APPEND_TIME:
        return frames._replace(kafka_ms=[head.greatest_ms] * head.records)
    return frames


def _from(start: int, frames: RecordColumns) -> RecordColumns:
    wanted = [offset >= start for offset in frames.offsets]
    offsets, kafka_ms, values, size = frames
    return RecordColumns(
        list(compress(offsets, wanted)),
        list(compress(kafka_ms, wanted)),
        list(compress(values, wanted)),
        size,
    )
