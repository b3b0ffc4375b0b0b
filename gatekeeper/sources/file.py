"""Locks from a file: one JSON document in the feed's format, a snapshot, replaced when the locks change."""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from gatekeeper.feed import feed_json
from gatekeeper.feed.saved_view import open_regular
from gatekeeper.model import Cursor, SourceError, Update

__all__ = ["FileSource"]

FILE_BYTES_MAX = 64 << 20  # some 200,000 locks; a log that is named by mistake is not read into memory


class FileContent(NamedTuple):
    """A parsed file, with the stat fields that show whether it was replaced or written to."""

    stamp: tuple[int, ...]
    update: Update


class FileSource:
    """A LockSource that reads a snapshot from a JSON file. A `Gate` makes one from a file:///PATH URL.

    The file is read again whenever it was replaced or written to. To change it, write a new file next to it
    and rename that. While the file is missing or incomplete, `fetch` raises SourceError and the gate keeps
    the locks that it knows. The document's `now` is the time when it was written; the gate's `behind` is the
    time since.

    Args:
        path: The file, in the format of docs/feed.md, 64 MiB at most.

    Example:
        >>> import tempfile
        >>> text = '{"format": 1, "version": 1, "snapshot": true, "now": "2026-11-20T21:14Z", "changes": []}'
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "locks.json")
        ...     written = path.write_text(text)
        ...     FileSource(path).fetch(None).at.version
        1
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._content: FileContent | None = None

    def fetch(self, since: Cursor | None) -> Update:
        """Returns the snapshot, or no changes if `since` is its version. Raises SourceError."""
        try:
            if self._content is None or self._content.stamp != _stamp(self._path.stat()):
                self._content = _read(self._path)
        except OSError as error:
            raise SourceError(f"{self._path}: {error.strerror}") from error
        now = datetime.now(UTC)
        update = self._content.update
        age_s = max(0.0, (now - update.now).total_seconds())
        update = update._replace(now=now, behind=update.behind + age_s)
        if since != update.at:
            return update
        return update._replace(since=since.version, snapshot=False, changes=(), unknown=())

    def close(self) -> None:
        """Does nothing: no file is open between two fetches."""


def _read(path: Path) -> FileContent:
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:  # may be a link, as in Kubernetes
        # Before reading, so that a file that is written to meanwhile is read again.
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
    # A mark made from the content shows an edit by hand that left the version as it was.
    mark = hashlib.sha256(text).hexdigest()[:16]
    return FileContent(stamp, update._replace(at=Cursor(update.at.version, mark)))


def _stamp(stat: os.stat_result) -> tuple[int, ...]:
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
