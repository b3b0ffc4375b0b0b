"""Listeners learn of new versions of the feed: on PostgreSQL by a notification, on SQLite by a look."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.judging.locks import lock_feed, notify
from analyzer.judging.locks.notify import listening
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.database.migrate import upgrade
from gatekeeper.model import Lock, Set
from tests.support.waiting import wait_until

PATIENCE_S = 20.0


def lock(engine: sa.Engine, caller: str, commit: bool = True) -> None:
    now = datetime.now(UTC)
    with engine.connect() as db, db.begin() as transaction:
        lock_feed.publish(db, [Set(Lock("caller", caller, "daily", now, now + timedelta(hours=1)))], caller)
        if not commit:
            transaction.rollback()


@contextmanager
def opened(url: str) -> Iterator[sa.Engine]:
    engine = open_engine(url)
    try:
        yield engine
    finally:
        engine.dispose()


class Notifications:
    """Keeps the calls, and waits for one."""

    def __init__(self) -> None:
        self.calls: list[bool] = []
        self._changed = threading.Condition()

    def __call__(self, is_reliable: bool) -> None:
        with self._changed:
            self.calls.append(is_reliable)
            self._changed.notify_all()

    def wait(self, expected: bool, timeout: float = PATIENCE_S) -> bool:
        """Whether there is such a call within `timeout` seconds, after the one of the last wait."""
        with self._changed:
            if not self._changed.wait_for(lambda: expected in self.calls, timeout):
                return False
            del self.calls[: self.calls.index(expected) + 1]
            return True


@pytest.fixture
def notified() -> Notifications:
    return Notifications()


@pytest.fixture
def wanted() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@pytest.mark.parametrize("database", ["postgresql"])
def test_a_version_is_notified_when_it_is_committed_and_not_before(
    migrated_url: str, notified: Notifications, wanted: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "ASK_EVERY_S", 1000.0)
    with opened(migrated_url) as reader, opened(migrated_url) as writer, listening(reader, notified, wanted):
        assert notified.wait(True)
        lock(writer, "api_key:rolled back", commit=False)
        assert not notified.wait(True, timeout=0.3)
        lock(writer, "api_key:acme")
        assert notified.wait(True)


@pytest.mark.parametrize("database", ["postgresql"])
def test_a_version_that_is_committed_during_a_look_is_noticed(
    migrated_url: str, notified: Notifications, wanted: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "ASK_EVERY_S", 1000.0)
    monkeypatch.setattr(notify, "VERSION", "select version, mark, pg_sleep(0.5) from feed")
    with opened(migrated_url) as reader, opened(migrated_url) as writer, listening(reader, notified, wanted):
        assert notified.wait(True)
        assert not notified.wait(True, timeout=1.0)  # a look after the first notification
        lock(writer, "api_key:acme")
        assert not notified.wait(True, timeout=0.2)  # the next look has begun
        lock(writer, "api_key:bob")
        assert notified.wait(True)
        assert notified.wait(True)


@pytest.mark.parametrize("database", ["postgresql"])
def test_a_change_whose_notification_is_lost_is_found_and_ends_the_trust_in_notifications(
    migrated_url: str, notified: Notifications, wanted: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "ASK_EVERY_S", 0.1)
    with opened(migrated_url) as reader, opened(migrated_url) as writer, listening(reader, notified, wanted):
        assert notified.wait(True)
        with monkeypatch.context() as lossy:
            lossy.setattr(notify, "feed_changed", lambda db: None)
            lock(writer, "api_key:acme")
            assert notified.wait(False)
        lock(writer, "api_key:bob")
        assert notified.wait(True)


@pytest.mark.parametrize("database", ["postgresql"])
def test_while_no_notification_arrives_none_is_relied_on(
    migrated_url: str, notified: Notifications, wanted: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example behind a connection pooler."""
    monkeypatch.setattr(notify, "feed_changed", lambda db: None)
    monkeypatch.setattr(notify, "ASK_EVERY_S", 0.1)
    with opened(migrated_url) as reader, opened(migrated_url) as writer, listening(reader, notified, wanted):
        assert notified.wait(False)
        lock(writer, "api_key:acme")
        assert notified.wait(False)


def test_listening_ends_at_once_and_leaves_no_thread(
    migrated_url: str, notified: Notifications, wanted: threading.Event
) -> None:
    with opened(migrated_url) as engine:
        with listening(engine, notified, wanted):
            assert notified.wait(True)
            begun_s = time.monotonic()
        assert time.monotonic() - begun_s < 1
        assert "feed-listener" not in {thread.name for thread in threading.enumerate()}
        if engine.dialect.name == "postgresql":
            with engine.connect() as db:  # the connection that listened is not reused
                assert db.exec_driver_sql("select pg_listening_channels()").all() == []


@pytest.mark.parametrize("database", ["sqlite"])
def test_on_sqlite_a_version_is_noticed_while_that_is_wanted(
    migrated_url: str, notified: Notifications, wanted: threading.Event
) -> None:
    with opened(migrated_url) as engine, listening(engine, notified, wanted):
        assert notified.wait(True)
        lock(engine, "api_key:acme")
        assert notified.wait(True)
        wanted.clear()
        lock(engine, "api_key:bob")
        notified.wait(True, timeout=0.5)  # a look that had begun
        lock(engine, "api_key:eve")
        assert not notified.wait(True, timeout=0.3)
        wanted.set()
        assert notified.wait(True)


@pytest.mark.parametrize("database", ["sqlite"])
def test_on_sqlite_a_file_that_is_replaced_is_opened_again(
    migrated_url: str,
    notified: Notifications,
    wanted: threading.Event,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For example by a restored backup."""
    monkeypatch.setattr(notify, "RETRY_S", 0.1)
    with opened(migrated_url) as engine:
        file = Path(engine.url.database or "")
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
            source.backup(copy)
        with listening(engine, notified, wanted):
            assert notified.wait(True)
            engine.dispose()
            (tmp_path / "copy.db").replace(file)
            assert notified.wait(False)
            assert notified.wait(True)
            with opened(migrated_url) as writer:
                lock(writer, "api_key:acme")
            assert notified.wait(True)


def test_listening_resumes_after_an_outage(
    own_postgres: Any,
    notified: Notifications,
    wanted: threading.Event,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notify, "RETRY_S", 0.1)
    url = own_postgres.new_database()
    upgrade(url)
    with (
        caplog.at_level("INFO", "analyzer.judging.locks.notify"),
        opened(url) as engine,
        listening(engine, notified, wanted),
    ):
        assert notified.wait(True)
        own_postgres.kill()
        wait_until(lambda: len(caplog.records) == 1)
        own_postgres.start()
        wait_until(lambda: notified.calls[-1:] == [True])
        assert False in notified.calls
        notified.calls.clear()
        with opened(url) as writer:
            lock(writer, "api_key:acme")
        assert notified.wait(True)
    assert len(caplog.records) == 1
