"""Lines of files that were counted, read again."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from analyzer.kernel.errors import LogUnreadable
from analyzer.kernel.model import Partition, Records
from analyzer.sources.files.compressed_files import DamagedFile, open_log
from analyzer.sources.files.file_reader import FileReader, shown_path
from analyzer.sources.files.file_sources import LINE_BYTES_MAX, stream_inode
from analyzer.sources.positions import PositionStore


class CountedFile(NamedTuple):
    """A file that was counted, as a partition, up to an offset."""

    path: Path
    part: Partition
    next: int


def counted_file(path: Path, source: str, host: str, positions: PositionStore) -> CountedFile:
    """Returns how a file was counted. Raises LogUnreadable if it was not; StoreAway."""
    if not path.is_file():
        raise LogUnreadable(f"{shown_path(str(path))}: there is no such file")
    with closing(_Lines(path, source, host)) as lines:
        counted = lines.find(positions)
    if counted is None:
        raise LogUnreadable(
            f"{shown_path(str(path))}: it was not counted as a file of the source {source}, so there is "
            f"nothing to replace; count it by `gatelock upkeep import FILE --source {shlex.quote(source)}`"
        )
    return CountedFile(path, *counted)


def read_lines(path: Path, part: Partition, end: int) -> Iterator[Records]:
    """Yields the lines of a file before an offset. Raises LogUnreadable."""
    with closing(_Lines(path, part.source, "")) as lines:
        yield from lines.before(part, end)


class _Lines:
    """An open file, whose faults are raised as LogUnreadable."""

    def __init__(self, path: Path, source: str, host: str) -> None:
        self._shown = shown_path(str(path))
        try:
            stream = open_log(str(path))
            self._reader = FileReader(
                str(path), source, stream, inode=stream_inode(stream), size=None, host=host,
                line_bytes_max=LINE_BYTES_MAX, now_s=time.monotonic(),
            )  # fmt: skip
        except (OSError, EOFError, DamagedFile) as error:
            raise LogUnreadable(f"{self._shown}: {error}") from error

    def find(self, positions: PositionStore) -> tuple[Partition, int] | None:
        try:
            return self._reader.find_counted(positions)
        except (OSError, EOFError, DamagedFile) as error:
            raise LogUnreadable(f"{self._shown}: {error}") from error

    def before(self, part: Partition, end: int) -> Iterator[Records]:
        lines = self._reader.lines
        try:
            while (start := lines.next) < end:
                columns = lines.take(final=True)
                if columns is None and lines.at_end:
                    raise LogUnreadable(
                        f"{self._shown}: it ends before the offset {end:,} up to which it was counted"
                    )
                if columns is not None:
                    yield Records(part, start, lines.next, columns)
        except (OSError, EOFError, DamagedFile) as error:
            raise LogUnreadable(f"{self._shown}: {error}") from error

    def close(self) -> None:
        self._reader.lines.close()
