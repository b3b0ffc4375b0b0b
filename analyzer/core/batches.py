"""Reads Kafka's record batches (magic 2, KIP-98) out of raw bytes, each whole or not at all.

The client's own reader makes several Python objects per record; this one makes the record's value and two
numbers, in one loop without calls. That loop is most of what makes the counter fast.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from analyzer.core.codecs import DamagedError, TooLargeError, unpack
from analyzer.core.model import Status

# base offset, length, leader epoch, magic | crc, attributes, last offset delta, base time, largest time,
# producer id, producer epoch, base sequence, count
HEAD = struct.Struct(">qiib")
REST = struct.Struct(">IhiqqqhiI")
HEAD_BYTES = HEAD.size + REST.size
MAGIC = 2
LENGTH_AT = 12  # a batch's length counts from here
CHECKED_AT = 21  # and its checksum from here
OFFSET_MAX = 2**63 - 1

CODEC, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20
ABORT = b"\x00\x00"  # of a control record's key, after two bytes of version

Frame = tuple[int, int | None, bytes | None]  # offset, Kafka time in ms, value


class Head(NamedTuple):
    """What a batch says of itself."""

    base: int
    crc: int
    attributes: int
    delta: int  # of the last record
    base_ms: int
    largest_ms: int
    producer: int
    epoch: int
    sequence: int
    records: int

    @property
    def after(self) -> int:
        return self.base + self.delta + 1


class Batch(NamedTuple):
    """One batch: where it ends, and its records, unless it is to be passed over or refused."""

    base: int
    next: int
    frames: Sequence[Frame]
    status: Status = "ok"


def batches(raw: bytes, start: int, aborted: Sequence[tuple[int, int]], bytes_max: int) -> Iterator[Batch]:
    """The batches of one record set, up to the first that is not "ok", or that the fetch cut off.

    Control batches, batches of aborted transactions and batches wholly below `start` have no frames.
    Records below `start` in a batch that reaches beyond it are still in it.
    """
    waiting = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
    dropping: set[int] = set()  # producers inside an aborted transaction
    at = 0
    while len(raw) - at >= HEAD.size:
        base, length, _epoch, magic = HEAD.unpack_from(raw, at)
        end = at + LENGTH_AT + length
        if length < 0 or (magic == MAGIC and length < HEAD_BYTES - LENGTH_AT):
            yield Batch(base, base, (), "corrupt")
            return
        if end > len(raw):
            return
        if magic != MAGIC:
            yield Batch(base, base, (), "unsupported")
            return
        head = Head(base, *REST.unpack_from(raw, at + HEAD.size))
        while waiting and waiting[-1][1] < head.after:
            dropping.add(waiting.pop()[0])
        batch = _read(head, memoryview(raw)[at:end], start, dropping, bytes_max)
        yield batch
        if batch.status != "ok":
            return
        at = end


def _read(  # noqa: PLR0911 - each way out is a kind of batch
    head: Head, batch: memoryview, start: int, dropping: set[int], bytes_max: int
) -> Batch:
    """One batch; takes the producer out of `dropping` where its transaction ends."""
    if head.base < 0 or head.delta < 0 or head.after > OFFSET_MAX or crc32c(batch[CHECKED_AT:]) != head.crc:
        return Batch(head.base, head.after, (), "corrupt")
    data = batch[HEAD_BYTES:]
    if head.attributes & CONTROL:
        if _ends_an_aborted(data, head.attributes, head.records):
            dropping.discard(head.producer)
        return Batch(head.base, head.after, ())
    if head.after <= start or (head.attributes & TRANSACTIONAL and head.producer in dropping):
        return Batch(head.base, head.after, ())
    try:
        plain = unpack(head.attributes & CODEC, data, bytes_max)
        return Batch(head.base, head.after, frames_of(plain, head))
    except TooLargeError:
        return Batch(head.base, head.after, (), "too-large")
    except KeyError:
        return Batch(head.base, head.after, (), "unsupported")
    except (DamagedError, IndexError):
        return Batch(head.base, head.after, (), "corrupt")


def frames_of(data: bytes, head: Head) -> list[Frame]:  # noqa: C901, PLR0912 - without calls: that is its speed
    """Every record of a batch. Raises DamagedError or IndexError unless all lengths fit exactly, offsets
    rise and stay below the batch's end, and nothing is left over.

    Numbers are zigzag varints of mostly one or two bytes, so these are read here rather than by a call.
    """
    base, end, base_ms = head.base, head.after, head.base_ms
    fixed_ms = head.largest_ms if head.attributes & LOG_APPEND_TIME else None
    frames: list[Frame] = []
    append = frames.append
    at, last, size = 0, -1, len(data)
    for _ in range(head.records):
        n = data[at]
        at += 1
        if n > 127:
            n, at = _varint(data, at - 1)
        stop = at + (n >> 1)
        if n & 1 or stop > size or n == 0:
            raise DamagedError
        n = data[at + 1]  # the byte before holds attributes that nobody uses
        at += 2
        if n > 127:
            n, at = _varint(data, at - 1)
        time_ms = base_ms + ((n >> 1) ^ -(n & 1))
        n = data[at]
        at += 1
        if n > 127:
            m = data[at]
            if m < 128:
                n += (m << 7) - 128
                at += 1
            else:
                n, at = _varint(data, at - 1)
        delta = n >> 1
        if n & 1 or delta <= last or base + delta >= end:
            raise DamagedError
        last = delta
        n = data[at]
        at += 1
        if n != 1:  # a key: it is not counted by
            if n > 127:
                n, at = _varint(data, at - 1)
            if n & 1 and n != 1:
                raise DamagedError
            at += n >> 1
        n = data[at]
        at += 1
        if n > 127:
            m = data[at]
            if m < 128:
                n += (m << 7) - 128
                at += 1
            else:
                n, at = _varint(data, at - 1)
        value: bytes | None
        if n & 1:
            if n != 1:
                raise DamagedError
            value = None
        else:
            value = data[at : at + (n >> 1)]
            at += n >> 1
        if at >= stop or data[at]:
            at = _past_headers(data, at, stop)
        else:
            at += 1
        if at != stop:
            raise DamagedError
        append((base + delta, time_ms if fixed_ms is None else fixed_ms, value))
    if at != size:
        raise DamagedError
    return frames


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned varint of up to 64 bits, not yet zigzag decoded, and where it ends."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            if number >> 64:
                raise DamagedError
            return number, at
        shift += 7
        if shift > 63:
            raise DamagedError


def _past_headers(data: bytes, at: int, stop: int) -> int:
    """Where the headers end: pairs of a name and a value, which may be missing (-1)."""
    count, at = _varint(data, at)
    if count & 1:
        raise DamagedError
    for _ in range(count >> 1):
        name, at = _varint(data, at)
        if name & 1:
            raise DamagedError
        at += name >> 1
        value, at = _varint(data, at)
        if value & 1 and value != 1:
            raise DamagedError
        at += value >> 1
        if at > stop:
            raise DamagedError
    return at


def _ends_an_aborted(data: memoryview, attributes: int, count: int) -> bool:
    """Whether a control batch is an abort marker: one record whose key is version and type 0.

    One that cannot be read says nothing, and is passed over all the same.
    """
    if attributes & CODEC or count != 1:
        return False
    plain = bytes(data)
    try:
        length, at = _varint(plain, 0)
        if length & 1 or at + (length >> 1) != len(plain):
            return False
        at += 1
        for _ in range(2):  # time and offset
            _, at = _varint(plain, at)
        key, at = _varint(plain, at)
    except (DamagedError, IndexError):
        return False
    return not key & 1 and key >> 1 >= 4 and at + 4 <= len(plain) and plain[at + 2 : at + 4] == ABORT
