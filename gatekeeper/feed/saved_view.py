"""The last view on disk, for a process that starts while its source is unavailable.

The file is one line of JSON for the head, one for each lock and a last one with a digest of the others. A
process that is killed while it writes leaves the old file: the new one is written next to it and renamed.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import logging
import math
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from gatekeeper.feed import feed_json
from gatekeeper.model import SourceError
from gatekeeper.view.cooperative import with_pauses
from gatekeeper.view.lock_tuples import LockTuple, is_set
from gatekeeper.view.lock_view import LockView

AGE_MAX = timedelta(days=1)  # in an older view too many locks may be ones that operators have lifted
AHEAD_MAX = timedelta(minutes=5)  # a time further in the future means a wrong clock or a forged file
SAVED_BYTES_MAX = 64 << 20

SAVE_EVERY_S = 10.0  # at most, however often the view changes
LARGE = 10_000  # locks; a larger view is written proportionally less often: writing delays the next poll
SAVE_AGAIN_S = 300.0  # for a view that did not change, so that its time stays far from AGE_MAX

log = logging.getLogger("gatekeeper")


class SavedView(NamedTuple):
    """A view and the time when its source last confirmed it."""

    confirmed: datetime
    locks: Iterable[LockTuple]


class ViewFile:
    """The file in which one gate saves its view. A disk error is logged once; the gate works without it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written: LockView | None = None
        self._written_s = -math.inf
        self._has_warned = False

    def load(self, now: datetime) -> SavedView | None:
        """The saved view; None when there is none, or none that can be trusted."""
        try:
            return read(self.path, now)
        except FileNotFoundError:
            return None
        except (OSError, SourceError) as error:
            log.warning("starting without the saved view: %s", error)
            return None

    def save(self, view: LockView, confirmed: datetime, now_s: float, *, at_once: bool = False) -> None:
        """Writes the view if it is due; `now_s` is a monotonic time in seconds."""
        if now_s < self._written_s + self._pause_s(view, at_once=at_once):
            return
        self._written, self._written_s = view, now_s
        try:
            write(self.path, SavedView(confirmed, view.lock_tuples()))
        except OSError as error:
            if not self._has_warned:
                log.warning("cannot save the view for the next start: %s", error)
            self._has_warned = True

    def _pause_s(self, view: LockView, *, at_once: bool) -> float:
        if view is self._written:
            return SAVE_AGAIN_S
        return 0.0 if at_once else min(SAVE_AGAIN_S, SAVE_EVERY_S * max(1.0, len(view) / LARGE))


def write(path: Path, saved: SavedView) -> None:
    """Replaces the file at `path` with `saved`, atomically. Raises OSError."""
    write_sealed(path, _file_lines(saved))


def write_sealed(path: Path, lines: Iterable[bytes]) -> None:
    """Replaces the file at `path`, atomically, with these lines and their digest. Lines end with a newline.

    Several processes may share one path: each writes its temporary file, and the last rename wins. Raises
    OSError, also where the path is a device, a FIFO or a symbolic link, which the rename would replace.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(path.lstat().st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    digest = hashlib.sha256()
    # No fsync: after a power failure the digest does not match, and a cold start works without the file.
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        for line in lines:
            digest.update(line)
            file.write(line)
        file.write(_line({"sha256": digest.hexdigest()}))
    temporary.replace(path)


def read_sealed(path: Path) -> Iterator[bytes]:
    """The lines that `write_sealed` wrote.

    Raises SourceError for a file that is incomplete, was changed, can be written by other users, or is not a
    regular file; OSError when there is none, or a symbolic link.
    """
    with os.fdopen(open_regular(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        _require_own_file(os.fstat(file.fileno()), path)
        text = file.read(SAVED_BYTES_MAX + 1)
    size = text.rfind(b"\n", 0, -1) + 1  # without the last line, which holds the digest
    digest = feed_json.parse_object(text[size:], f"{path}: last line").text("sha256")
    if hashlib.sha256(memoryview(text)[:size]).hexdigest() != digest:
        raise SourceError(f"{path}: the content does not match its digest")
    return _lines_in(text, size)  # one at a time: splitting the whole text would take many milliseconds


def open_regular(path: Path, flags: int, mode: int = 0o600) -> int:
    """Opens a regular file; returns its descriptor, which children do not inherit. Never blocks.

    To open a FIFO waits until another process opens it too, and a device may do anything.

    Raises SourceError for something else than a regular file, OSError.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SourceError(f"{path}: not a regular file, but a FIFO, a device or a folder")
    return descriptor


def _lines_in(text: bytes, size: int) -> Iterator[bytes]:
    stream = io.BytesIO(text)
    while stream.tell() < size:
        yield stream.readline()


def read(path: Path, now: datetime) -> SavedView:
    """The view at `path`.

    Raises SourceError for a file that is too old, has a time in the future, is incomplete, was changed, or
    can be written by other users; OSError when there is none.
    """
    lines = read_sealed(path)
    head = feed_json.parse_object(next(lines, b""), f"{path}: first line")
    if head.integer("format") != feed_json.FORMAT:
        raise SourceError(f"{path}: written in format {head.integer('format')}")
    confirmed = head.time("confirmed")
    if not now - AGE_MAX <= confirmed <= now + AHEAD_MAX:
        raise SourceError(
            f"{path}: confirmed at {feed_json.time_text(confirmed)}, now it is {feed_json.time_text(now)}"
        )
    return SavedView(confirmed, tuple(with_pauses(_parse_locks(lines, path))))


def _file_lines(saved: SavedView) -> Iterator[bytes]:
    yield _line({"format": feed_json.FORMAT, "confirmed": feed_json.time_text(saved.confirmed)})
    yield from map(feed_json.encode_change, saved.locks)


def _line(fields: Mapping[str, object]) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def _parse_locks(lines: Iterable[bytes], path: Path) -> Iterator[LockTuple]:
    for line in lines:
        change = feed_json.parse_change(feed_json.parse_object(line, str(path)), [])
        if change is not None and is_set(change):
            yield change


def _require_own_file(status: os.stat_result, path: Path) -> None:
    # The digest detects accidents. Against a forged file only the permissions help.
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise SourceError(
            f"{path}: other users can write to it; it must belong to this user and have mode 0600"
        )
