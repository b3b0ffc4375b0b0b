"""Reads a stream of bytes as lines, and recognises it by digests of what was read."""

from __future__ import annotations

import hashlib
from itertools import accumulate, compress
from operator import add
from typing import IO, NamedTuple

from analyzer.kernel.model import RecordColumns

CHUNK_BYTES = 1 << 20
FIRST_LINE_BYTES_MAX = 64 * 1024
TAIL_BYTES = 256
FIRST_PREFIX_BYTES = 4096
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # at the start of a file it does not belong to the content
# Within these bytes the end of each line has a digest of everything before it.
LINE_DIGESTS_MAX, LINE_DIGEST_CHARS = 64, 12


class Checkpoint(NamedTuple):
    """A place in a stream to go back to, with the digests of the bytes before it."""

    next: int = 0
    digest: hashlib._Hash = hashlib.sha256()
    prefix_digests: tuple[str, ...] = ()
    last: bytes = b"\n"  # the byte before `next`
    line_digests: tuple[str, ...] = ()

    @property
    def resume_token(self) -> str:
        """The resume token of `next` (see `Position`): SHA-256 of all bytes before it, then shortened digests
        of the first 4 KiB, 8 KiB, 16 KiB and so on; after "/", of everything up to the end of each of the
        first lines, if these are within 4 KiB."""
        token = ".".join((self.digest.hexdigest(), *self.prefix_digests))
        return f"{token}/{','.join(self.line_digests)}" if self.line_digests else token


