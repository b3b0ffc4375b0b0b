"""Locks for tests, and a lock feed in memory: a slow, obvious implementation of a LockSource."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from gatekeeper.feed import feed_json
from gatekeeper.feed.saved_view import SavedView
from gatekeeper.model import Change, Clear, Cursor, Lock, LockKey, Set, SourceError, Update
from gatekeeper.view.lock_tuples import pack_lock

NOON = datetime(2026, 1, 1, tzinfo=UTC)  # the first moment of a ManualClock


def a_lock(
    caller: str = "api_key:acme", policy: str = "daily", *, ends_in: float = 3600.0, **others: str | int
) -> Lock:
    """A lock on `caller`, in force from before NOON until `ends_in` seconds after it."""
    scoped = {"scope": "caller", "key": caller} | others
    return Lock(
        policy=policy,
        began=NOON - timedelta(minutes=1),
        until=NOON + timedelta(seconds=ends_in),
        **scoped,
    )


def a_saved_view(confirmed: datetime, *locks: Lock) -> SavedView:
    """The content of a view file with these locks."""
    return SavedView(confirmed, tuple(map(pack_lock, locks)))


class Version(NamedTuple):
    number: int
    mark: str
    changes: tuple[Change, ...]


class HandFeed:
    """A LockSource that keeps every version until `prune`; with `away` it raises SourceError."""

    def __init__(self, *locks: Lock) -> None:
        self.locks: dict[LockKey, Lock] = {}
        self.versions = [Version(0, "m0", ())]
        self.marks = itertools.count(1)
        self.away = False
        self.fetches: list[Cursor | None] = []
        self.behind = 0.0
        self.next_poll = 0.4
        self.now = NOON
        if locks:
            self.publish(*map(Set, locks))

    def publish(self, *changes: Change) -> None:
        for change in changes:
            if isinstance(change, Set):
                self.locks[change.at] = change.lock
            else:
                self.locks.pop(change.at, None)
        self.versions.append(Version(self.at.version + 1, f"m{next(self.marks)}", changes))

    def set(self, *locks: Lock) -> None:
        self.publish(*map(Set, locks))

    def clear(self, *locks: Lock) -> None:
        self.publish(*(Clear(lock.at) for lock in locks))

    def prune(self) -> None:
        """Forgets every version but the last."""
        del self.versions[:-1]

    def backup(self) -> tuple[dict[LockKey, Lock], list[Version]]:
        return copy.copy(self.locks), copy.copy(self.versions)

    def restore(self, kept: tuple[dict[LockKey, Lock], list[Version]]) -> None:
        """Returns to an older copy; later versions get other marks than before."""
        self.locks, self.versions = copy.copy(kept[0]), copy.copy(kept[1])

    @property
    def at(self) -> Cursor:
        return Cursor(self.versions[-1].number, self.versions[-1].mark)

    def fetch(self, since: Cursor | None) -> Update:
        self.fetches.append(since)
        if self.away:
            raise SourceError("the feed is away")
        known = since is not None and any(since == version[:2] for version in self.versions)
        changes = [
            change
            for version in self.versions
            if since and version.number > since.version
            for change in version.changes
        ]
        return Update(
            at=self.at,
            since=since.version if since and known else None,
            snapshot=not known,
            now=self.now,
            behind=self.behind,
            next_poll=self.next_poll,
            changes=tuple(changes) if known else tuple(map(Set, self.locks.values())),
        )

    def version_mark(self, version: int) -> str | None:
        """Returns the mark of a version whose later changes are kept."""
        return next((kept.mark for kept in self.versions if kept.number == version), None)

    def close(self) -> None:
        """Does nothing."""


class UnreliableSource:
    """A source whose answers get lost, are repeated, or arrive incomplete, by `fault`."""

    def __init__(self, fetch: Callable[[Cursor | None], Update]) -> None:
        self._fetch = fetch
        self.fault = "well"
        self._last: Update | None = None

    def fetch(self, since: Cursor | None) -> Update:
        answer = self._fetch(since)
        previous, self._last = self._last, answer
        match self.fault:
            case "lost":
                raise SourceError("the answer was lost")
            case "half":
                text = feed_json.dump(answer)
                return feed_json.load(text[: len(text) // 2])
            case "again" if previous is not None:
                self._last = previous
                return previous
            case "raises":
                raise ZeroDivisionError("a bug in the source")
        return answer

    def close(self) -> None:
        """Does nothing."""
