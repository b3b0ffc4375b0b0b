"""Decompression bombs: one record of zeroes in a batch, compressed by each codec."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator

import cramjam
import lz4.frame
import zstandard

from tests.support.recordsets import varint, wrapped

ZEROES = bytes(1 << 20)


def plain(megabytes: int) -> Iterator[bytes]:
    """Yields a frame whose value is `megabytes` of zeroes, in pieces."""
    size = megabytes << 20
    body = b"\0" + varint(0) + varint(0) + varint(-1) + varint(size)
    yield varint(len(body) + size + 1) + body
    yield from (ZEROES for _ in range(megabytes))
    yield b"\0"  # no headers


def gzip(pieces: Iterator[bytes]) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    return b"".join(map(packer.compress, pieces)) + packer.flush()


def snappy(pieces: Iterator[bytes]) -> bytes:
    """Compresses in blocks, as Java clients do."""
    blocks = [bytes(cramjam.snappy.compress_raw(piece)) for piece in pieces]
    return (
        b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(b)) + b for b in blocks)
    )


def lz4_frame(pieces: Iterator[bytes]) -> bytes:
    packer = lz4.frame.LZ4FrameCompressor(block_linked=False)  # the only kind that Kafka reads
    return packer.begin() + b"".join(map(packer.compress, pieces)) + packer.flush()


def zstd(pieces: Iterator[bytes]) -> bytes:
    packer = zstandard.ZstdCompressor().compressobj()
    return b"".join(map(packer.compress, pieces)) + packer.flush()


PACKERS: dict[str, tuple[int, Callable[[Iterator[bytes]], bytes]]] = {
    "gzip": (1, gzip),
    "snappy": (2, snappy),
    "lz4": (3, lz4_frame),
    "zstd": (4, zstd),
}


def bomb(codec: str, megabytes: int) -> bytes:
    """Returns a batch that a broker accepts and that decompresses to `megabytes`."""
    number, pack = PACKERS[codec]
    return wrapped(pack(plain(megabytes)), count=1, last=0, attributes=number)