class LineReader:
    """A stream, how far it was read, and the digests of everything before.

    Whether `next` is inside a line depends on the byte before it alone, so the answer is the same after a
    restart. The rest of a line that was too long, or incomplete when it was taken, is skipped.
    """

    def __init__(self, stream: IO[bytes], line_bytes_max: int) -> None:
        self._stream = stream
        self._line_bytes_max = line_bytes_max
        self._chunk_bytes = max(CHUNK_BYTES, line_bytes_max + 1)
        self._ahead = b""  # read, but not taken
        self.tail = b""  # the last bytes that were read
        self.at_end = False  # whether the last read found nothing behind `_ahead`
        self._set(Checkpoint())

    @property
    def resume_token(self) -> str:
        return self.checkpoint().resume_token

    def is_prefix(self, resume_token: str) -> bool:
        """Whether the bytes before `next` are the first bytes of those that `resume_token` describes.

        Compares the digests of prefixes, which cover at least half of the bytes. Below 4 KiB, the digest of
        all complete lines: False when these are `LINE_DIGESTS_MAX` or more. A last line without its newline
        passes for one that was cut.
        """
        token, _, lines = resume_token.partition("/")
        if not self._prefix_digests:
            is_digest_of_all = 0 < len(self._line_digests) < LINE_DIGESTS_MAX
            return is_digest_of_all and self._line_digests[-1] in lines.split(",")
        digests = tuple(token.split(".")[1:])
        return bool(self._prefix_digests) and digests[: len(self._prefix_digests)] == self._prefix_digests

    @property
    def is_empty(self) -> bool:
        """Whether the stream had no byte at all at the last read."""
        return self.at_end and self.read_to == 0

    @property
    def read_to(self) -> int:
        return self.next + len(self._ahead)

    def first_line(self, *, final: bool) -> bytes | None:
        """Returns the first line, at most `FIRST_LINE_BYTES_MAX` of it; None while it is incomplete.

        Call it only at the beginning of the stream.
        """
        self._fill()
        if not self._ahead:
            return None
        line, newline, _ = self._ahead[:FIRST_LINE_BYTES_MAX].partition(b"\n")
        is_complete = newline or len(line) == FIRST_LINE_BYTES_MAX or (final and self.at_end)
        return line if is_complete else None

    def take(self, *, final: bool) -> RecordColumns | None:
        """Returns the next complete lines, each with the offset of its first byte; None when there are none.

        With `final` the last line needs no newline. A line longer than the bound is cut to one byte more than
        the bound, so that the counter rejects it for its size. Empty lines are skipped.
        """
        self._fill()
        data = self._ahead
        begin = 0 if self._last == b"\n" else data.find(b"\n") + 1 or len(data)
        end = data.rfind(b"\n", begin) + 1 or begin
        lines = data[begin:end].split(b"\n")[:-1]
        if len(data) - end > self._line_bytes_max or (final and self.at_end and end < len(data)):
            lines.append(data[end:])
            end = len(data)
        if not end:
            return None
        columns = _line_columns(lines, self.next + begin, self._line_bytes_max + 1)
        if self.next == 0 and data.startswith(BYTE_ORDER_MARK):
            columns = _without_mark(columns)
        self._advance(end)
        return columns

    def skip_to(self, offset: int) -> bool:
        """Reads up to `offset`; False when the stream ends before."""
        while self.next < offset:
            self._fill()
            if not self._ahead:
                return False
            self._advance(min(offset - self.next, len(self._ahead)))
        return True

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(
            self.next, self._digest.copy(), self._prefix_digests, self._last, self._line_digests
        )

    def go_back(self, checkpoint: Checkpoint | None = None) -> None:
        """Goes back to `checkpoint`, or to the beginning."""
        checkpoint = checkpoint or Checkpoint()
        self._stream.seek(checkpoint.next)
        self._ahead, self.tail, self.at_end = b"", b"", False
        self._set(checkpoint)

    def fileno(self) -> int:
        return self._stream.fileno()

    def close(self) -> None:
        self._stream.close()

    def _set(self, checkpoint: Checkpoint) -> None:
        self.next, digest, self._prefix_digests, self._last, self._line_digests = checkpoint
        self._digest = digest.copy()

    def _fill(self) -> None:
        while (missing := self._chunk_bytes - len(self._ahead)) > 0:
            more = self._stream.read(missing)
            self._ahead += more
            self.tail = (self.tail + more)[-TAIL_BYTES:]
            self.at_end = not more
            if self.at_end:
                return

    def _advance(self, size: int) -> None:
        """Moves `next` forward, and updates the digests."""
        passed, self._ahead = self._ahead[:size], self._ahead[size:]
        self._last = passed[-1:]
        while passed:
            prefix_bytes = FIRST_PREFIX_BYTES << len(self._prefix_digests)
            end = prefix_bytes - self.next
            if self.next < FIRST_PREFIX_BYTES and len(self._line_digests) < LINE_DIGESTS_MAX:
                end = passed.find(b"\n", 0, end) + 1 or end
            piece, passed = passed[:end], passed[end:]
            self._digest.update(piece)
            self.next += len(piece)
            is_first = self.next <= FIRST_PREFIX_BYTES and len(self._line_digests) < LINE_DIGESTS_MAX
            if is_first and piece.endswith(b"\n"):
                self._line_digests += (self._digest.hexdigest()[:LINE_DIGEST_CHARS],)
            if self.next == prefix_bytes:
                self._prefix_digests += (self._digest.hexdigest()[:16],)


def _without_mark(columns: RecordColumns) -> RecordColumns:
    """Returns the first lines of a stream without its byte order mark."""
    first, *further = columns.values
    line = (first or b"").removeprefix(BYTE_ORDER_MARK)
    if line in (b"", b"\r"):
        return columns.part(1, len(columns.values))
    return columns._replace(values=[line, *further])


def _line_columns(lines: list[bytes], first: int, bytes_max: int) -> RecordColumns:
    """Returns the lines that are not empty, cut to `bytes_max`; the first begins at offset `first`."""
    sizes = list(map(len, lines))
    # A newline follows each line, so the line at an index is behind so many newlines.
    offsets = list(map(add, accumulate(sizes, initial=first), range(len(lines))))
    if sizes and (min(sizes) < 2 or max(sizes) > bytes_max):
        mask = [line not in (b"", b"\r") for line in lines]
        offsets = list(compress(offsets, mask))
        lines = [line[:bytes_max] for line in compress(lines, mask)]
    return RecordColumns(offsets, [None] * len(lines), list(lines), sum(sizes))
