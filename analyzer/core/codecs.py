"""What a batch holds once it is unpacked, up to a bound: 16 KB on the wire may be 1.6 GB in memory."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from typing import Protocol, cast

import cramjam
import lz4.frame
import zstandard

CHUNK = 1 << 20
LZ4_RATIO_MAX = 255  # a byte of a block stands for at most so many
ZSTD_WINDOW_MAX = 1 << 27  # what `zstd --long` writes at most by default; a frame may ask for 2 GB
XERIAL = b"\x82SNAPPY\x00"


class TooLargeError(Exception):
    """It expands beyond the bound."""


class DamagedError(Exception):
    """It is not what its codec says."""


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def unpack(codec: int, data: memoryview, bytes_max: int) -> bytes:
    """The plain bytes behind `data`. Codecs are Kafka's: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.

    Raises TooLargeError beyond `bytes_max`, DamagedError, KeyError for an unknown codec. What is
    allocated on the way stays within `bytes_max` and some megabytes.
    """
    return CODECS[codec](data, bytes_max)


def _none(data: memoryview, bytes_max: int) -> bytes:
    if len(data) > bytes_max:
        raise TooLargeError
    return bytes(data)


def _gzip(data: memoryview, bytes_max: int) -> bytes:
    out, rest = bytearray(), bytes(data)
    while rest:  # several members in a row are one content
        member = zlib.decompressobj(wbits=31)
        try:
            while not member.eof:
                piece = member.decompress(rest, CHUNK)
                rest = member.unconsumed_tail or member.unused_data
                if not (piece or rest or member.eof):
                    raise DamagedError
                out += piece
                if len(out) > bytes_max:
                    raise TooLargeError
        except zlib.error as error:
            raise DamagedError from error
    return bytes(out)


def _snappy(data: memoryview, bytes_max: int) -> bytes:
    """One raw block, or what snappy-java (xerial) writes: a header, then lengths and blocks."""
    if bytes(data[:8]) != XERIAL:
        return _snappy_block(data, bytes_max)
    out, at = bytearray(), 16
    while at < len(data):
        if at + 4 > len(data):
            raise DamagedError
        (length,) = struct.unpack_from(">I", data, at)
        at += 4 + length
        if at > len(data):
            raise DamagedError
        out += _snappy_block(data[at - length : at], bytes_max - len(out))
    return bytes(out)


def _snappy_block(data: memoryview, bytes_max: int) -> bytes:
    try:
        if cramjam.snappy.decompress_raw_len(data) > bytes_max:  # it says its length first
            raise TooLargeError
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise DamagedError from error


def _lz4(data: memoryview, bytes_max: int) -> bytes:
    try:
        # In one call where that cannot pass the bound, which is three times as fast. It would believe any
        # size that a frame says of itself, and stop behind the first frame.
        if (
            len(data) * LZ4_RATIO_MAX <= bytes_max
            and lz4.frame.get_frame_info(data)["content_size"] <= bytes_max
        ):
            plain, read = lz4.frame.decompress(data, return_bytes_read=True)
            if read == len(data):
                return cast(bytes, plain)
        with lz4.frame.open(io.BytesIO(data), "rb") as stream:
            return _read(stream, bytes_max)
    except (RuntimeError, EOFError, OSError) as error:
        raise DamagedError from error


def _zstd(data: memoryview, bytes_max: int) -> bytes:
    unpacker = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_MAX)
    try:
        with unpacker.stream_reader(data, read_across_frames=True) as stream:
            return _read(stream, bytes_max)
    except zstandard.ZstdError as error:
        raise DamagedError from error


def _read(stream: Readable, bytes_max: int) -> bytes:
    pieces, size = [], 0
    while piece := stream.read(CHUNK):
        pieces.append(piece)
        size += len(piece)
        if size > bytes_max:
            raise TooLargeError
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


CODECS: dict[int, Callable[[memoryview, int], bytes]] = {0: _none, 1: _gzip, 2: _snappy, 3: _lz4, 4: _zstd}
