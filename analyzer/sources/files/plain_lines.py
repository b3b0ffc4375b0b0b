"""Lines of a file that was counted, read again for a count that shares no code with the first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from glob import escape
from hashlib import sha256
from pathlib import Path
from typing import IO

from analyzer.kernel.errors import LogUnreadable
from analyzer.sources.files.compressed_files import DamagedFile, open_log
from analyzer.sources.files.line_reader import BYTE_ORDER_MARK, FIRST_LINE_BYTES_MAX

READ_BYTES = 1 << 20


def plain_lines(path: str, topic_id: str, end: int) -> Iterator[tuple[int, bytes]]:
    """Yields the lines of a file before an offset, each with the offset of its first byte.

    The file is that of `counted_as`. Empty lines are left out. Raises LogUnreadable.
    """
    file = counted_as(path, topic_id)
    try:
        with closing(open_log(file)) as stream:
            yield from _lines(file, stream, end)
    except (OSError, EOFError, DamagedFile) as error:
        raise LogUnreadable(f"{file}: {error}") from error


def counted_as(path: str, topic_id: str) -> Path:
    """Returns the file that was counted from a path under a topic id, which may have been renamed since.

    The one at `path`, or one whose name begins with it, such as `access.log.1.gz`, that begins with the line
    whose digest is in `topic_id`. Raises LogUnreadable for none, or several.
    """
    file = Path(path)
    names = [file, *sorted(file.parent.glob(escape(file.name) + "?*"))]
    matches = [
        name for name in names if (digest := _digest_of_first_line(name)) and topic_id.startswith(digest)
    ]
    if not matches:
        raise LogUnreadable(f"no file {path}, nor one whose name begins so, has the lines that were counted")
    if len(matches) > 1:
        shown = " and ".join(map(str, matches))
        raise LogUnreadable(f"{shown} begin with the same line: move those away that were not counted")
    return matches[0]


def _digest_of_first_line(file: Path) -> str:
    """Returns the digest by which a file is recognised; "" for one that cannot be read."""
    first = b""
    with suppress(OSError, EOFError, DamagedFile), closing(open_log(file)) as stream:
        while len(first) < FIRST_LINE_BYTES_MAX and b"\n" not in first and (part := stream.read(READ_BYTES)):
            first += part
    line = first[:FIRST_LINE_BYTES_MAX].partition(b"\n")[0]
    return sha256(line).hexdigest() if first else ""


def _lines(file: Path, stream: IO[bytes], end: int) -> Iterator[tuple[int, bytes]]:
    offset, partial = 0, b""
    while offset < end:
        part = stream.read(READ_BYTES)
        if not part and offset + len(partial) < end:
            raise LogUnreadable(f"{file}: it ends before the offset {end:,} up to which it was counted")
        *lines, partial = (partial + part).split(b"\n")
        if not part:
            lines, partial = [partial], b""  # the last line needs no line feed
        for line in lines:
            content = line.removeprefix(BYTE_ORDER_MARK) if offset == 0 else line
            if content and offset < end:
                yield offset, content
            offset += len(line) + 1
