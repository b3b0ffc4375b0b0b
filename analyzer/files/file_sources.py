"""Request records out of files: one that is followed while it grows and rotates, and files read once.

The offset of a record is the byte at which its line begins, in what a compressed file unpacks to. How
a file is known again is told in `analyzer.files.file_reader`.
"""

from __future__ import annotations

import gzip
import logging
import os
import shutil
import sys
import tempfile
import time
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Literal, cast

from analyzer.core.model import Gap, Lag, Partition, Records
from analyzer.files.file_reader import FileReader, Inode
from analyzer.sources import PositionStore

log = logging.getLogger(__name__)

LINE_BYTES_MAX = 1 << 20
QUIET_S = 1.0  # after a rotation the writer goes on in the old file, until it opens the new one
ROTATIONS_MAX = 100  # files that wait to be read; each of them is open
READ_ERRORS = (OSError, EOFError, zlib.error)

OpenFiles = dict[str, FileReader]


class FileQueue:
    """The open files of one source, oldest first. `held` are all that this process reads."""

    def __init__(
        self,
        source: str,
        places: PositionStore,
        held: OpenFiles,
        line_bytes_max: int,
        uptime_s: Callable[[], float],
    ) -> None:
        self.open: list[FileReader] = []
        self._source = source
        self._places = places
        self._held = held
        self._line_bytes_max = line_bytes_max
        self._uptime_s = uptime_s

    def add(self, path: str, stream: IO[bytes], size: Callable[[], int] | None = None) -> None:
        self.open.append(
            FileReader(
                path,
                self._source,
                stream,
                inode=inode_of(stream),
                size=size,
                line_bytes_max=self._line_bytes_max,
                now_s=self._uptime_s(),
            )
        )

    def take(self, final: Callable[[FileReader], bool], *, latest: bool = False) -> Records | None:
        """What comes next; None when there is nothing now. Raises StoreAway."""
        self._let_go()
        for reading in self.open:
            if reading.over():
                continue
            records = self._read(reading, final=final(reading), latest=latest)
            if records is not None:
                return records
            if not reading.over():
                break
        return None

    def _read(self, reading: FileReader, *, final: bool, latest: bool) -> Records | None:
        try:
            if not reading.placed:
                reading.place(self._places, self._held, final=final, latest=latest)
            ready = reading.placed and not reading.stopped
            records = reading.take(self._uptime_s(), final=final) if ready else None
        except READ_ERRORS as failed:
            reading.unreadable = f"cannot be read on: {failed!r}"
            log.error("%s: %s", reading.path, reading.unreadable)  # noqa: TRY400 - the reason is all there is
            return None
        if reading.placed:
            self._hold(reading)
        nothing = final and records is None and (reading.placed or reading.lines.empty)
        reading.ended = reading.ended or (nothing and not reading.stopped)
        return records

    def _let_go(self) -> None:
        """Close what is read and stored to its end. Raises StoreAway."""
        for reading in [each for each in self.open if each.done]:
            if reading.part is not None:
                self._places.finish([reading.part])
            self._close(reading)

    def _hold(self, reading: FileReader) -> None:
        """Say in this process which log `reading` is."""
        self._forget(reading)
        if reading.part is not None:
            self._held[reading.part.topic_id] = reading

    def _forget(self, reading: FileReader) -> None:
        for topic_id in [each for each, holder in self._held.items() if holder is reading]:
            del self._held[topic_id]

    def _close(self, reading: FileReader) -> None:
        self.open.remove(reading)
        self._forget(reading)
        reading.lines.close()

    def _placed(self) -> dict[Partition, FileReader]:
        return {each.part: each for each in list(self.open) if each.part is not None and each.placed}

    def lags(self) -> dict[Partition, Lag]:
        now_s = self._uptime_s()
        return {part: reading.lag(now_s) for part, reading in self._placed().items()}

    def positions(self) -> dict[Partition, int]:
        # Of a stopped file the counter may have refused a part of what it was given.
        return {
            part: reading.stored if reading.stopped else reading.lines.next
            for part, reading in self._placed().items()
        }

    def problems(self) -> dict[str, str]:
        return {each.path: why for each in list(self.open) if (why := each.stopped)}

    def rewind(self, parts: Collection[Partition] | None) -> None:
        for reading in self.open:
            if parts is None or reading.part in parts:
                reading.rewind()

    def stop(self, part: Partition, gap: Gap) -> None:
        for reading in self.open:
            if reading.part == part:
                log.error("%s: stopped: %s", reading.path, gap.why)
                reading.gap = gap

    def stopped(self) -> dict[Partition, Gap]:
        return {part: gap for part, reading in self._placed().items() if (gap := reading.gap) is not None}

    def acknowledge(self, stored: Mapping[Partition, int]) -> None:
        for part, reading in self._placed().items():
            if part in stored:
                reading.acknowledge(stored[part])

    def close(self) -> None:
        for reading in list(self.open):
            self._close(reading)


