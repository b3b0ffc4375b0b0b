"""A stream of bytes, read as lines from its beginning."""

from __future__ import annotations

import hashlib
from typing import IO, NamedTuple

from analyzer.core.model import Record

CHUNK_BYTES = 1 << 20
FIRST_LINE_BYTES_MAX = 64 * 1024
TAIL_BYTES = 256
FIRST_PREFIX_BYTES = 4096


class Checkpoint(NamedTuple):
    """A place to come back to."""

    next: int = 0
    digest: hashlib._Hash = hashlib.sha256()
    prints: tuple[str, ...] = ()
    last: bytes = b"\n"


class LineReader:
    """Where we are in a stream, and the digest of everything before.

    Whether we stand inside a line is told by the byte before us and by nothing else, so that it holds
    after a restart as well: the rest of such a line, which was too long or not finished when it was
    taken, is passed over.
    """

    def __init__(self, stream: IO[bytes], line_bytes_max: int) -> None:
        self._stream = stream
        self._line_bytes_max = line_bytes_max
        self._chunk_bytes = max(CHUNK_BYTES, line_bytes_max + 1)
        self._ahead = b""  # read, but not taken
        self.tail = b""  # the last bytes that were read
        self.at_end = False  # nothing was behind `_ahead` when we last looked
        self._stand_at(Checkpoint())

    @property
    def resume_token(self) -> str:
        """SHA-256 of all bytes before `next`, and the prints of their first 4 KiB, 8 KiB, 16 KiB, ..."""
        return ".".join((self._digest.hexdigest(), *self._prints))

    def begins(self, resume_token: str) -> bool:
        """Whether the bytes before `next` are a prefix of those that `resume_token` describes.

        Compares the digests in the token: of at least half of the bytes, and of no less than 4 KiB.
        """
        prints = tuple(resume_token.split(".")[1:])
        return bool(self._prints) and prints[: len(self._prints)] == self._prints

    @property
    def empty(self) -> bool:
        """Whether there was nothing at all when we last looked."""
        return self.at_end and self.read_to == 0

    @property
    def read_to(self) -> int:
        return self.next + len(self._ahead)

    def first_line(self, *, final: bool) -> bytes | None:
        """The first line, as much of it as a file is known by; None while it is not there. Only where the
        stream begins."""
        self._fill()
        if not self._ahead:
            return None
        line, newline, _ = self._ahead[:FIRST_LINE_BYTES_MAX].partition(b"\n")
        whole = newline or len(line) == FIRST_LINE_BYTES_MAX or (final and self.at_end)
        return line if whole else None

    def take(self, *, final: bool) -> list[Record] | None:
        """The next whole lines, with the offset of their first byte; None when there are none.

        With `final` the last line needs no newline. A line that is longer than the bound is given up to
        one byte more than that, so that it is refused for its size. Empty lines are nobody's request.
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
        records, offset = [], self.next + begin
        for line in lines:
            if line not in (b"", b"\r"):
                records.append(Record(offset, None, line[: self._line_bytes_max + 1]))
            offset += len(line) + 1
        self._pass(end)
        return records

    def pass_to(self, offset: int) -> bool:
        """Go forward to `offset`; False when the stream ends before."""
        while self.next < offset:
            self._fill()
            if not self._ahead:
                return False
            self._pass(min(offset - self.next, len(self._ahead)))
        return True

    def mark(self) -> Checkpoint:
        return Checkpoint(self.next, self._digest.copy(), self._prints, self._last)

    def go_back(self, mark: Checkpoint | None = None) -> None:
        """Stand where `mark` was taken, or at the beginning."""
        mark = mark or Checkpoint()
        self._stream.seek(mark.next)
        self._ahead, self.tail, self.at_end = b"", b"", False
        self._stand_at(mark)

    def fileno(self) -> int:
        return self._stream.fileno()

    def close(self) -> None:
        self._stream.close()

    def _stand_at(self, mark: Checkpoint) -> None:
        self.next, self._digest, self._prints, self._last = (
            mark.next,
            mark.digest.copy(),
            mark.prints,
            mark.last,
        )

    def _fill(self) -> None:
        while (wanted := self._chunk_bytes - len(self._ahead)) > 0:
            more = self._stream.read(wanted)
            self._ahead += more
            self.tail = (self.tail + more)[-TAIL_BYTES:]
            self.at_end = not more
            if self.at_end:
                return

    def _pass(self, size: int) -> None:
        passed, self._ahead = self._ahead[:size], self._ahead[size:]
        self._last = passed[-1:]
        while passed:
            print_at = FIRST_PREFIX_BYTES << len(self._prints)
            piece, passed = passed[: print_at - self.next], passed[print_at - self.next :]
            self._digest.update(piece)
            self.next += len(piece)
            if self.next == print_at:
                self._prints += (self._digest.hexdigest()[:16],)
