"""A parser of Kafka's record batches, byte by byte."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import cramjam
import lz4.frame
import zstandard
from crc32c import crc32c

from tests.oracle.counter.refused import Refused


class CommittedRecord(NamedTuple):
    """A record that a consumer with isolation level read_committed gets."""

    offset: int
    kafka_ms: int | None
    value: bytes | None


def decompressed(codec: int, data: bytes, bytes_max: int) -> bytes:
    match codec:
        case 0:
            plain = data
        case 1:
            plain = gzip.decompress(data)
        case 2 if data.startswith(b"\x82SNAPPY\0"):
            plain, at = b"", 16
            while at < len(data):
                (size,) = struct.unpack_from(">I", data, at)
                if at + 4 + size > len(data):
                    raise Refused("corrupt")
                plain += bytes(cramjam.snappy.decompress_raw(data[at + 4 : at + 4 + size]))
                at += 4 + size
        case 2:
            plain = bytes(cramjam.snappy.decompress_raw(data))
        case 3:
            plain = lz4.frame.decompress(data)
        case 4:
            plain = zstandard.ZstdDecompressor().decompressobj().decompress(data)
        case _:
            raise Refused("unsupported")
    if len(plain) > bytes_max:
        raise Refused("too-large")
    return plain


class Cursor:
    """Bytes and the position up to which they are read."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise Refused("corrupt")
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self) -> int:
        number = 0
        for place in range(10):
            (byte,) = self.take(1)
            number |= (byte & 127) << (7 * place)
            if byte < 128:
                number %= 2**64
                return number // 2 if number % 2 == 0 else -(number // 2) - 1
        raise Refused("corrupt")

    def sized(self) -> bytes | None:
        size = self.varint()
        return None if size == -1 else self.take(size)

    @property
    def ended(self) -> bool:
        return self.at == len(self.data)


def records_in(plain: bytes, count: int, last: int) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """Returns (time, offset, key, value) of each record; times and offsets are relative to the batch's."""
    outer, found, before = Cursor(plain), [], -1
    for _ in range(count):
        inner = Cursor(outer.take(outer.varint()))
        inner.take(1)
        time, offset = inner.varint(), inner.varint()
        key, value = inner.sized(), inner.sized()
        headers = inner.varint()
        if headers < 0 or not before < offset <= last:
            raise Refused("corrupt")
        for _header in range(headers):
            if inner.sized() is None:
                raise Refused("corrupt")
            inner.sized()
        if not inner.ended:
            raise Refused("corrupt")
        before = offset
        found.append((time, offset, key, value))
    if not outer.ended:
        raise Refused("corrupt")
    return found


class Header(NamedTuple):
    """Fields of a batch's header."""

    crc: int
    attributes: int
    last: int
    first_ms: int
    greatest_ms: int
    producer: int
    count: int


class RefusedBatch(NamedTuple):
    """A batch that is refused, with its base offset and the offset after it (-1: unknown)."""

    status: Any
    base: int
    next: int


def batches_in(
    raw: bytes, start: int, aborted: Sequence[tuple[int, int]], bytes_max: int
) -> Iterator[tuple[int, list[CommittedRecord]] | RefusedBatch]:
    """Yields (next offset, records) of each batch, up to one that is refused."""
    at = 0
    aborting: set[int] = set()
    to_come = list(aborted)
    while at + 17 <= len(raw):
        base, length, _epoch, magic = struct.unpack_from(">qiib", raw, at)
        whole = raw[at : at + 12 + max(0, length)]
        if length >= 0 and len(whole) < 12 + length:
            return  # incomplete: the fetch ended within it
        refused = refusal_of(base, magic, length, whole)
        if refused is not None:
            yield refused
            return
        header = header_of(whole)
        after = base + header.last + 1
        aborting |= {producer for producer, first in to_come if first < after}
        to_come = [(producer, first) for producer, first in to_come if first >= after]
        try:
            yield after, committed_records(header, base, whole[61:], start, aborting, bytes_max)
        except Refused as error:
            yield RefusedBatch(str(error), base, after)
            return
        except Exception:  # noqa: BLE001 - each codec raises other exceptions
            yield RefusedBatch("corrupt", base, after)
            return
        at += len(whole)


def header_of(whole: bytes) -> Header:
    crc, attributes, last, first_ms, greatest_ms, producer = struct.unpack_from(">Ihiqqq", whole, 17)
    return Header(
        crc, attributes, last, first_ms, greatest_ms, producer, *struct.unpack_from(">I", whole, 57)
    )


def refusal_of(base: int, magic: int, length: int, whole: bytes) -> RefusedBatch | None:
    if length < 0 or (magic == 2 and len(whole) < 61):
        return RefusedBatch("corrupt", base, -1)
    if magic != 2:
        return RefusedBatch("unsupported", base, -1)
    header = header_of(whole)
    after = base + header.last + 1
    if base < 0 or header.last < 0 or after > 2**63 - 1:
        return RefusedBatch("corrupt", base, -1)
    return None if crc32c(whole[21:]) == header.crc else RefusedBatch("corrupt", base, after)


def committed_records(
    header: Header, base: int, payload: bytes, start: int, aborting: set[int], bytes_max: int
) -> list[CommittedRecord]:
    """Returns the records of a batch that are counted, from offset `start` on.

    Takes the producer out of `aborting` where its transaction ends. Raises Refused, and errors of the codecs.
    """
    if header.attributes & 32:
        if ends_aborted(header, payload):
            aborting.discard(header.producer)
        return []
    if (header.attributes & 16 and header.producer in aborting) or base + header.last < start:
        return []
    found = records_in(decompressed(header.attributes & 7, payload, bytes_max), header.count, header.last)
    if header.count * 256 > bytes_max:
        raise Refused("too-large")
    return [
        CommittedRecord(
            base + offset, header.greatest_ms if header.attributes & 8 else header.first_ms + time, value
        )
        for time, offset, _key, value in found
        if base + offset >= start
    ]


def ends_aborted(header: Header, payload: bytes) -> bool:
    try:
        found = [] if header.attributes & 7 else records_in(payload, header.count, header.last)
    except Refused:
        return False
    return len(found) == 1 and found[0][2] is not None and found[0][2][2:4] == b"\0\0"
