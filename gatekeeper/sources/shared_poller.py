"""A poller for all processes of a machine: a leader fetches and writes files, which followers read.

Three files next to the path that the processes share: PATH.leader, which the leader holds an operating system
lock (flock) on; PATH.all, a snapshot of all locks; and PATH.news, the last answer with the changes since the
snapshot. The system frees the flock when the leader's process ends, however it ends, and another process
becomes the leader. Followers rely only on the files: when PATH.news is too old, each process fetches for
itself.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from gatekeeper import lifecycle
from gatekeeper.caller_view import CallerView, view_from
from gatekeeper.feed import feed_json
from gatekeeper.feed.saved_view import open_regular, read_sealed, write_sealed
from gatekeeper.model import Change, Cursor, GateStatus, LockSource, SourceError, Update
from gatekeeper.view.cooperative import with_pauses
from gatekeeper.view.lock_tuples import (
    ChangeTuple,
    LockKeyTuple,
    LockTuple,
    PackedChanges,
    is_set,
    packed,
    tuple_key,
)

__all__ = ["SharedSource"]

log = logging.getLogger("gatekeeper")

READ_EVERY_S = 0.1  # between two reads of PATH.news, so also the delay of a follower
KEPT_CHANGES_MAX = 500  # in PATH.news; a follower that missed more reads the snapshot
CHANGES_MAX = 1_000_000  # in one step; more than any source sends
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class VersionStep(NamedTuple):
    """The changes from one version to the next, with their line in PATH.news."""

    since: Cursor
    at: Cursor
    changes: Sequence[Change]
    line: bytes


class SharedFile(NamedTuple):
    """The content of PATH.news.

    Attributes:
        answer: The last answer, without its changes.
        confirmed_s: Its time as uptime, which all processes of one machine share.
        base: The version of the snapshot in PATH.all.
        steps: The changes since then.
    """

    answer: Update
    confirmed_s: float
    base: Cursor
    steps: tuple[VersionStep, ...]


class SharedSource:
    """A LockSource that lets all processes of a machine share one poller. `Gate(..., shared=True)` makes one.

    One process fetches from `source` and writes what it learns to files next to `path`; the others read them
    ten times a second. When that process ends, another takes over within 0.11 seconds.

    Args:
        source: The source that one of the processes fetches from.
        path: Where the files are: PATH.leader, PATH.all and PATH.news. The same in all processes.
        overdue: Seconds after which the files are too old and each process fetches for itself, because the
            leader was stopped or hangs.
        uptime: A function that returns the machine's uptime in seconds, such as `time.monotonic`.

    Example:
        >>> import tempfile, time
        >>> from gatekeeper.sources.fixed import FixedSource
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     source = SharedSource(FixedSource(), Path(folder, "view"), 15.0, time.monotonic)
        ...     version = source.fetch(None).at.version
        ...     version, source.is_leader, sorted(file.name for file in Path(folder).iterdir())
        (1, True, ['view.all', 'view.leader', 'view.news'])
    """

    def __init__(self, source: LockSource, path: Path, overdue: float, uptime: Callable[[], float]) -> None:
        self.longest = float(getattr(source, "longest", float("inf")))
        self.wants_status = bool(getattr(source, "wants_status", False))
        self._source = source
        self._overdue_s = overdue
        self._uptime_s = uptime
        self._leader_path, self._snapshot_path, self._news_path = (
            path.with_name(f"{path.name}.{name}") for name in ("leader", "all", "news")
        )
        self._boot = _boot_id()
        self._handle: int | None = None  # of PATH.leader, while this process leads
        self._history: FeedHistory | None = None
        self._read: tuple[tuple[int, ...], SharedFile] | None = None
        self._has_warned = False
        # A child inherits the handle, and with it a lock that would outlast the parent.
        lifecycle.register(self, after_fork=SharedSource._stop_leading)

    def fetch(self, since: Cursor | None) -> Update:
        """Returns changes after `since`, or a snapshot, from the source or the files. Raises SourceError."""
        asked_s = self._uptime_s()
        if self._try_to_lead():
            return self._lead(since, asked_s)
        with suppress(OSError, SourceError, ValueError, IndexError):
            news = self._read_news()
            if news is not None and asked_s - news.confirmed_s <= self._overdue_s:
                return self._follow(news, since, asked_s)
        return self._source.fetch(since)

    def report_status(self, status: GateStatus) -> None:
        """Reports to `source`, each process for itself. Raises SourceError."""
        report = getattr(self._source, "report_status", None)
        if report is not None:
            report(status)

    def caller_view(self, caller: str) -> CallerView:
        """Asks `source`, each process for itself. Raises SourceError, ValueError for one without views."""
        return view_from(self._source, caller)

    @property
    def is_leader(self) -> bool:
        """Whether this process fetches for all of them."""
        return self._handle is not None

    def close(self) -> None:
        """Lets another process lead and closes `source`. A later fetch may lead again."""
        self._stop_leading()
        self._source.close()

    def _stop_leading(self) -> None:
        handle, self._handle, self._history = self._handle, None, None
        if handle is not None:
            os.close(handle)

    # -- the leader ----------------------------------------------------------------------------

    def _try_to_lead(self) -> bool:
        if self._handle is not None:
            if _is_same_file(self._handle, self._leader_path):
                return True
            self._stop_leading()  # the file was removed, and another process may lead with a new one
        try:
            handle = open_regular(self._leader_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        except (OSError, SourceError) as error:
            self._warn(error)
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another process leads
            os.close(handle)
            return False
        self._handle = handle
        return True

    def _lead(self, since: Cursor | None, asked_s: float) -> Update:
        # A new leader starts with everything, because followers have only what it writes.
        update = self._source.fetch(None if self._history is None else since)
        try:
            if self._history is None or update.snapshot or not self._history.is_followed_by(update):
                self._history = FeedHistory(update)
            else:
                self._history.add(update)
            self._write(self._history, update, asked_s + update.waited)
        except OSError as error:
            self._warn(error)
        return update

    def _write(self, history: FeedHistory, update: Update, confirmed_s: float) -> None:
        if history.base is None or not self._snapshot_path.exists():
            write_sealed(self._snapshot_path, history.snapshot_lines())
            history.base = history.at
        head = {
            "boot": self._boot,
            "confirmed_s": confirmed_s,
            "base": list(history.base),
            "answer": feed_json.dump(update._replace(changes=(), since=None, snapshot=False)),
        }
        lines = [json.dumps(head).encode() + b"\n", *(step.line for step in history.steps)]
        write_sealed(self._news_path, lines)

    def _warn(self, error: OSError | SourceError) -> None:
        if not self._has_warned:
            log.warning("cannot share the poller, each process polls for itself: %s", error)
        self._has_warned = True

    # -- the followers -------------------------------------------------------------------------

    def _read_news(self) -> SharedFile | None:
        """The content of PATH.news; None if it is older than the last boot. Raises OSError, SourceError."""
        stat = self._news_path.stat()
        stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if self._read is None or self._read[0] != stamp:
            head, *steps = read_sealed(self._news_path)
            fields = feed_json.parse_object(head, str(self._news_path))
            if fields.text("boot") != self._boot:
                return None
            news = SharedFile(
                feed_json.load(fields.text("answer")),
                fields.seconds("confirmed_s", 0.0),
                _parse_cursor(fields.items("base", 2)),
                tuple(map(_parse_step, steps)),
            )
            self._read = stamp, news
        return self._read[1]

    def _follow(self, news: SharedFile, since: Cursor | None, asked_s: float) -> Update:
        update = news.answer._replace(waited=news.confirmed_s - asked_s, next_poll=READ_EVERY_S)
        if since == update.at:
            return update._replace(since=update.at.version)
        changes = None if since is None else _changes_after(news.steps, since)
        if since is not None and changes is not None:
            return update._replace(since=since.version, changes=PackedChanges(changes))
        later = () if news.base == update.at else _changes_after(news.steps, news.base)
        locks = _parse_snapshot(read_sealed(self._snapshot_path), news.base)
        if later is None or locks is None:
            raise SourceError("the snapshot and the news are being replaced")
        return update._replace(since=None, snapshot=True, changes=PackedChanges(chain(locks, later)))


class FeedHistory:
    """The knowledge of the leader: every lock, and the last changes."""

    def __init__(self, update: Update) -> None:
        self.at = update.at
        self.base: Cursor | None = None  # the version of the snapshot on disk; None: one must be written
        self.steps: deque[VersionStep] = deque()
        self._locks: dict[LockKeyTuple, LockTuple] = {}
        self._size = 0  # changes in all steps
        self._apply(update.changes)

    def is_followed_by(self, update: Update) -> bool:
        return update.since == self.at.version

    def add(self, update: Update) -> None:
        if update.at == self.at:
            return
        self._apply(update.changes)
        if len(update.changes) > KEPT_CHANGES_MAX:
            self.at, self.base = update.at, None
            self.steps.clear()
            self._size = 0
            return
        changes = list(map(feed_json.change_fields, update.changes))
        line = json.dumps({"since": list(self.at), "at": list(update.at), "changes": changes})
        self.steps.append(VersionStep(self.at, update.at, update.changes, line.encode() + b"\n"))
        self.at = update.at
        self._size += len(update.changes)
        while self._size > KEPT_CHANGES_MAX:
            dropped = self.steps.popleft()
            self._size -= len(dropped.changes)
            if dropped.since == self.base:
                self.base = None

    def _apply(self, changes: Iterable[Change]) -> None:
        for change in with_pauses(packed(changes)):
            if is_set(change):
                self._locks[tuple_key(change)] = change
            else:
                self._locks.pop(change, None)

    def snapshot_lines(self) -> Iterator[bytes]:
        yield json.dumps({"at": list(self.at)}).encode() + b"\n"
        yield from map(feed_json.encode_change, with_pauses(self._locks.values()))


def _changes_after(steps: tuple[VersionStep, ...], since: Cursor) -> tuple[ChangeTuple, ...] | None:
    """The changes after `since`; None when no step begins there."""
    for number, step in enumerate(steps):
        if step.since == since:
            return tuple(chain.from_iterable(packed(later.changes) for later in steps[number:]))
    return None


def _parse_step(line: bytes) -> VersionStep:
    fields = feed_json.parse_object(line, "news")
    parsed = (
        feed_json.parse_change(feed_json.as_object(item, "news"), [])
        for item in fields.items("changes", CHANGES_MAX)
    )
    changes = PackedChanges(change for change in parsed if change is not None)
    since, cursor = (_parse_cursor(fields.items(name, 2)) for name in ("since", "at"))
    return VersionStep(since, cursor, changes, line)


def _parse_cursor(values: Sequence[object]) -> Cursor:
    return Cursor(int(str(values[0])), str(values[1]))


def _parse_snapshot(lines: Iterator[bytes], cursor: Cursor) -> Iterator[ChangeTuple] | None:
    """The locks on these lines; None when they are of another version than `cursor`."""
    if feed_json.parse_object(next(lines, b""), "snapshot").items("at", 2) != list(cursor):
        return None
    changes = (feed_json.parse_change(feed_json.parse_object(line, "snapshot"), []) for line in lines)
    return (change for change in changes if change is not None)


def _is_same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except OSError:
        return False


def _boot_id() -> str:
    """The identifier of the machine's last boot: uptimes of two boots cannot be compared."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""
