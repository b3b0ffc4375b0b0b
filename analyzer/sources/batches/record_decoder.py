"""Decodes the records of one decompressed batch into columns.

A record (KIP-98) is a sequence of fields, most of them varints: signed numbers in zigzag, seven bits a byte,
the low bits first, the highest bit set where another byte follows.

    length | attributes (1 byte) | timestamp delta | offset delta | key length | key |
    value length | value | number of headers | headers

Decoding a record byte by byte takes 2.5 microseconds in Python, several times as long as all other work on
it; the method below takes 0.35. Consecutive records mostly have the same shape: the width in bytes of each
varint, and the length of the key. For a known shape everything in front of the value, here called the
prefix, has a fixed layout, so one call of `struct.unpack_from` reads it: a varint of one byte as an unsigned
byte, one of two bytes as an unsigned little-endian short. A table then gives what the stored number means:

    width 1: table[0x0c] == 6               width 2: table[0x0281] == -129, stored as the bytes 81 02

A table holds None for a number that is not a varint of its width: 0x81 in width 1 says that a second byte
follows. Calculating with None raises TypeError, so a record of another shape is noticed without a test.
The length of the record must agree with its parts as well, and it must have no headers. A record that fails
any of this is decoded byte by byte, and its widths are tried as the shape of the next one. Damage is detected
there and after the last record, never by the shape: the tables affect the speed, not the result.

No other code loops over single records. A quarter of the time of counting is spent in `read_records`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

from analyzer.kernel.model import RecordColumns
from analyzer.sources.batches.codecs import DamagedError

ABORT_TYPE = b"\x00\x00"  # in the key of a control record, after two bytes of version
# Records decoded at a time: hostile records grow dozens of times larger as Python objects.
CHUNK_RECORDS, CHUNK_BYTES = 10_000, 4 << 20
KEY_BYTES_MAX = 63  # the longest key whose length is a varint of one byte
NULL = 1  # the length -1 in zigzag: a key or a value that is missing


class PrefixUnpackers(dict[int, tuple[Any, int]]):
    """Maps the stored length of a key to the function that unpacks a prefix with such a key, and its size.

    `widths` are those of the record's length, timestamp delta, offset delta and value length.
    """

    def __init__(self, widths: tuple[int, int, int, int]) -> None:
        super().__init__()
        self._formats = ["BH"[width - 1] for width in widths]

    def __missing__(self, key: int) -> tuple[Any, int]:
        if key != NULL and (key & 1 or key > KEY_BYTES_MAX << 1):
            raise IndexError
        length, timestamp, offset, size = self._formats
        prefix = struct.Struct(f"<{length}x{timestamp}{offset}B{0 if key == NULL else key >> 1}x{size}")
        self[key] = prefix.unpack_from, prefix.size
        return self[key]


class PrefixShape(NamedTuple):
    """The widths of the varints in a prefix: unpackers for them, and a table for each varint.

    The tables of lengths, offsets and sizes hold None for negative numbers.
    """

    unpackers: PrefixUnpackers
    length_bytes: int
    lengths: list[Any]
    timestamps: list[Any]
    offsets: list[Any]
    sizes: list[Any]


class DecodedRecord(NamedTuple):
    """A record that was decoded byte by byte."""

    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    value: bytes | None
    end: int
    widths: tuple[int, int, int, int]  # as for `PrefixUnpackers`


def concatenate(parts: Sequence[RecordColumns]) -> RecordColumns:
    """Returns the records of several batches as one."""
    if len(parts) == 1:
        return parts[0]
    return RecordColumns(
        list(chain.from_iterable(part.offsets for part in parts)),
        list(chain.from_iterable(part.kafka_ms for part in parts)),
        list(chain.from_iterable(part.values for part in parts)),
        sum(part.size_bytes for part in parts),
    )


def chunked(records: RecordColumns) -> Iterator[RecordColumns]:
    """Yields the records in pieces of at most `CHUNK_RECORDS` and about `CHUNK_BYTES`."""
    if len(records.values) <= CHUNK_RECORDS and records.size_bytes <= CHUNK_BYTES:
        yield records
        return
    begin = size = 0
    for index, value in enumerate(records.values):
        size += len(value or b"")
        if index > begin and (size > CHUNK_BYTES or index - begin >= CHUNK_RECORDS):
            yield records.part(begin, index)
            begin, size = index, len(value or b"")
    yield records.part(begin, len(records.values))


def read_records(data: bytes, count: int, last_delta: int, base_offset: int, base_ms: int) -> RecordColumns:
    """Returns the `count` records that `data` consists of.

    Their offsets rise from `base_offset` to at most `base_offset + last_delta`. Raises DamagedError when the
    bytes contain anything else, such as a wrong length or a byte too many.
    """
    records = RecordColumns([], [], [], len(data))
    offsets, timestamps, values, _ = records
    # Offsets are mostly consecutive: a run of them is appended at once, when it ends before `expected`.
    position = expected = run = 0
    unpackers, length_bytes, lengths, timestamp_deltas, offset_deltas, sizes = _shape(2, 1, 1, 2)
    key, (unpack, prefix_bytes) = NULL, unpackers[NULL]
    for _ in range(count):
        try:
            length, timestamp_delta, offset_delta, key_size, size = unpack(data, position)
            if key_size != key:
                key, (unpack, prefix_bytes) = key_size, unpackers[key_size]
                length, timestamp_delta, offset_delta, key_size, size = unpack(data, position)
            begin = position + prefix_bytes
            end = begin + sizes[size]
            has_shape = (
                position + length_bytes + lengths[length] == end + 1
                and offset_deltas[offset_delta] == expected
                and not data[end]  # no headers
            )
            kafka_ms = base_ms + timestamp_deltas[timestamp_delta]
        except (TypeError, IndexError, struct.error):
            has_shape = False
        if has_shape:
            values.append(data[begin:end])
            position = end + 1
        else:
            record = _read_record(data, position)
            if record.offset_delta != expected:
                if record.offset_delta < expected:
                    raise DamagedError
                offsets += range(base_offset + run, base_offset + expected)
                run = expected = record.offset_delta
            kafka_ms, position = base_ms + record.timestamp_delta, record.end
            values.append(record.value)
            unpackers, length_bytes, lengths, timestamp_deltas, offset_deltas, sizes = _shape(*record.widths)
            key, (unpack, prefix_bytes) = NULL, unpackers[NULL]
        timestamps.append(kafka_ms)
        expected += 1
    offsets += range(base_offset + run, base_offset + expected)
    if position != len(data) or expected > last_delta + 1:
        raise DamagedError
    return records


def is_abort_marker(data: bytes, count: int, last_delta: int) -> bool:
    """Whether the records of a control batch are one abort marker: a key of a version and type 0.

    Data that cannot be decoded is not one, and is ignored like every other control record.
    """
    try:
        record = _read_record(data, 0)
    except DamagedError:
        return False
    is_valid = count == 1 and record.end == len(data) and 0 <= record.offset_delta <= last_delta
    return is_valid and record.key is not None and record.key[2:4] == ABORT_TYPE


def _read_record(data: bytes, position: int) -> DecodedRecord:
    """Decodes the record at byte `position`, of any shape. Raises DamagedError."""
    try:
        length, start = _read_varint(data, position)
        end = start + length
        timestamp_delta, after_timestamp = _read_varint(data, start + 1)  # behind the unused attributes
        offset_delta, after_offset = _read_varint(data, after_timestamp)
        key, after_key = _read_bytes(data, after_offset, end)
        value, after_value = _read_bytes(data, after_key, end)
        if length <= 0 or end > len(data) or _skip_headers(data, after_value, end) != end:
            raise DamagedError
    except IndexError:
        raise DamagedError from None
    size_bytes = after_value - after_key - (0 if value is None else len(value))
    widths = (start - position, after_timestamp - start - 1, after_offset - after_timestamp, size_bytes)
    return DecodedRecord(timestamp_delta, offset_delta, key, value, end, widths)


def _read_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    """Returns the bytes behind their length at `position`, None for the length -1, and where they end."""
    size, position = _read_varint(data, position)
    if size == -1:
        return None, position
    if size < 0 or position + size > end:
        raise DamagedError
    return data[position : position + size], position + size


def _skip_headers(data: bytes, position: int, end: int) -> int:
    """Returns where the headers end."""
    count, position = _read_varint(data, position)
    if count < 0:
        raise DamagedError
    for _ in range(count):
        name, position = _read_bytes(data, position, end)
        if name is None:
            raise DamagedError
        _, position = _read_bytes(data, position, end)
    return position


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Returns the signed number of at most ten bytes and 64 bits at `position`, and where it ends."""
    number = shift = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
        if shift > 63:
            raise DamagedError
    return _from_zigzag(number & 2**64 - 1), position


def _from_zigzag(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


@cache
def _varint_tables(width: int) -> tuple[list[int | None], list[int | None]]:
    """Returns what each stored number of `width` bytes means as a varint: all, and those not negative."""
    if width == 1:
        signed = [_from_zigzag(n) if n < 128 else None for n in range(256)]
    else:
        # Little-endian: the first byte is the low one, and its highest bit says that a second one follows.
        signed = [None] * 65536
        for high in range(128):
            for low in range(128):
                signed[high << 8 | low | 128] = _from_zigzag(high << 7 | low)
    return signed, [n if n is not None and n >= 0 else None for n in signed]


@cache
def _shape(length: int, timestamp: int, offset: int, size: int) -> PrefixShape:
    """Returns the shape with these widths; for varints too wide for tables the narrowest shape, which fails
    for the next record as well if that is as wide."""
    if max(length, timestamp, offset, size) > 2:
        return _shape(1, 1, 1, 1)
    return PrefixShape(
        PrefixUnpackers((length, timestamp, offset, size)),
        length,
        _varint_tables(length)[1],
        _varint_tables(timestamp)[0],
        _varint_tables(offset)[1],
        _varint_tables(size)[1],
    )
