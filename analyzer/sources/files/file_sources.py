"""Sources of request records in files: one that is followed while it grows and rotates, and imported ones.

The offset of a record is the byte at which its line begins, in the decompressed content. How a file is
identified is described in `analyzer.sources.files.file_reader`.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shlex
import shutil
import stat
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Literal

from analyzer.kernel.model import Gap, Lag, Partition, Records
from analyzer.sources.files.compressed_files import DamagedFile, open_log, plain_content
from analyzer.sources.files.file_reader import FileReader, Inode, shown_path
from analyzer.sources.positions import PositionStore

log = logging.getLogger(__name__)

LINE_BYTES_MAX = 1 << 20
QUIET_S = 1.0  # after a rotation, the writer continues in the old file until it opens the new one
ROTATIONS_MAX = 100  # rotated files that wait to be read, each of them open
ABSENT_LOGGED_S = 1.0  # a rotation leaves the path without a file for a moment
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)  # this process, or its machine, can open no more files
# What rotation appends to a name: a number or a date, and the suffix of a compression.
ROTATED = re.compile(r"[.-]\d[\d.T:_-]*(?P<compressed>\.(gz|bz2|xz|zst|lz4))?")
READ_ERRORS = (OSError, EOFError, DamagedFile)

OpenFiles = dict[str, FileReader]  # all files that this process reads, by topic id


class FileQueue:
    """The open files of one source, oldest first. A file is read to its end before the next one."""

    def __init__(
        self,
        source: str,
        positions: PositionStore,
        open_files: OpenFiles,
        line_bytes_max: int,
        uptime_s: Callable[[], float],
        host: str,
        wall_ms: Callable[[], int] | None,
    ) -> None:
        self.files: list[FileReader] = []
        self._host = host
        self._wall_ms = wall_ms
        self._source = source
        self._positions = positions
        self._open_files = open_files
        self._line_bytes_max = line_bytes_max
        self._uptime_s = uptime_s

    def add(self, path: str, stream: IO[bytes], size: Callable[[], int] | None = None) -> None:
        self.files.append(
            FileReader(
                path,
                self._source,
                stream,
                inode=stream_inode(stream),
                size=size,
                line_bytes_max=self._line_bytes_max,
                now_s=self._uptime_s(),
                host=self._host,
                wall_ms=self._wall_ms,
            )
        )

    def take(self, is_final: Callable[[FileReader], bool], *, latest: bool = False) -> Records | None:
        """Returns the next records; None when there are none now. Raises StoreAway.

        `is_final` says of a file whether it is complete. `latest`: see `FileReader.place`.
        """
        self._close_done()
        for file in self.files:
            if file.is_exhausted():
                continue
            records = self._read(file, final=is_final(file), latest=latest)
            if records is not None:
                return records
            if not file.is_exhausted():
                break
        return None

    def _read(self, file: FileReader, *, final: bool, latest: bool) -> Records | None:
        try:
            if not file.is_placed:
                file.place(self._positions, self._open_files, final=final, latest=latest)
            is_ready = file.is_placed and not file.stopped
            records = file.take(self._uptime_s(), final=final) if is_ready else None
        except READ_ERRORS as error:
            file.unreadable = f"the rest cannot be read: {error!r}; repair the file, or import a copy"
            log.error("%s: %s", file.path, file.unreadable)  # noqa: TRY400 - the trace would not say more
            return None
        if file.is_placed:
            self._register(file)
        found_end = final and records is None and (file.is_placed or file.lines.is_empty)
        file.has_ended = file.has_ended or (found_end and not file.stopped)
        return records

    def _close_done(self) -> None:
        """Closes the files that are stored to their end. Raises StoreAway."""
        for file in [file for file in self.files if file.is_done]:
            if file.part is not None:
                self._positions.finish([file.part])
            self._close(file)

    def _register(self, file: FileReader) -> None:
        """Enters the file in `open_files` under its present topic id."""
        self._unregister(file)
        if file.part is not None:
            self._open_files[file.part.topic_id] = file

    def _unregister(self, file: FileReader) -> None:
        for topic_id in [topic_id for topic_id, holder in self._open_files.items() if holder is file]:
            del self._open_files[topic_id]

    def _close(self, file: FileReader) -> None:
        self.files.remove(file)
        self._unregister(file)
        file.lines.close()

    def placed(self) -> dict[Partition, FileReader]:
        """Returns the files that stand at their position. Any thread may call it."""
        return {file.part: file for file in list(self.files) if file.part is not None and file.is_placed}

    def lags(self) -> dict[Partition, Lag]:
        now_s = self._uptime_s()
        return {part: file.lag(now_s) for part, file in self.placed().items()}

    def close(self) -> None:
        for file in list(self.files):
            self._close(file)


class QueueSource:
    """The part of a `Source` that depends on its queue of files alone."""

    __slots__ = ()
    _queue: FileQueue

    def lags(self) -> dict[Partition, Lag]:
        return self._queue.lags()

    def positions(self) -> dict[Partition, int]:
        # Of a stopped file the counter may have refused a part of what it was given.
        return {
            part: file.stored if file.stopped else file.lines.next
            for part, file in self._queue.placed().items()
        }

    def problems(self) -> dict[str, str]:
        return {file.path: reason for file in list(self._queue.files) if (reason := file.stopped)}

    def rewind(self, parts: Collection[Partition] | None = None) -> None:
        for file in self._queue.files:
            if parts is None or file.part in parts:
                file.rewind()

    def stop(self, part: Partition, gap: Gap) -> None:
        for file in self._queue.files:
            if file.part == part:
                log.error("%s: stopped: %s", file.path, gap.why)
                file.gap = gap

    def stopped(self) -> dict[Partition, Gap]:
        return {part: gap for part, file in self._queue.placed().items() if (gap := file.gap) is not None}

    def acknowledge(self, stored: Mapping[Partition, int]) -> None:
        for part, file in self._queue.placed().items():
            if part in stored:
                file.acknowledge(stored[part])

    def close(self) -> None:
        self._queue.close()


class FollowedFile(QueueSource):
    """A `Source` of the lines of a file that is being written, also after it was renamed or truncated.

    A line is taken when it is complete. A rotated file is read to its end before the new one; its last line
    counts without a newline once the file has been quiet for a second. Sources of one process share
    `open_files`. `host` tells equal files of machines that share a database apart. Records whose time is too
    far ahead of `wall_ms`, milliseconds since 1970, are rejected; None: no bound.
    """

    def __init__(
        self,
        path: Path | str,
        source: str,
        positions: PositionStore,
        *,
        start: Literal["earliest", "latest"] = "earliest",
        line_bytes_max: int = LINE_BYTES_MAX,
        open_files: OpenFiles | None = None,
        host: str = "",
        wall_ms: Callable[[], int] | None = None,
        uptime_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._path = Path(path)
        self._source = source
        self._positions = positions
        self._uptime_s = uptime_s
        self._sleep = sleep
        open_files = {} if open_files is None else open_files
        self._queue = FileQueue(source, positions, open_files, line_bytes_max, uptime_s, host, wall_ms)
        self._absent = ""  # why the file at the path cannot be opened
        self._absent_since_s, self._is_absence_logged = 0.0, False
        # Files that were at the path and could not be opened then, oldest first: they are opened later, also
        # when they have been rotated away meanwhile.
        self._unopened: deque[Inode] = deque(maxlen=ROTATIONS_MAX)
        # None: not known yet. Only a path under which nothing was ever counted may begin at its end.
        self._latest: bool | None = None if start == "latest" else False

    def take(self, timeout_s: float) -> Iterator[Records]:
        records = self._next()
        if records is None and timeout_s > 0:
            self._sleep(timeout_s)
            records = self._next()
        if records is not None:
            yield records

    def _next(self) -> Records | None:
        self._check_path()
        if self._latest is None:
            self._latest = not self._positions.logs(self._source, shown_path(str(self._path)))
        latest = self._latest and len(self._queue.files) == 1
        records = self._queue.take(self._is_final, latest=latest)
        if latest and self._queue.placed():
            self._latest = False
        return records

    def _check_path(self) -> None:
        """Opens the file at the path if it is another one than before, or was truncated."""
        newest = self._queue.files[-1] if self._queue.files else None
        inode = None
        try:
            now = self._path.stat()
            inode = now.st_dev, now.st_ino
            if newest is not None and inode != newest.inode:
                compressed = self._find_passed_over(newest, inode)
                self._open(inode)
                self._report_compressed(compressed)
            elif newest is None or newest.has_ended:
                self._open(inode)
            elif was_truncated(newest):
                newest.is_truncated = newest.has_ended = True
                self._open(inode)
            else:
                self._report_absence("")
        except OSError as error:
            if inode is not None and inode not in self._unopened:
                self._unopened.append(inode)
            self._report_absence(f"cannot be opened: {error.strerror}; check the path and its permissions")

    def _find_passed_over(self, newest: FileReader, inode: Inode) -> list[Path]:
        """Finds files that were at the path since it was last looked at, and were rotated away again.

        Such files were written after the newest one that is known. They are opened before `inode`, which is
        the one at the path. Returns those that are compressed by now. Raises OSError.
        """
        written_ns = os.fstat(newest.lines.fileno()).st_mtime_ns
        inodes = {file.inode for file in self._queue.files} | {inode, *self._unopened}
        plain, compressed = [], []
        for path in self._path.parent.iterdir():
            rotated = ROTATED.fullmatch(path.name.removeprefix(self._path.name))
            if rotated is None or not path.name.startswith(self._path.name):
                continue
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) in inodes:
                continue
            if rotated["compressed"]:
                # With the time of the file that was compressed. Of the newest one, the rest is open.
                if status.st_mtime_ns > written_ns:
                    compressed.append(path)
            elif status.st_mtime_ns >= written_ns:  # the clock of a file system ticks in milliseconds
                plain.append((status.st_mtime_ns, (status.st_dev, status.st_ino)))
        self._unopened.extend(passed_over for _, passed_over in sorted(plain))
        return compressed

    def _report_compressed(self, paths: Sequence[Path]) -> None:
        for path in sorted(paths):
            log.error(
                "%s was rotated and compressed before it was read, and is not counted: run "
                "`gatelock upkeep import %s --source %s`, and let logrotate delay compression "
                "(delaycompress)",
                path, shlex.quote(str(path)), shlex.quote(self._source),
            )  # fmt: skip

    def _open(self, inode: Inode) -> None:
        if len(self._queue.files) >= ROTATIONS_MAX:
            if inode not in self._unopened:
                self._unopened.append(inode)
            self._report_absence(
                f"{ROTATIONS_MAX} rotated files wait to be read, so the new one is not opened yet"
            )
            return
        while self._unopened and self._unopened[0] != inode:
            self._open_renamed(self._unopened[0])
            self._unopened.popleft()
        self._add(self._path)
        self._unopened.clear()
        self._report_absence("")

    def _open_renamed(self, inode: Inode) -> None:
        """Opens a file that could not be opened while it was at the path, under its name by now.

        Raises OSError when this process has no descriptor left.
        """
        reason = "it is not in the same folder"
        try:
            with os.scandir(self._path.parent) as entries:
                path = next((entry.path for entry in entries if entry.inode() == inode[1]), None)
            if path is not None:
                self._add(Path(path))
                return
        except OSError as error:
            if error.errno in OUT_OF_FILES:
                raise
            reason = str(error)
        log.error(
            "%s: a file was moved away before it could be opened, and is not counted: %s; "
            "find it, and run `gatelock upkeep import FILE --source %s`",
            self._path, reason, shlex.quote(self._source),
        )  # fmt: skip

    def _add(self, path: Path) -> None:
        stream = path.open("rb", buffering=0)
        self._queue.add(str(self._path), stream, size=lambda: os.fstat(stream.fileno()).st_size)

    def _report_absence(self, reason: str) -> None:
        """Keeps the reason for `problems`, and logs it once when it has lasted for a while."""
        if not reason or not self._absent:
            self._absent_since_s, self._is_absence_logged = self._uptime_s(), False
        self._absent = reason
        if (
            reason
            and not self._is_absence_logged
            and self._uptime_s() - self._absent_since_s >= ABSENT_LOGGED_S
        ):
            self._is_absence_logged = True
            log.error("%s %s", self._path, reason)

    def _is_final(self, file: FileReader) -> bool:
        """Whether the file was rotated away and has not grown since for `QUIET_S`."""
        newest = self._queue.files[-1]
        since_s = max(file.grew_s, newest.opened_s)
        return file is not newest and self._uptime_s() - since_s >= QUIET_S

    def rewind(self, parts: Collection[Partition] | None = None) -> None:
        # Nothing is taken while the database is away, but each attempt to reach it ends here.
        self._check_path()
        super().rewind(parts)

    def problems(self) -> dict[str, str]:
        problems = super().problems()
        return {shown_path(str(self._path)): self._absent} | problems if self._absent else problems


class ImportedFiles(QueueSource):
    """A `Source` of the lines of files that are each read once, to the end; then it is `done`.

    gzip and zstd are decompressed. `-` is standard input; it is copied to a temporary file first, because
    what was not stored must be read again. A last line counts without its newline. `host` and `wall_ms`: see
    `FollowedFile`.
    """

    def __init__(
        self,
        paths: Sequence[Path | str],
        source: str,
        positions: PositionStore,
        *,
        line_bytes_max: int = LINE_BYTES_MAX,
        stdin: IO[bytes] | None = None,
        host: str = "",
        wall_ms: Callable[[], int] | None = None,
        uptime_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Raises OSError when one of the files cannot be opened, before any is read."""
        self._paths = deque(str(path) for path in paths)
        for path in self._paths:
            if path != "-":
                Path(path).open("rb").close()
        self._stdin = stdin
        self._sleep = sleep
        self._queue = FileQueue(source, positions, {}, line_bytes_max, uptime_s, host, wall_ms)

    @property
    def done(self) -> bool:
        """Whether everything was taken and stored, except for files that `problems()` names."""
        return not self._paths and all(file.stopped for file in self._queue.files)

    def take(self, timeout_s: float) -> Iterator[Records]:
        records = self._next()
        if records is not None:
            yield records
        elif not self.done:
            self._sleep(timeout_s)  # until what was taken is stored

    def _next(self) -> Records | None:
        records = self._queue.take(lambda file: True)
        while records is None and self._paths and all(file.is_exhausted() for file in self._queue.files):
            path = self._paths.popleft()
            self._queue.add(path, self._opened(path))
            records = self._queue.take(lambda file: True)
        return records

    def _opened(self, path: str) -> IO[bytes]:
        if path == "-":
            spooled = tempfile.TemporaryFile()  # noqa: SIM115 - closed with its reader
            shutil.copyfileobj(self._stdin or sys.stdin.buffer, spooled)
            spooled.seek(0)
            return plain_content(spooled)
        return open_log(path)


def stream_inode(stream: IO[bytes]) -> Inode:
    status = os.fstat(stream.fileno())
    return status.st_dev, status.st_ino


def was_truncated(file: FileReader) -> bool:
    """Whether bytes that were read are not in the file any more: it is shorter, or was written again."""
    descriptor, tail = file.lines.fileno(), file.lines.tail
    if os.fstat(descriptor).st_size < file.lines.read_to:
        return True
    return os.pread(descriptor, len(tail), file.lines.read_to - len(tail)) != tail
