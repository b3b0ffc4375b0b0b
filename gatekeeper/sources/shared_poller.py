"""One poller for all processes of a machine: one asks the source and writes down what it hears, the
others read that."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from gatekeeper.feed import feed_json
from gatekeeper.feed.saved_view import read_sealed, write_sealed
from gatekeeper.model import Change, Cursor, GateStatus, LockSource, Set, SourceError, Update
from gatekeeper.view.cooperative import with_pauses
from gatekeeper.view.lock_tuples import (
    LockKeyTuple,
    LockTuple,
    PackedChanges,
    is_set,
    key_of,
    packed,
    unpack_lock,
)

log = logging.getLogger("gatekeeper")

READ_EVERY_S = 0.1  # a look at a small file; what another process learnt is known this much later
KEPT_CHANGES_MAX = 500  # changes kept apart from the snapshot; who has missed more reads that anew
CHANGES_MAX = 1_000_000  # in one step; no source tells as many at once
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class VersionStep(NamedTuple):
    """What led from one version to the next, as it stands in the file."""

    since: Cursor
    at: Cursor
    changes: Sequence[Change]
    line: bytes


class SharedFile(NamedTuple):
    """What the process that asks has written down last."""

    answer: Update  # without changes
    confirmed_s: float  # uptime, which all processes of one machine share
    base: Cursor  # what the snapshot beside it is at
    steps: tuple[VersionStep, ...]


class SharedSource:
    """What `source` tells, asked for by one process of those that share `path`.

    Whoever holds a lock of the operating system on PATH.leader asks, and writes PATH.news with each
    answer and PATH.all when needed. The system frees the lock when that process ends, however it ends:
    within READ_EVERY_S, give or take a tenth, another one holds it and asks. When the news is older
    than `overdue` seconds (the one who asks was stopped, or hangs), each asks for itself.
    """

    def __init__(self, source: LockSource, path: Path, overdue: float, uptime_s: Callable[[], float]) -> None:
        self.longest = float(getattr(source, "longest", float("inf")))
        self.wants_status = bool(getattr(source, "wants_status", False))
        self._source = source
        self._overdue_s = overdue
        self._uptime_s = uptime_s
        self._leader, self._all, self._news = (
            path.with_name(f"{path.name}.{name}") for name in ("leader", "all", "news")
        )
        self._boot = _boot_id()
        self._handle: int | None = None  # ours as long as we hold the system's lock
        self._heard: FeedHistory | None = None
        self._read: tuple[tuple[int, ...], SharedFile] | None = None
        self._complained = False
        _all.add(self)

    def fetch(self, since: Cursor | None) -> Update:
        asked_s = self._uptime_s()
        if self._leads():
            return self._lead(since, asked_s)
        with suppress(OSError, SourceError, ValueError, IndexError):
            news = self._newest()
            if news is not None and asked_s - news.confirmed_s <= self._overdue_s:
                return self._followed(news, since, asked_s)
        return self._source.fetch(since)

    def report_status(self, status: GateStatus) -> None:
        report = getattr(self._source, "report_status", None)
        if report is not None:
            report(status)

    @property
    def leads(self) -> bool:
        """Whether this process asks for all of them."""
        return self._handle is not None

    def close(self) -> None:
        self._leave()
        self._source.close()

    def _leave(self) -> None:
        handle, self._handle, self._heard = self._handle, None, None
        if handle is not None:
            os.close(handle)

    # -- the one who asks ----------------------------------------------------------------------

    def _leads(self) -> bool:
        if self._handle is not None:
            if _is_same_file(self._handle, self._leader):
                return True
            self._leave()  # somebody removed the file: the next one who looks makes another, and leads too
        try:
            handle = os.open(self._leader, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self._complain(error)
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # somebody else does
            os.close(handle)
            return False
        self._handle = handle
        return True

    def _lead(self, since: Cursor | None, asked_s: float) -> Update:
        # At first everything: what the others need is written by us alone.
        update = self._source.fetch(None if self._heard is None else since)
        try:
            if self._heard is None or update.snapshot or not self._heard.follows(update):
                self._heard = FeedHistory(update)
            else:
                self._heard.add(update)
            self._write(self._heard, update, asked_s + update.waited)
        except OSError as error:
            self._complain(error)
        return update

    def _write(self, heard: FeedHistory, update: Update, confirmed_s: float) -> None:
        if heard.base is None or not self._all.exists():
            write_sealed(self._all, heard.snapshot_lines())
            heard.base = heard.at
        head = {
            "boot": self._boot,
            "confirmed_s": confirmed_s,
            "base": list(heard.base),
            "answer": feed_json.dump(update._replace(changes=(), since=None, snapshot=False)),
        }
        write_sealed(self._news, [json.dumps(head).encode() + b"\n", *(step.line for step in heard.steps)])

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            log.warning("cannot share the poller, each process asks for itself: %s", error)
        self._complained = True

    # -- the others ----------------------------------------------------------------------------

    def _newest(self) -> SharedFile | None:
        """What was written last, None for what was written before this machine started. Raises OSError,
        SourceError."""
        stat = self._news.stat()
        stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if self._read is None or self._read[0] != stamp:
            head, *steps = read_sealed(self._news)
            fields = feed_json.parse_object(head, str(self._news))
            if fields.text("boot") != self._boot:
                return None
            base = fields.some("base", 2)
            news = SharedFile(
                feed_json.load(fields.text("answer")),
                fields.seconds("confirmed_s", 0.0),
                Cursor(int(str(base[0])), str(base[1])),
                tuple(map(_parse_step, steps)),
            )
            self._read = stamp, news
        return self._read[1]

    def _followed(self, news: SharedFile, since: Cursor | None, asked_s: float) -> Update:
        update = news.answer._replace(waited=news.confirmed_s - asked_s, next_poll=READ_EVERY_S)
        if since == update.at:
            return update._replace(since=update.at.version)
        changes = None if since is None else _changes_after(news.steps, since)
        if since is not None and changes is not None:
            return update._replace(since=since.version, changes=changes)
        later = () if news.base == update.at else _changes_after(news.steps, news.base)
        held = _parse_snapshot(read_sealed(self._all), news.base)
        if later is None or held is None:
            raise SourceError("the snapshot and the news are of two versions just now")
        return update._replace(since=None, snapshot=True, changes=PackedChanges(chain(held, later)))


class FeedHistory:
    """What the one who asks has heard: every lock, and the last changes."""

    def __init__(self, update: Update) -> None:
        self.at = update.at
        self.base: Cursor | None = None  # what the snapshot on the disk is at; None: it must be written
        self.steps: deque[VersionStep] = deque()
        self._held: dict[LockKeyTuple, LockTuple] = {}
        self._size = 0  # of the steps, in changes
        self._apply(update.changes)

    def follows(self, update: Update) -> bool:
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
        line = json.dumps(
            {
                "since": list(self.at),
                "at": list(update.at),
                "changes": list(map(feed_json.change_fields, update.changes)),
            }
        )
        self.steps.append(VersionStep(self.at, update.at, update.changes, line.encode() + b"\n"))
        self.at = update.at
        self._size += len(update.changes)
        while self._size > KEPT_CHANGES_MAX:
            gone = self.steps.popleft()
            self._size -= len(gone.changes)
            if gone.since == self.base:
                self.base = None

    def _apply(self, changes: Iterable[Change]) -> None:
        for row in with_pauses(packed(changes)):
            if is_set(row):
                self._held[key_of(row)] = row
            else:
                self._held.pop(row, None)

    def snapshot_lines(self) -> Iterator[bytes]:
        yield json.dumps({"at": list(self.at)}).encode() + b"\n"
        for row in with_pauses(self._held.values()):
            yield json.dumps(feed_json.change_fields(Set(unpack_lock(row)))).encode() + b"\n"


def _changes_after(steps: tuple[VersionStep, ...], since: Cursor) -> tuple[Change, ...] | None:
    """What changed after `since`; None when that is not told of."""
    for number, step in enumerate(steps):
        if step.since == since:
            return tuple(change for later in steps[number:] for change in later.changes)
    return None


def _parse_step(line: bytes) -> VersionStep:
    fields = feed_json.parse_object(line, "news")
    (since, at) = (
        Cursor(int(str(version)), str(mark))
        for version, mark in (fields.some("since", 2), fields.some("at", 2))
    )
    changes = (
        feed_json.parse_change(feed_json.as_object(item, "news"), [])
        for item in fields.some("changes", CHANGES_MAX)
    )
    return VersionStep(since, at, tuple(change for change in changes if change is not None), line)


def _parse_snapshot(lines: Iterator[bytes], at: Cursor) -> Iterator[Change] | None:
    """The locks on these lines; None when they are of another version than `at`."""
    if feed_json.parse_object(next(lines, b""), "snapshot").some("at", 2) != list(at):
        return None
    changes = (feed_json.parse_change(feed_json.parse_object(line, "snapshot"), []) for line in lines)
    return (change for change in changes if change is not None)


def _is_same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except OSError:
        return False


def _boot_id() -> str:
    """Which start of this machine it is: uptimes before and after one are not the same time."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


# A child of fork has a handle of the parent's lock, which would hold it beyond the parent's end.
_all: weakref.WeakSet[SharedSource] = weakref.WeakSet()


def _after_fork() -> None:
    for source in list(_all):
        source._leave()


os.register_at_fork(after_in_child=_after_fork)
