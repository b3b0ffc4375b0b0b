"""Opens complete logs that may be compressed: gzip and zstd are recognised by their first bytes.

Everything that was decompressed before damaged data is returned before the error is raised, so that a file
that was cut short can be read up to there.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import zstandard

ZSTD_WINDOW_BYTES_MAX = 1 << 27
SKIPPED_BYTES = 1 << 20


class DamagedFile(Exception):
    """Compressed data that cannot be decompressed."""


class Codec(NamedTuple):
    """A compression: how it is recognised and undone.

    `piece_bytes` are decompressed at once. At most 68 MB come from them: gzip multiplies a byte by 1,032 at
    most, and a block of zstd has at least 4 bytes for 128 KiB.
    """

    magic: bytes
    new: Callable[[], Any]  # an object with `decompress`, `eof` and `unused_data`
    piece_bytes: int


CODECS = (
    Codec(b"\x1f\x8b", lambda: zlib.decompressobj(wbits=31), 1 << 16),
    Codec(
        b"\x28\xb5\x2f\xfd",
        lambda: zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX).decompressobj(),
        1 << 11,
    ),
)
MAGIC_BYTES = max(len(codec.magic) for codec in CODECS)


def open_log(path: str | Path) -> IO[bytes]:
    """Returns the plain content of a file. Raises OSError."""
    return plain_content(Path(path).open("rb"))


def plain_content(stream: IO[bytes]) -> IO[bytes]:
    """Returns the decompressed content of `stream`, which has `peek`; `stream` itself if it is plain.

    Reading raises EOFError where compressed data end too early, and DamagedFile where they are damaged.
    """
    head = cast("io.BufferedReader", stream).peek(MAGIC_BYTES)
    codec = next((codec for codec in CODECS if head.startswith(codec.magic)), None)
    return stream if codec is None else cast("IO[bytes]", DecompressedFile(stream, codec))


class DecompressedFile(io.RawIOBase):
    """The content of a compressed stream, of which several members or frames may follow each other.

    Seeking backwards decompresses from the beginning again.
    """

    def __init__(self, stream: IO[bytes], codec: Codec) -> None:
        super().__init__()
        self._stream = stream
        self._codec = codec
        self._begin()

    def _begin(self) -> None:
        self._decoder: Any = None  # between two members: None
        self._waiting = b""  # compressed, not given to a decoder yet
        self._plain = memoryview(b"")
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._stream.seekable()

    def fileno(self) -> int:
        return self._stream.fileno()

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, from_: int = io.SEEK_SET, /) -> int:
        if from_ != io.SEEK_SET:
            raise io.UnsupportedOperation("only offsets from the beginning")
        if offset < self._at:
            self._stream.seek(0)
            self._begin()
        while self._at < offset and self.read(min(offset - self._at, SKIPPED_BYTES)):
            pass
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        """Returns up to `size` bytes; b"" at the end only. Raises EOFError, DamagedFile, OSError."""
        if size < 0:
            return self.readall()
        while not self._plain:
            if not self._decompress():
                return b""
        piece, self._plain = self._plain[:size], self._plain[size:]
        self._at += len(piece)
        return bytes(piece)

    def _decompress(self) -> bool:
        """Decompresses the next piece; False at the end."""
        self._waiting = self._waiting or self._stream.read(self._codec.piece_bytes)
        if self._decoder is None:
            self._waiting = self._waiting.lstrip(b"\0")  # gzip files may be padded
        if not self._waiting:
            if self._decoder is not None:
                raise EOFError("the compressed data end too early")
            return self._has_more()
        if self._decoder is None:
            self._decoder = self._codec.new()
        try:
            plain = self._decoder.decompress(self._waiting)
        except (zlib.error, zstandard.ZstdError) as error:
            raise DamagedFile(f"the compressed data are damaged: {error}") from error
        self._waiting = b""
        if self._decoder.eof:
            self._waiting, self._decoder = self._decoder.unused_data, None
        self._plain = memoryview(plain)
        return True

    def _has_more(self) -> bool:
        self._waiting = self._stream.read(self._codec.piece_bytes)
        return bool(self._waiting)

    def close(self) -> None:
        self._stream.close()
        super().close()
