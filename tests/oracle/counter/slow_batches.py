"""Record batches, byte by byte."""

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


class Kept(NamedTuple):
    """A record that a reader of committed records sees."""

    offset: int
    kafka_ms: int | None
    value: bytes | None


def unpacked(codec: int, data: bytes, bytes_max: int) -> bytes:
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
    """Reads one thing after another."""

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
    """(time, offset, key, value) of each record, time and offset from the batch's own."""
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


class Head(NamedTuple):
    """What a batch says of itself."""

    crc: int
    attributes: int
    last: int
    first_ms: int
    greatest_ms: int
    producer: int
    count: int


class Wrong(NamedTuple):
    """A batch that is refused."""

    status: Any
    base: int
    next: int


def batches_in(
    raw: bytes, start: int, aborted: Sequence[tuple[int, int]], bytes_max: int
) -> Iterator[tuple[int, list[Kept]] | Wrong]:
    """(next offset, records) of each batch, until one is wrong."""
    at = 0
    inside: set[int] = set()
    to_come = list(aborted)
    while at + 17 <= len(raw):
        base, length, _epoch, magic = struct.unpack_from(">qiib", raw, at)
        whole = raw[at : at + 12 + max(0, length)]
        if length >= 0 and len(whole) < 12 + length:
            return  # the fetch cut it off
        wrong = what_is_wrong(base, magic, length, whole)
        if wrong is not None:
            yield wrong
            return
        head = head_of(whole)
        after = base + head.last + 1
        inside |= {producer for producer, first in to_come if first < after}
        to_come = [(producer, first) for producer, first in to_come if first >= after]
        try:
            yield after, kept_of(head, base, whole[61:], start, inside, bytes_max)
        except Refused as refused:
            yield Wrong(str(refused), base, after)
            return
        except Exception:  # noqa: BLE001 - each codec has exceptions of its own
            yield Wrong("corrupt", base, after)
            return
        at += len(whole)


def head_of(whole: bytes) -> Head:
    crc, attributes, last, first_ms, greatest_ms, producer = struct.unpack_from(">Ihiqqq", whole, 17)
    return Head(crc, attributes, last, first_ms, greatest_ms, producer, *struct.unpack_from(">I", whole, 57))


def what_is_wrong(base: int, magic: int, length: int, whole: bytes) -> Wrong | None:
    if length < 0 or (magic == 2 and len(whole) < 61):
        return Wrong("corrupt", base, -1)
    if magic != 2:
        return Wrong("unsupported", base, -1)
    head = head_of(whole)
    after = base + head.last + 1
    if base < 0 or head.last < 0 or after > 2**63 - 1:
        return Wrong("corrupt", base, -1)
    return None if crc32c(whole[21:]) == head.crc else Wrong("corrupt", base, after)


def kept_of(
    head: Head, base: int, payload: bytes, start: int, inside: set[int], bytes_max: int
) -> list[Kept]:
    """The records of a batch that count; takes its producer out of `inside` where it ends. Raises Refused,
    and what the codecs raise."""
    if head.attributes & 32:
        if ends_aborted(head, payload):
            inside.discard(head.producer)
        return []
    if (head.attributes & 16 and head.producer in inside) or base + head.last < start:
        return []
    found = records_in(unpacked(head.attributes & 7, payload, bytes_max), head.count, head.last)
    if head.count * 256 > bytes_max:
        raise Refused("too-large")
    return [
        Kept(base + offset, head.greatest_ms if head.attributes & 8 else head.first_ms + time, value)
        for time, offset, _key, value in found
        if base + offset >= start
    ]


def ends_aborted(head: Head, payload: bytes) -> bool:
    try:
        found = [] if head.attributes & 7 else records_in(payload, head.count, head.last)
    except Refused:
        return False
    return len(found) == 1 and found[0][2] is not None and found[0][2][2:4] == b"\0\0"
