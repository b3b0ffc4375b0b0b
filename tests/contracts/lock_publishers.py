"""Publishers of locks, one per kind of source: a test publishes, and reads back through the source."""

from __future__ import annotations

import copy
import secrets
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import pytest
import sqlalchemy as sa

from analyzer.judging.locks import lock_feed as feed_store
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.tables.schema import feed, feed_versions, lock_changes, locks
from gatekeeper.feed import feed_json
from gatekeeper.model import Change, Cursor, Lock, LockKey, LockSource, Set, Update
from gatekeeper.sources import open_source
from gatekeeper.sources.fixed import FixedSource
from gatekeeper.sources.http import HttpSource
from gatekeeper.sources.shared_poller import SharedSource
from gatekeeper.view.lock_view import LockView, apply
from tests.support.feed import HandFeed

FED = (feed, feed_versions, lock_changes, locks)

KINDS = [
    *("memory", "fixed", "file", "shared", "sqlite", "postgresql"),
    *("http-memory", "http-sqlite", "http-postgresql"),
]
# A fixed list cannot fail, has no clock, and does not change while it is read.
except_fixed = pytest.mark.parametrize(
    "publisher", [kind for kind in KINDS if kind != "fixed"], indirect=True
)
# The clock of a database cannot be set.
with_settable_clock = pytest.mark.parametrize(
    "publisher", [kind for kind in KINDS if kind != "fixed" and "sql" not in kind], indirect=True
)

NOW = datetime.now(UTC).replace(microsecond=0)


def a_lock(
    caller: str = "api_key:acme", policy: str = "daily", *, hours: float = 24.0, **others: str
) -> Lock:
    scoped = {"scope": "caller", "key": caller} | others
    return Lock(policy=policy, began=NOW, until=NOW + timedelta(hours=hours), **scoped)


ACME, BOB, EVE = (
    a_lock(),
    a_lock("user:bob", "flood", resource="/v1/export"),
    a_lock("user:ev:e", on_stale="allow"),
)


def locks_of(view: LockView) -> set[Lock]:
    return set(view)


def updated(view: LockView, publisher: LockPublisher) -> LockView:
    return apply(view, publisher.source.fetch(view.at))


class LockPublisher(Protocol):
    """Publishes locks where a source reads them."""

    @property
    def source(self) -> LockSource: ...
    def publish(self, *changes: Change) -> None: ...
    def backup(self) -> Any: ...
    def restore(self, backup: Any) -> None: ...
    def truth(self) -> set[Lock]: ...  # all locks, without the source
    def fail(self) -> None: ...  # until `recover`; not of FixedPublisher
    def recover(self) -> None: ...


class MemoryPublisher:
    """The feed in memory that other tests use, which must keep the contract like the real ones."""

    def __init__(self) -> None:
        self.feed = self.source = HandFeed()
        self.publish, self.backup, self.restore = self.feed.publish, self.feed.backup, self.feed.restore

    def fail(self) -> None:
        self.feed.away = True

    def recover(self) -> None:
        self.feed.away = False

    def truth(self) -> set[Lock]:
        return set(self.feed.locks.values())


class SharedPublisher(MemoryPublisher):
    """Two processes of one machine; the tests read from the second, which follows the first."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        first, self.second = (
            SharedSource(self.feed, folder / "view", 15.0, time.monotonic) for _ in range(2)
        )
        self.first: LockSource = first
        self.at: Cursor | None = None
        self.source = self

    def fetch(self, since: Cursor | None) -> Update:
        self.at = self.first.fetch(self.at).at
        return self.second.fetch(since)

    def close(self) -> None:
        self.second.close()


class FilePublisher(MemoryPublisher):
    """A program that replaces the file after each change."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.source = open_source(path.as_uri())
        self.publish = self._publish
        self.restore = self._restore
        self.recover()

    def _publish(self, *changes: Change) -> None:
        self.feed.publish(*changes)
        self.recover()

    def _restore(self, backup: Any) -> None:
        self.feed.restore(backup)
        self.recover()

    def fail(self) -> None:
        self.path.unlink()

    def recover(self) -> None:
        temporary = self.path.with_suffix(".new")
        temporary.write_text(feed_json.dump(self.feed.fetch(None)))
        temporary.replace(self.path)


class FixedPublisher:
    """A fixed list of locks; each change makes a new source."""

    def __init__(self) -> None:
        self.locks: dict[LockKey, Lock] = {}

    @property
    def source(self) -> FixedSource:
        return FixedSource(*self.locks.values())

    def publish(self, *changes: Change) -> None:
        for change in changes:
            self.locks.pop(change.at, None)
            if isinstance(change, Set):
                self.locks[change.at] = change.lock

    def truth(self) -> set[Lock]:
        return set(self.locks.values())

    def backup(self) -> Any:
        return copy.copy(self.locks)

    def restore(self, backup: Any) -> None:
        self.locks = copy.copy(backup)


class SqlPublisher:
    """The analyzer's statements on a real database."""

    def __init__(self, url: str) -> None:
        self.engine = open_engine(url)
        self.source = open_source(url)

    def publish(self, *changes: Change) -> None:
        with self.engine.begin() as db:
            feed_store.publish(db, changes, secrets.token_hex(4))

    def prune(self) -> None:
        with self.engine.begin() as db:
            feed_store.prune(db, before_ms=1 << 60, most=1_000)

    def backup(self) -> Any:
        with self.engine.begin() as db:
            return {table: [row._asdict() for row in db.execute(sa.select(table))] for table in FED}

    def restore(self, backup: Any) -> None:
        with self.engine.begin() as db:
            for table, rows in backup.items():
                db.execute(sa.delete(table))
                if rows:
                    db.execute(sa.insert(table), rows)

    def truth(self) -> set[Lock]:
        with self.engine.begin() as db:
            return {feed_store.lock_from_row(row) for row in db.execute(sa.select(locks))}

    def fail(self) -> None:
        with self.engine.begin() as db:
            db.exec_driver_sql("alter table feed rename to gone")

    def recover(self) -> None:
        with self.engine.begin() as db:
            db.exec_driver_sql("alter table gone rename to feed")

    def close(self) -> None:
        self.source.close()
        self.engine.dispose()


class Switch:
    """Forwards to the source of the current test; the server reads it."""

    source: LockSource

    def fetch(self, since: Cursor | None) -> Update:
        return self.source.fetch(since)

    def close(self) -> None:
        self.source.close()


class HttpPublisher:
    """Another publisher, whose source a server reads; the tests read from the server."""

    def __init__(self, upstream: MemoryPublisher | SqlPublisher, served: tuple[Switch, str]) -> None:
        self.upstream = upstream
        self.switch, url = served
        self.switch.source = upstream.source
        self.source = HttpSource(url, wait=0, timeout=30)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.upstream, name)