class FollowedFile:
    """The lines of a file that is being written, also after it was renamed or cut to nothing. A `Source`.

    A line is taken when it is whole. Of a rotated file the rest is read before the new one, and its
    last line counts without a newline once the file has been quiet for a second. Files that are
    followed in one process share a `held`.
    """

    def __init__(
        self,
        path: Path | str,
        source: str,
        places: PositionStore,
        *,
        start: Literal["earliest", "latest"] = "earliest",
        line_bytes_max: int = LINE_BYTES_MAX,
        held: OpenFiles | None = None,
        uptime_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._path = Path(path)
        self._source = source
        self._places = places
        self._uptime_s = uptime_s
        self._sleep = sleep
        self._readings = FileQueue(source, places, {} if held is None else held, line_bytes_max, uptime_s)
        self._absent = ""
        # None: not known yet. Only a log that nothing was ever counted of may begin at its end.
        self._latest: bool | None = None if start == "latest" else False

    def take(self, timeout_s: float) -> Iterator[Records]:
        records = self._next()
        if records is None and timeout_s > 0:
            self._sleep(timeout_s)
            records = self._next()
        if records is not None:
            yield records

    def _next(self) -> Records | None:
        self._look()
        if self._latest is None:
            self._latest = not self._places.logs(self._source, str(self._path))
        latest = self._latest and len(self._readings.open) == 1
        records = self._readings.take(self._final, latest=latest)
        if latest and self._readings.positions():
            self._latest = False
        return records

    def _look(self) -> None:
        """See whether another file stands at our path, or less of the same."""
        newest = self._readings.open[-1] if self._readings.open else None
        try:
            now = self._path.stat()
            self._absent = ""
            if newest is None or newest.ended or (now.st_dev, now.st_ino) != newest.inode:
                self._open()
            elif was_truncated(newest):
                newest.cut = newest.ended = True
                self._open()
        except OSError as failed:
            self._absent = f"cannot be opened: {failed.strerror}"

    def _open(self) -> None:
        if len(self._readings.open) >= ROTATIONS_MAX:
            self._absent = f"{ROTATIONS_MAX} rotated files wait to be read"
            return
        stream = self._path.open("rb", buffering=0)
        self._readings.add(str(self._path), stream, size=lambda: os.fstat(stream.fileno()).st_size)

    def _final(self, reading: FileReader) -> bool:
        """Whether nobody writes to this file any more."""
        newest = self._readings.open[-1]
        since_s = max(reading.grew_s, newest.opened_s)
        return reading is not newest and self._uptime_s() - since_s >= QUIET_S

    def lags(self) -> dict[Partition, Lag]:
        return self._readings.lags()

    def positions(self) -> dict[Partition, int]:
        return self._readings.positions()

    def problems(self) -> dict[str, str]:
        found = self._readings.problems()
        return {str(self._path): self._absent} | found if self._absent else found

    def rewind(self, parts: Collection[Partition] | None = None) -> None:
        self._readings.rewind(parts)

    def stop(self, part: Partition, gap: Gap) -> None:
        self._readings.stop(part, gap)

    def stopped(self) -> dict[Partition, Gap]:
        return self._readings.stopped()

    def acknowledge(self, stored: Mapping[Partition, int]) -> None:
        self._readings.acknowledge(stored)

    def close(self) -> None:
        self._readings.close()


class ImportedFiles:
    """The lines of files, each read once to its end. A `Source` that is `done` one day.

    `.gz` is unpacked; `-` is standard input, which is kept in a temporary file first, because what was
    not stored has to be read again. A last line counts without its newline.
    """

    def __init__(
        self,
        paths: Sequence[Path | str],
        source: str,
        places: PositionStore,
        *,
        line_bytes_max: int = LINE_BYTES_MAX,
        stdin: IO[bytes] | None = None,
        uptime_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Raises OSError when one of the files is not there, before anything is read."""
        self._paths = deque(str(path) for path in paths)
        for path in self._paths:
            if path != "-":
                Path(path).open("rb").close()
        self._stdin = stdin
        self._sleep = sleep
        self._readings = FileQueue(source, places, {}, line_bytes_max, uptime_s)

    @property
    def done(self) -> bool:
        """Whether everything was taken and is stored; what `problems()` tells will not get further."""
        return not self._paths and all(each.stopped for each in self._readings.open)

    def take(self, timeout_s: float) -> Iterator[Records]:
        records = self._next()
        if records is not None:
            yield records
        elif not self.done:
            self._sleep(timeout_s)  # until what was taken is stored

    def _next(self) -> Records | None:
        records = self._readings.take(lambda reading: True)
        while records is None and self._paths and all(each.over() for each in self._readings.open):
            path = self._paths.popleft()
            self._readings.add(path, self._opened(path))
            records = self._readings.take(lambda reading: True)
        return records

    def _opened(self, path: str) -> IO[bytes]:
        if path == "-":
            spooled = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the reading
            shutil.copyfileobj(self._stdin or sys.stdin.buffer, spooled)
            spooled.seek(0)
            return spooled
        if path.endswith(".gz"):
            return cast("IO[bytes]", gzip.open(path, "rb"))
        return Path(path).open("rb")

    def lags(self) -> dict[Partition, Lag]:
        return self._readings.lags()

    def positions(self) -> dict[Partition, int]:
        return self._readings.positions()

    def problems(self) -> dict[str, str]:
        return self._readings.problems()

    def rewind(self, parts: Collection[Partition] | None = None) -> None:
        self._readings.rewind(parts)

    def stop(self, part: Partition, gap: Gap) -> None:
        self._readings.stop(part, gap)

    def stopped(self) -> dict[Partition, Gap]:
        return self._readings.stopped()

    def acknowledge(self, stored: Mapping[Partition, int]) -> None:
        self._readings.acknowledge(stored)

    def close(self) -> None:
        self._readings.close()


def inode_of(stream: IO[bytes]) -> Inode:
    status = os.fstat(stream.fileno())
    return status.st_dev, status.st_ino


def was_truncated(reading: FileReader) -> bool:
    """Whether what we have read of the file is not in it any more: it is shorter, or was written anew."""
    descriptor, tail = reading.lines.fileno(), reading.lines.tail
    if os.fstat(descriptor).st_size < reading.lines.read_to:
        return True
    return os.pread(descriptor, len(tail), reading.lines.read_to - len(tail)) != tail
