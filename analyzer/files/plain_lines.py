"""Lines of a file that was counted, read again for a count that shares no code with the first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from glob import escape
from hashlib import sha256
from pathlib import Path
from typing import IO

from analyzer.errors import LogUnreadable
from analyzer.files.compressed_files import DamagedFile, open_log
from analyzer.files.line_reader import FIRST_LINE_BYTES_MAX

READ_BYTES = 1 << 20


def plain_lines(path: str, topic_id: str, end: int) -> Iterator[tuple[int, bytes]]:
    """Yields the lines of a file before an offset, each with the offset of its first byte.

    The file is the one at `path`, or one whose name begins with it, such as `access.log.1.gz`, that begins
    with the line whose digest is in `topic_id`. Empty lines are left out. Raises LogUnreadable.
    """
    file = Path(path)
    for name in [file, *sorted(file.parent.glob(escape(file.name) + "?*"))]:
        try:
            with closing(open_log(name)) as stream:
                first = _first_line(stream)
                if topic_id.startswith(sha256(first).hexdigest()):
                    stream.seek(0)
                    yield from _lines(name, stream, end)
                    return
        except (OSError, EOFError, DamagedFile):
            continue
    raise LogUnreadable(f"no file {path}, nor one whose name begins so, has the lines that were counted")


def _first_line(stream: IO[bytes]) -> bytes:
    found = b""
    while len(found) < FIRST_LINE_BYTES_MAX and b"\n" not in found and (part := stream.read(READ_BYTES)):
        found += part
    return found[:FIRST_LINE_BYTES_MAX].partition(b"\n")[0]


def _lines(name: Path, stream: IO[bytes], end: int) -> Iterator[tuple[int, bytes]]:
    at, rest = 0, b""
    while at < end:
        part = stream.read(READ_BYTES)
        if not part and at + len(rest) < end:
            raise LogUnreadable(f"{name}: it ends before the offset {end:,} up to which it was counted")
        *lines, rest = (rest + part).split(b"\n")
        if not part:
            lines, rest = [rest], b""  # the last line needs no line feed
        for line in lines:
            if line and at < end:
                yield at, line
            at += len(line) + 1
