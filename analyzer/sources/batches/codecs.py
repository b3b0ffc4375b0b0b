"""Decompresses batches up to a bound: 16 KB on the wire may be 1.6 GB in memory."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol, cast

import cramjam
import lz4.frame
import zstandard

CHUNK_BYTES = 1 << 20
LZ4_RATIO_MAX = 255  # one byte of an LZ4 block decompresses to at most 255
ZSTD_WINDOW_BYTES_MAX = 1 << 27  # of the highest level; a frame may ask for 2 GB
ZSTD_WINDOW_BYTES_DEFAULT = 1 << 23  # up to level 19
XERIAL_MAGIC, XERIAL_HEADER_BYTES = b"\x82SNAPPY\x00", 16


class TooLargeError(Exception):
    """The data decompresses to more than the bound."""


class DamagedError(Exception):
    """The data does not conform to its codec or format."""


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Decompressor:
    """Decompresses data to at most `bytes_max`.

    Allocates at most that and some megabytes. Refuses trailing bytes that are not in the same format. Not
    thread-safe.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._codecs = {0: self._none, 1: self._gzip, 2: self._snappy, 3: self._lz4, 4: self._zstd}
        # Kept, because making one takes as long as decompressing 200 records.
        self._zstandard = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_DEFAULT)
        self._wide_zstandard = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)

    def decompress(self, codec: int, data: memoryview) -> bytes:
        """Returns the plain bytes. Codecs are Kafka's: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.

        Raises TooLargeError, DamagedError, and KeyError for an unknown codec.
        """
        return self._codecs[codec](data)

    def _none(self, data: memoryview) -> bytes:
        if len(data) > self.bytes_max:
            raise TooLargeError
        return bytes(data)

    def _gzip(self, data: memoryview) -> bytes:
        out, remaining = bytearray(), bytes(data)
        while remaining:  # several members in a row are one content
            member = zlib.decompressobj(wbits=31)
            try:
                while not member.eof:
                    piece = member.decompress(remaining, CHUNK_BYTES)
                    remaining = member.unconsumed_tail or member.unused_data
                    if not (piece or remaining or member.eof):
                        raise DamagedError
                    out += piece
                    if len(out) > self.bytes_max:
                        raise TooLargeError
            except zlib.error as error:
                raise DamagedError from error
        return bytes(out)

    def _snappy(self, data: memoryview) -> bytes:
        """Decompresses one raw block, or the framing of Java clients (xerial): a header, then blocks, each
        behind its length."""
        if bytes(data[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
            return self._snappy_blocks([data])
        blocks, position = [], XERIAL_HEADER_BYTES
        while position < len(data):
            if position + 4 > len(data):
                raise DamagedError
            (length,) = struct.unpack_from(">I", data, position)
            position += 4 + length
            if position > len(data):
                raise DamagedError
            blocks.append(data[position - length : position])
        return self._snappy_blocks(blocks)

    def _snappy_blocks(self, blocks: Sequence[memoryview]) -> bytes:
        try:
            # Each block states its length, and the sum is checked before the first is decompressed.
            if sum(map(cramjam.snappy.decompress_raw_len, blocks)) > self.bytes_max:
                raise TooLargeError
            return b"".join(bytes(cramjam.snappy.decompress_raw(block)) for block in blocks)
        except cramjam.DecompressionError as error:
            raise DamagedError from error

    def _lz4(self, data: memoryview) -> bytes:
        try:
            # One call is three times as fast. But it allocates the size that the frame states, and stops
            # after the first frame, so it is used only where neither can hurt.
            if len(data) * LZ4_RATIO_MAX <= self.bytes_max:
                stated_bytes = lz4.frame.get_frame_info(data)["content_size"]
                if stated_bytes <= self.bytes_max:
                    plain, read_bytes = lz4.frame.decompress(data, return_bytes_read=True)
                    if read_bytes == len(data):
                        return cast(bytes, plain)
            with lz4.frame.open(io.BytesIO(data), "rb") as stream:
                return self._read(stream)
        except (RuntimeError, EOFError, OSError) as error:
            raise DamagedError from error

    def _zstd(self, data: memoryview) -> bytes:
        with (
            suppress(zstandard.ZstdError),
            self._zstandard.stream_reader(data, read_across_frames=True) as stream,
        ):
            return self._read(stream)
        # The data is damaged, or has a large window. A large window takes memory in addition to the output,
        # so the size is measured first, without keeping the output.
        try:
            with self._wide_zstandard.stream_reader(data, read_across_frames=True) as stream:
                self._measure(stream)
            with self._wide_zstandard.stream_reader(data, read_across_frames=True) as stream:
                return self._read(stream)
        except zstandard.ZstdError as error:
            raise DamagedError from error

    def _measure(self, stream: Readable) -> None:
        size = 0
        while piece := stream.read(CHUNK_BYTES):
            size += len(piece)
            if size > self.bytes_max:
                raise TooLargeError

    def _read(self, stream: Readable) -> bytes:
        pieces, size = [], 0
        while piece := stream.read(CHUNK_BYTES):
            pieces.append(piece)
            size += len(piece)
            if size > self.bytes_max:
                raise TooLargeError
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
