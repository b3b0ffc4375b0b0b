"""Decodes the record batches of a record set (magic 2, KIP-98), each completely or not at all.

A Kafka client makes several Python objects of each record. Here a record is an offset, a timestamp and a
value in three lists. docs/spec/counter.md says what is read of the format, and what is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress
from typing import NamedTuple

from crc32c import crc32c

from analyzer.kernel.model import FeedStatus, RecordColumns
from analyzer.sources.batches.batch_header import (
    CHECKED_AT,
    CODEC_MASK,
    CONTROL,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    header_at,
    read_header,
)
from analyzer.sources.batches.codecs import DamagedError, Decompressor, TooLargeError
from analyzer.sources.batches.record_decoder import is_abort_marker, read_records

OFFSET_MAX = 2**63 - 1
RECORD_BYTES_MIN = 7
# Bytes that even the smallest record takes as Python objects: bounds the records of a batch.
RECORD_OBJECT_BYTES = 256
NO_RECORDS = RecordColumns([], [], [], 0)


class DecodedBatch(NamedTuple):
    """The records of one batch that count, or why the batch is refused.

    `next` is the offset after the batch; -1 where the header does not say it credibly.
    """

    base: int
    next: int
    records: RecordColumns
    status: FeedStatus = "ok"


def decode_batches(
    raw: bytes, start: int, aborted: Sequence[tuple[int, int]], decompressor: Decompressor
) -> Iterator[DecodedBatch]:
    """Yields the batches of `raw` with their records at or after offset `start`.

    Ends after the first batch that is refused, or before a last one that the fetch cut off. Control batches
    and batches of aborted transactions have no records; `aborted` are the aborted transactions of the fetch
    as (producer id, first offset).
    """
    not_begun = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
    aborting: set[int] = set()  # producers inside an aborted transaction
    position = 0
    while (header := header_at(raw, position)) is not None:
        size = header.size_bytes
        end = position + size
        if header.length < 0 or (end <= len(raw) and header.magic == MAGIC and size < HEADER_BYTES):
            yield DecodedBatch(header.base_offset, -1, NO_RECORDS, "corrupt")
            return
        if end > len(raw):
            return
        if header.magic != MAGIC:
            yield DecodedBatch(header.base_offset, -1, NO_RECORDS, "unsupported")
            return
        next_offset = header.next_offset
        while not_begun and not_begun[-1][1] < next_offset:
            aborting.add(not_begun.pop()[0])
        batch = _decode(header, memoryview(raw)[position:end], start, aborting, decompressor)
        yield batch
        if batch.status != "ok":
            return
        position = end


def intact_batch(raw: bytes, position: int) -> tuple[BatchHeader, int] | None:
    """Returns the header of the batch at byte `position` and where it ends, or None unless it is complete
    and its checksum is right."""
    if len(raw) - position < HEADER_BYTES:
        return None
    header = read_header(raw, position)
    end = position + header.size_bytes
    if header.magic != MAGIC or not position + HEADER_BYTES <= end <= len(raw):
        return None
    if header.base_offset < 0 or header.last_offset_delta < 0:
        return None
    return (header, end) if crc32c(memoryview(raw)[position + CHECKED_AT : end]) == header.checksum else None


def _decode(  # noqa: PLR0911 - each return is one kind of batch
    header: BatchHeader, batch: memoryview, start: int, aborting: set[int], decompressor: Decompressor
) -> DecodedBatch:
    """Decodes one batch; takes its producer out of `aborting` where an aborted transaction ends."""
    base, next_offset = header.base_offset, header.next_offset
    if base < 0 or header.last_offset_delta < 0 or next_offset > OFFSET_MAX:
        return DecodedBatch(base, -1, NO_RECORDS, "corrupt")
    if crc32c(batch[CHECKED_AT:]) != header.checksum:
        return DecodedBatch(base, next_offset, NO_RECORDS, "corrupt")
    data, codec = batch[HEADER_BYTES:], header.attributes & CODEC_MASK
    if header.attributes & CONTROL:
        if not codec and is_abort_marker(bytes(data), header.record_count, header.last_offset_delta):
            aborting.discard(header.producer_id)
        return DecodedBatch(base, next_offset, NO_RECORDS)
    if next_offset <= start or (header.attributes & TRANSACTIONAL and header.producer_id in aborting):
        return DecodedBatch(base, next_offset, NO_RECORDS)
    try:
        records = _records(header, decompressor.decompress(codec, data), decompressor.bytes_max)
    except TooLargeError:
        return DecodedBatch(base, next_offset, NO_RECORDS, "too-large")
    except DamagedError:
        return DecodedBatch(base, next_offset, NO_RECORDS, "corrupt")
    except KeyError:
        return DecodedBatch(base, next_offset, NO_RECORDS, "unsupported")
    return DecodedBatch(base, next_offset, records if base >= start else _from_offset(start, records))


def _records(header: BatchHeader, plain: bytes, bytes_max: int) -> RecordColumns:
    """Returns the records in the decompressed bytes. Raises DamagedError, TooLargeError."""
    count = header.record_count
    if count * RECORD_BYTES_MIN > len(plain):
        raise DamagedError
    if count * RECORD_OBJECT_BYTES > bytes_max:
        raise TooLargeError
    records = read_records(plain, count, header.last_offset_delta, header.base_offset, header.base_ms)
    if header.attributes & LOG_APPEND_TIME:
        return records._replace(kafka_ms=[header.max_ms] * count)
    return records


def _from_offset(start: int, records: RecordColumns) -> RecordColumns:
    """Returns the records at or after offset `start`."""
    mask = [offset >= start for offset in records.offsets]
    offsets, kafka_ms, values, size_bytes = records
    return RecordColumns(
        list(compress(offsets, mask)),
        list(compress(kafka_ms, mask)),
        list(compress(values, mask)),
        size_bytes,
    )
