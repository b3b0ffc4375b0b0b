"""What a batch holds once it is unpacked, up to a bound: 16 KB on the wire may be 1.6 GB in memory."""

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
LZ4_RATIO_MAX = 255  # a byte of a block stands for at most so many
ZSTD_WINDOW_BYTES_MAX = 1 << 27  # what the highest level writes; a frame may ask for 2 GB
ZSTD_WINDOW_BYTES_DEFAULT = 1 << 23  # up to level 19
XERIAL_MAGIC, XERIAL_HEADER_BYTES = b"\x82SNAPPY\x00", 16


class TooLargeError(Exception):
    """It expands beyond the bound."""


class DamagedError(Exception):
    """It is not what its codec says."""


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Decompressor:
    """Unpacks up to `bytes_max`; what is allocated on the way stays within that and some megabytes. Nothing
    may follow what is packed but more of the same. Not to be shared between threads."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._codecs = {0: self._none, 1: self._gzip, 2: self._snappy, 3: self._lz4, 4: self._zstd}
        # Kept, because making one takes as long as unpacking 200 records.
        self._zstandard = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_DEFAULT)
        self._wide_zstandard = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)

    def unpack(self, codec: int, data: memoryview) -> bytes:
        """The plain bytes behind `data`; codecs are Kafka's: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.

        Raises TooLargeError, DamagedError, KeyError for an unknown codec.
        """
        return self._codecs[codec](data)

    def _none(self, data: memoryview) -> bytes:
        if len(data) > self.bytes_max:
            raise TooLargeError
        return bytes(data)

    def _gzip(self, data: memoryview) -> bytes:
        out, rest = bytearray(), bytes(data)
        while rest:  # several members in a row are one content
            member = zlib.decompressobj(wbits=31)
            try:
                while not member.eof:
                    piece = member.decompress(rest, CHUNK_BYTES)
                    rest = member.unconsumed_tail or member.unused_data
                    if not (piece or rest or member.eof):
                        raise DamagedError
                    out += piece
                    if len(out) > self.bytes_max:
                        raise TooLargeError
            except zlib.error as error:
                raise DamagedError from error
        return bytes(out)

    def _snappy(self, data: memoryview) -> bytes:
        """One raw block, or what Java clients write (xerial): a header, then lengths and blocks."""
        if bytes(data[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
            return self._snappy_blocks([data])
        blocks, at = [], XERIAL_HEADER_BYTES
        while at < len(data):
            if at + 4 > len(data):
                raise DamagedError
            (length,) = struct.unpack_from(">I", data, at)
            at += 4 + length
            if at > len(data):
                raise DamagedError
            blocks.append(data[at - length : at])
        return self._snappy_blocks(blocks)

    def _snappy_blocks(self, blocks: Sequence[memoryview]) -> bytes:
        try:
            # Each says its length first, and none is unpacked before all have said it.
            if sum(map(cramjam.snappy.decompress_raw_len, blocks)) > self.bytes_max:
                raise TooLargeError
            return b"".join(bytes(cramjam.snappy.decompress_raw(block)) for block in blocks)
        except cramjam.DecompressionError as error:
            raise DamagedError from error

    def _lz4(self, data: memoryview) -> bytes:
        try:
            # In one call where that cannot pass the bound, which is three times as fast. It believes any size
            # that a frame says of itself, and it stops behind the first frame.
            if len(data) * LZ4_RATIO_MAX <= self.bytes_max:
                said_bytes = lz4.frame.get_frame_info(data)["content_size"]
                if said_bytes <= self.bytes_max:
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
        # Damaged, or its window is a large one, which fills up beside what comes out: look at the size first.
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
