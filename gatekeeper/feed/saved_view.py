"""The last view on disk: a process that starts while its source is away knows the locks all the same."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from gatekeeper.feed import feed_json
from gatekeeper.model import Lock, Set, SourceError
from gatekeeper.view.cooperative import with_pauses
from gatekeeper.view.lock_view import LockView

AGE_MAX = timedelta(days=1)  # of locks older than this too many may have been lifted by hand
AHEAD_MAX = timedelta(minutes=5)  # written later than now: by a clock that was wrong, or by nobody of ours
SAVED_BYTES_MAX = 64 << 20

SAVE_EVERY_S = 10.0  # at most, however often the view changes
LARGE = 10_000  # locks; a larger view is written as much less often, because meanwhile nobody asks for news
SAVE_AGAIN_S = 300.0  # one that did not change, so that its date stays far from the age limit

log = logging.getLogger("gatekeeper")


class SavedView(NamedTuple):
    """A view as it was when its source last confirmed it."""

    confirmed: datetime
    locks: Iterable[Lock]


class ViewFile:
    """Where one gate keeps its view. It does without when the disk fails, and says so once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._view: LockView | None = None  # as it was written last
        self._written_s = -math.inf
        self._complained = False

    def recall(self, now: datetime) -> SavedView | None:
        try:
            return read(self.path, now)
        except FileNotFoundError:
            return None
        except (OSError, SourceError) as error:
            log.warning("starting without the saved view: %s", error)
            return None

    def keep(self, view: LockView, confirmed: datetime, now_s: float, *, at_once: bool = False) -> None:
        """Write the view if it is time; `now_s` is any clock that does not go back."""
        if now_s < self._written_s + self._pause_s(view, at_once=at_once):
            return
        self._view, self._written_s = view, now_s
        try:
            write(self.path, SavedView(confirmed, view))
        except OSError as error:
            if not self._complained:
                log.warning("cannot keep the view for the next start: %s", error)
            self._complained = True

    def _pause_s(self, view: LockView, *, at_once: bool) -> float:
        if view is self._view:
            return SAVE_AGAIN_S
        return 0.0 if at_once else min(SAVE_AGAIN_S, SAVE_EVERY_S * max(1.0, len(view) / LARGE))


def write(path: Path, saved: SavedView) -> None:
    """Put `saved` in the place of what is at `path`, at once or not at all. Raises OSError."""
    write_sealed(path, _lines(saved))


def write_sealed(path: Path, lines: Iterable[bytes]) -> None:
    """Put these lines, each with its end, in the place of what is at `path`, under a digest.

    Several processes may share one path: each writes a file of its own, and the last rename wins.
    Raises OSError.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    digest = hashlib.sha256()
    # Not flushed to the disk: after a power failure the digest tells, and a cold start does without.
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        for line in lines:
            digest.update(line)
            file.write(line)
        file.write(_line({"sha256": digest.hexdigest()}))
    beside.replace(path)


def read_sealed(path: Path) -> Iterator[bytes]:
    """The lines that `put` has put at `path`. Raises SourceError for a file that is not whole, was changed
    by anybody else, or could have been; OSError when there is none."""
    with path.open("rb") as file:
        _require_own_file(os.fstat(file.fileno()), path)
        text = file.read(SAVED_BYTES_MAX + 1)
    size = text.rfind(b"\n", 0, -1) + 1  # of what is under the seal, which the last line is
    seal = feed_json.parse_object(text[size:], f"{path}: last line").text("sha256")
    if hashlib.sha256(memoryview(text)[:size]).hexdigest() != seal:
        raise SourceError(f"{path}: its content is not what was written")
    return _lines_in(text, size)  # one at a time: to cut all of them apart would take many milliseconds


def _lines_in(text: bytes, size: int) -> Iterator[bytes]:
    stream = io.BytesIO(text)
    while stream.tell() < size:
        yield stream.readline()


def read(path: Path, now: datetime) -> SavedView:
    """The view at `path`.

    Raises SourceError for one that is too old, comes from the future, is not whole, was changed by
    anybody else, or could have been; OSError when there is none.
    """
    lines = read_sealed(path)
    head = feed_json.parse_object(next(lines, b""), f"{path}: first line")
    if head.whole("format") != feed_json.FORMAT:
        raise SourceError(f"{path}: written in format {head.whole('format')}")
    confirmed = head.time("confirmed")
    if not now - AGE_MAX <= confirmed <= now + AHEAD_MAX:
        raise SourceError(
            f"{path}: confirmed at {feed_json.time_text(confirmed)}, now it is {feed_json.time_text(now)}"
        )
    return SavedView(confirmed, tuple(with_pauses(_locks(lines, path))))


def _lines(saved: SavedView) -> Iterator[bytes]:
    # A line for each lock: one document of 100,000 would hold the interpreter, and with it every
    # request, for a second. The view pauses between them by itself.
    yield _line({"format": feed_json.FORMAT, "confirmed": feed_json.time_text(saved.confirmed)})
    for lock in saved.locks:
        yield _line(feed_json.change_fields(Set(lock)))


def _line(fields: Mapping[str, object]) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def _locks(lines: Iterable[bytes], path: Path) -> Iterator[Lock]:
    for line in lines:
        change = feed_json.parse_change(feed_json.parse_object(line, str(path)), [])
        if isinstance(change, Set):
            yield change.lock


def _require_own_file(stat: os.stat_result, path: Path) -> None:
    # The digest finds an accident; against somebody who wants callers refused, only the owner helps.
    if stat.st_uid != os.geteuid() or stat.st_mode & 0o022:
        raise SourceError(f"{path}: others may write to it; expected a file of our own, with mode 0600")
