"""Locks out of a file: one JSON document in the feed's format, a snapshot, replaced when they change."""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from gatekeeper.feed import feed_json
from gatekeeper.model import Cursor, SourceError, Update

FILE_BYTES_MAX = 64 << 20  # some 200,000 locks; a log that was named by mistake is not read into memory


class FileContent(NamedTuple):
    """What was in the file, and by what one knows that it is still the same file."""

    stamp: tuple[int, ...]
    update: Update


class FileSource:
    """The snapshot in the file at `path`, read again whenever it is another file or was written to.

    Write the new one beside it and rename it over the old one. While a file is half written, or is
    not there, `fetch` raises SourceError and the gate keeps what it knows. The document's `now` says
    when it was written: a file that nobody renews falls ever more behind.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._read: FileContent | None = None

    def fetch(self, since: Cursor | None) -> Update:
        try:
            if self._read is None or self._read.stamp != _stamp(self._path.stat()):
                self._read = _read(self._path)
        except OSError as error:
            raise SourceError(f"{self._path}: {error.strerror}") from error
        now = datetime.now(UTC)
        update = self._read.update
        age_s = max(0.0, (now - update.now).total_seconds())
        update = update._replace(now=now, behind=update.behind + age_s)
        if since != update.at:
            return update
        return update._replace(since=since.version, snapshot=False, changes=(), unknown=())

    def close(self) -> None:
        """Nothing is held open between two fetches."""


def _read(path: Path) -> FileContent:
    with path.open("rb") as file:
        # Before the reading: a file that is written to meanwhile must be read once more.
        stamp = _stamp(os.fstat(file.fileno()))
        text = file.read(FILE_BYTES_MAX + 1)
    if len(text) > FILE_BYTES_MAX:
        raise SourceError(f"{path}: more than {FILE_BYTES_MAX} bytes; is this the right file?")
    try:
        update = feed_json.load(text)
    except SourceError as error:
        raise SourceError(f"{path}: {error}") from error
    if not update.snapshot:
        raise SourceError(f"{path}: expected a snapshot, got the changes since version {update.since}")
    # The mark is made from the content, so that a file edited by hand, its version left as it was, is seen.
    mark = hashlib.sha256(text).hexdigest()[:16]
    return FileContent(stamp, update._replace(at=Cursor(update.at.version, mark)))


def _stamp(stat: os.stat_result) -> tuple[int, ...]:
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
