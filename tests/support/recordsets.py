"""Kafka's record batches, written byte by byte, also invalid ones."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import cramjam
import lz4.frame
import zstandard
from crc32c import crc32c

NOW_MS = 1_795_216_000_000  # 2026-11-20, in the middle of a minute
TRANSACTIONAL, CONTROL, LOG_APPEND_TIME = 0x10, 0x20, 0x08
COMMIT, ABORT = 1, 0


class Entry(NamedTuple):
    """One record of a batch."""

    value: bytes | None
    offset: int = -1  # relative to the batch's base; -1: the next one
    time: int = 0  # relative to the batch's first time
    key: bytes | None = None
    headers: Sequence[tuple[bytes, bytes | None]] = ()
    padding: bytes = b""  # after the headers: invalid unless empty


def varint(number: int) -> bytes:
    """Returns a number in zigzag encoding, in as few bytes as possible."""
    rest = ((number << 1) ^ (number >> 63)) & (2**64 - 1)
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*out, rest])


def sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def frame(entry: Entry, offset: int) -> bytes:
    headers = b"".join(sized(name) + sized(value) for name, value in entry.headers)
    body = b"\0" + varint(entry.time) + varint(offset) + sized(entry.key) + sized(entry.value)
    body += varint(len(entry.headers)) + headers + entry.padding
    return varint(len(body)) + body


def records(entries: Sequence[Entry]) -> tuple[bytes, int]:
    """Returns all frames, and the offset of the last one relative to the base."""
    frames, last = [], -1
    for entry in entries:
        last = entry.offset if entry.offset >= 0 else last + 1
        frames.append(frame(entry, last))
    return b"".join(frames), last


def xerial(data: bytes) -> bytes:
    """Compresses with Snappy as Java clients do: a header, then blocks with their lengths."""
    blocks = [bytes(cramjam.snappy.compress_raw(data[at : at + 512])) for at in range(0, len(data), 512)]
    return (
        b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(b)) + b for b in blocks)
    )


def zstd_stream(data: bytes) -> bytes:
    """Compresses with Zstandard without the content's size in front, as stream writers do."""
    writer = zstandard.ZstdCompressor().compressobj()
    return writer.compress(data) + writer.flush()


PACK: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "none": (0, lambda data: data),
    "gzip": (1, lambda data: gzip.compress(data, 1)),
    "snappy": (2, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "xerial": (2, xerial),
    "lz4": (3, lz4.frame.compress),
    "zstd": (4, zstandard.ZstdCompressor().compress),
    "zstd stream": (4, zstd_stream),
}


def wrapped(
    payload: bytes,
    *,
    count: int,
    last: int,
    base: int = 0,
    attributes: int = 0,
    first_ms: int = NOW_MS,
    greatest_ms: int = NOW_MS,
    producer: int = -1,
    magic: int = 2,
    crc_off_by: int = 0,
) -> bytes:
    """Returns a batch around records that are compressed already."""
    rest = struct.pack(">hiqqqhii", attributes, last, first_ms, greatest_ms, producer, 0, -1, count) + payload
    crc = crc32c(rest) ^ crc_off_by
    return struct.pack(">qiibI", base, 9 + len(rest), 0, magic, crc) + rest


def batch(
    entries: Sequence[Entry | bytes | None],
    base: int = 0,
    *,
    codec: str = "none",
    attributes: int = 0,
    producer: int = -1,
    first_ms: int = NOW_MS,
) -> bytes:
    """Returns a batch of records; values become records."""
    all_entries = [entry if isinstance(entry, Entry) else Entry(entry) for entry in entries]
    plain, last = records(all_entries)
    number, pack = PACK[codec]
    return wrapped(
        pack(plain),
        count=len(all_entries),
        last=max(0, last),
        base=base,
        attributes=attributes | number,
        producer=producer,
        first_ms=first_ms,
    )


def control(base: int, producer: int, kind: int) -> bytes:
    """Returns the control batch that ends a producer's transaction."""
    marker = Entry(b"\0\0\0\0\0\0", key=struct.pack(">hh", 0, kind))
    return batch([marker], base, attributes=TRANSACTIONAL | CONTROL, producer=producer)
