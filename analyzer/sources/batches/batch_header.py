"""The header of a record batch (magic 2, KIP-98): the only code that knows its layout.

    byte  field
    0     base offset
    8     length of everything after this field
    12    leader epoch
    16    magic
    17    CRC-32C of everything after this field
    21    attributes: codec, kind of timestamp, transactional, control
    23    last offset, relative to the base offset
    27    base timestamp
    35    maximum timestamp
    43    producer id
    51    producer epoch
    53    base sequence
    57    number of records

Everything is big-endian. The broker sets the base offset and the leader epoch when it appends a batch, so
the checksum does not cover them. All older formats have their magic at byte 16, too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

HEADER = struct.Struct(">qiibIhiqqqhiI")
HEADER_BYTES = HEADER.size
MAGIC = 2
LENGTH_END = 12
MAGIC_AT = 16
CHECKED_AT = 21
NO_LEADER_EPOCH = -1

CODEC_MASK, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20


class BatchHeader(NamedTuple):
    """The fields of a batch header, unchecked: a damaged header may hold any numbers."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    checksum: int
    attributes: int
    last_offset_delta: int
    base_ms: int
    max_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole batch, header included."""
        return LENGTH_END + self.length

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1


def read_header(raw: bytes, position: int = 0) -> BatchHeader:
    """Returns the header at byte `position`. Raises struct.error for fewer than `HEADER_BYTES` bytes.

    >>> read_header((7).to_bytes(8, "big") + bytes(53)).base_offset
    7
    """
    return BatchHeader._make(HEADER.unpack_from(raw, position))


def header_at(raw: bytes, position: int = 0) -> BatchHeader | None:
    """Returns the header at byte `position`, or None where `raw` ends before its magic.

    Bytes that are missing at the end of `raw` read as zero: a batch of an older format may be shorter than
    this header, and is still recognised by its magic.
    """
    if len(raw) - position >= HEADER_BYTES:
        return BatchHeader._make(HEADER.unpack_from(raw, position))
    if len(raw) - position <= MAGIC_AT:
        return None
    return read_header(raw[position:].ljust(HEADER_BYTES, b"\0"))


class BatchSpan(NamedTuple):
    """The extent of consecutive batches, by their headers."""

    size_bytes: int  # of complete batches: Kafka may cut the last one short, but never the first
    next: int
    leader_epoch: int  # of the last batch
    last_ms: int | None


def batch_span(raw: bytes, start: int) -> BatchSpan:
    """Returns how far the batches in `raw` reach from offset `start`, by their headers alone.

    An implausible header ends the walk, but `size_bytes` includes all bytes after it: the counter must see
    the damaged batch, or its records would be skipped unnoticed.
    """
    position, next_offset, leader_epoch, last_ms = 0, start, NO_LEADER_EPOCH, -1
    while len(raw) - position >= HEADER_BYTES:
        # Without a BatchHeader, which would cost as much as the rest of the loop.
        base, length, epoch, magic, _, _, last, _, max_ms, _, _, _, _ = HEADER.unpack_from(raw, position)
        end = position + LENGTH_END + length
        if magic != MAGIC or end - position < HEADER_BYTES or last < 0:
            position = len(raw)
            break
        if end > len(raw):
            if position == 0:
                return BatchSpan(len(raw), start, NO_LEADER_EPOCH, None)
            break
        position = end
        # A compacted batch keeps the offset of its last record even when that record is gone.
        next_offset = max(next_offset, base + last + 1)
        leader_epoch, last_ms = epoch, max_ms
    return BatchSpan(position, next_offset, leader_epoch, last_ms if last_ms >= 0 else None)


def split_batches(raw: bytes, records_max: int) -> Iterator[bytes]:
    """Yields the batches of `raw` in pieces of at most `records_max` records, a single larger batch alone.

    The pieces joined are `raw`. All after an implausible header stays in one piece, as in `batch_span`.
    """
    begin = position = records = 0
    while len(raw) - position >= HEADER_BYTES:
        _, length, _, magic, _, _, last, _, _, _, _, _, count = HEADER.unpack_from(raw, position)
        end = position + LENGTH_END + length
        if magic != MAGIC or end - position < HEADER_BYTES or last < 0 or end > len(raw):
            break
        if records and records + count > records_max:
            yield raw[begin:position]
            begin, records = position, 0
        position, records = end, records + count
    yield raw[begin:]
