"""The records inside one unpacked batch. The loop in `read_records` is the only one that goes through records
one by one; a quarter of all counting is spent in it."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

from analyzer.core.kafka_format.codecs import DamagedError

ABORT_TYPE = b"\x00\x00"  # of a control record's key, after two bytes of version
# What is made of records at a time; hostile ones become dozens of times as large as they were.
CHUNK_RECORDS, CHUNK_BYTES = 10_000, 4 << 20
KEY_BYTES_MAX = 63  # a key whose length is one byte
NULL = 1  # -1 in zigzag


class RecordColumns(NamedTuple):
    """Records, a list for each part of them. A missing Kafka time is None, and so is a tombstone's value."""

    offsets: list[int]
    kafka_ms: list[int | None]
    values: list[bytes | None]
    size_bytes: int  # of all values, or somewhat more

    def part(self, begin: int, end: int) -> RecordColumns:
        offsets, kafka_ms, values = self.offsets[begin:end], self.kafka_ms[begin:end], self.values[begin:end]
        return RecordColumns(offsets, kafka_ms, values, self.size_bytes)


class PrefixUnpackers(dict[int, tuple[Any, int]]):
    """How a head is unpacked, and how long it is, by the length of its key as it is stored. The widths are
    those of the numbers around the key: of the record's length, time, offset, and the value's length."""

    def __init__(self, widths: tuple[int, int, int, int]) -> None:
        super().__init__()
        self._letters = ["BH"[width - 1] for width in widths]

    def __missing__(self, key: int) -> tuple[Any, int]:
        if key != NULL and (key & 1 or key > KEY_BYTES_MAX << 1):
            raise IndexError
        length, time, offset, size = self._letters
        head = struct.Struct(f"<{length}x{time}{offset}B{0 if key == NULL else key >> 1}x{size}")
        self[key] = head.unpack_from, head.size
        return self[key]


class PrefixShape(NamedTuple):
    """How wide the numbers of a record's head are. Records that follow each other mostly have one shape, so
    a head is read by one `unpack_from` and some tables instead of byte by byte.

    A table gives what a stored number means, and None where the bytes are no number of this width: using
    that raises TypeError, which is how the loop learns that it met another shape.
    """

    heads: PrefixUnpackers
    length_bytes: int
    lengths: list[Any]
    times: list[Any]
    offsets: list[Any]
    sizes: list[Any]


class DecodedRecord(NamedTuple):
    """One record, read byte by byte."""

    time_delta: int
    offset_delta: int
    key: bytes | None
    value: bytes | None
    end: int
    widths: tuple[int, int, int, int]  # of its length, time, offset, and its value's length


def concatenate(each: Sequence[RecordColumns]) -> RecordColumns:
    """All records of several batches as of one."""
    if len(each) == 1:
        return each[0]
    return RecordColumns(
        list(chain.from_iterable(frames.offsets for frames in each)),
        list(chain.from_iterable(frames.kafka_ms for frames in each)),
        list(chain.from_iterable(frames.values for frames in each)),
        sum(frames.size_bytes for frames in each),
    )


def chunked(frames: RecordColumns) -> Iterator[RecordColumns]:
    """The same records in pieces that are not too much to be looked at together."""
    if len(frames.values) <= CHUNK_RECORDS and frames.size_bytes <= CHUNK_BYTES:
        yield frames
        return
    begin = size = 0
    for at, value in enumerate(frames.values):
        size += len(value or b"")
        if at > begin and (size > CHUNK_BYTES or at - begin >= CHUNK_RECORDS):
            yield frames.part(begin, at)
            begin, size = at, len(value or b"")
    yield frames.part(begin, len(frames.values))


def read_records(data: bytes, count: int, last: int, base: int, first_ms: int) -> RecordColumns:
    """The `count` records that `data` consists of, offsets rising from `base` to at most `base + last`.

    Raises DamagedError when the bytes say anything else: a length that lies, one byte too many.
    """
    frames = RecordColumns([], [], [], len(data))
    offsets, times, values, _ = frames
    at = expected = run = 0  # offsets are mostly one run of numbers: from `run` up to the one expected
    heads, length_bytes, lengths, time_deltas, offset_deltas, sizes = _shape(2, 1, 1, 2)
    key, (unpack, head) = NULL, heads[NULL]
    for _ in range(count):
        try:
            length, time_delta, offset_delta, key_size, size = unpack(data, at)
            if key_size != key:
                key, (unpack, head) = key_size, heads[key_size]
                length, time_delta, offset_delta, key_size, size = unpack(data, at)
            begin = at + head
            end = begin + sizes[size]
            usual = (
                at + length_bytes + lengths[length] == end + 1
                and offset_deltas[offset_delta] == expected
                and not data[end]  # no headers
            )
            kafka_ms = first_ms + time_deltas[time_delta]
        except (TypeError, IndexError, struct.error):
            usual = False
        if usual:
            values.append(data[begin:end])
            at = end + 1
        else:
            frame = _read_frame(data, at)
            if frame.offset_delta != expected:
                if frame.offset_delta < expected:
                    raise DamagedError
                offsets += range(base + run, base + expected)
                run = expected = frame.offset_delta
            kafka_ms, at = first_ms + frame.time_delta, frame.end
            values.append(frame.value)
            heads, length_bytes, lengths, time_deltas, offset_deltas, sizes = _shape(*frame.widths)
            key, (unpack, head) = NULL, heads[NULL]
        times.append(kafka_ms)
        expected += 1
    offsets += range(base + run, base + expected)
    if at != len(data) or expected > last + 1:
        raise DamagedError
    return frames


def is_abort(data: bytes, count: int, last: int) -> bool:
    """Whether the records of a control batch are one abort marker: its key is a version and type 0.

    What cannot be read says nothing, and is passed over all the same.
    """
    try:
        frame = _read_frame(data, 0)
    except DamagedError:
        return False
    whole = count == 1 and frame.end == len(data) and 0 <= frame.offset_delta <= last
    return whole and frame.key is not None and frame.key[2:4] == ABORT_TYPE


def _read_frame(data: bytes, at: int) -> DecodedRecord:
    """The record at `at`, whatever its shape. Raises DamagedError."""
    try:
        length, start = _varint(data, at)
        end = start + length
        time_delta, after_time = _varint(data, start + 1)  # nobody uses the byte of attributes between
        offset_delta, after_offset = _varint(data, after_time)
        key, after_key = _bytes(data, after_offset, end)
        value, after_value = _bytes(data, after_key, end)
        if length <= 0 or end > len(data) or _past_headers(data, after_value, end) != end:
            raise DamagedError
    except IndexError:
        raise DamagedError from None
    size_bytes = after_value - after_key - (0 if value is None else len(value))
    widths = (start - at, after_time - start - 1, after_offset - after_time, size_bytes)
    return DecodedRecord(time_delta, offset_delta, key, value, end, widths)


def _bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    """The bytes behind their length, none for -1, and where they end."""
    size, at = _varint(data, at)
    if size == -1:
        return None, at
    if size < 0 or at + size > end:
        raise DamagedError
    return data[at : at + size], at + size


def _past_headers(data: bytes, at: int, end: int) -> int:
    count, at = _varint(data, at)
    if count < 0:
        raise DamagedError
    for _ in range(count):
        name, at = _bytes(data, at, end)
        if name is None:
            raise DamagedError
        _, at = _bytes(data, at, end)
    return at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, zigzag, of at most ten bytes and 64 bits, and where it ends."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
        if shift > 63:
            raise DamagedError
    number &= 2**64 - 1
    return (number >> 1) ^ -(number & 1), at


@cache
def _tables(width: int) -> tuple[list[int | None], list[int | None]]:
    """What each varint of `width` bytes, read as one number, means: as a signed number, and as a length."""
    if width == 1:
        signed = [_zigzag(n) if n < 128 else None for n in range(256)]
    else:
        # Little-endian: the first byte is the low one, and says by its highest bit that a second follows.
        signed = [None] * 65536
        for high in range(128):
            for low in range(128):
                signed[high << 8 | low | 128] = _zigzag(high << 7 | low)
    return signed, [n if n is not None and n >= 0 else None for n in signed]


def _zigzag(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


@cache
def _shape(length: int, time: int, offset: int, size: int) -> PrefixShape:
    """The shape of a head with these widths. One that is too wide for tables gets the narrowest shape, which
    will not fit the next record either."""
    if max(length, time, offset, size) > 2:
        return _shape(1, 1, 1, 1)
    return PrefixShape(
        PrefixUnpackers((length, time, offset, size)),
        length,
        _tables(length)[1],
        _tables(time)[0],
        _tables(offset)[1],
        _tables(size)[1],
    )
