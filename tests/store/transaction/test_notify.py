"""PostgreSQL notifies listeners of new versions of the feed at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.store.database.engine import open_engine
from analyzer.store.database.migrate import upgrade
from analyzer.store.transaction import lock_feed
from analyzer.store.transaction.notify import listening
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
    """Counts calls, and waits for one."""

    def __init__(self) -> None:
        self.times = 0
        self._more = threading.Semaphore(0)

    def __call__(self) -> None:
        self.times += 1
        self._more.release()

    def wait(self, timeout: float = PATIENCE_S) -> bool:
        return self._more.acquire(timeout=timeout)


@pytest.fixture
def notified() -> Notifications:
    return Notifications()


@pytest.mark.parametrize("database", ["postgresql"])
def test_a_version_is_notified_when_it_is_committed_and_not_before(
    migrated_url: str, notified: Notifications
) -> None:
    with opened(migrated_url) as reader, opened(migrated_url) as writer, listening(reader, notified):
        assert notified.wait()  # of everything before
        lock(writer, "api_key:rolled back", commit=False)
        assert not notified.wait(0.3)
        lock(writer, "api_key:acme")
        assert notified.wait()


@pytest.mark.parametrize("database", ["postgresql"])
def test_listening_ends_at_once_and_leaves_no_thread(migrated_url: str, notified: Notifications) -> None:
    with opened(migrated_url) as engine:
        with listening(engine, notified):
            notified.wait()
            begun_s = time.monotonic()
        assert time.monotonic() - begun_s < 1
        assert "feed-listener" not in {thread.name for thread in threading.enumerate()}
        with engine.connect() as db:  # the connection that listened is not reused
            assert db.exec_driver_sql("select pg_listening_channels()").all() == []


@pytest.mark.parametrize("database", ["sqlite"])
def test_on_sqlite_nothing_is_notified(migrated_url: str, notified: Notifications) -> None:
    with opened(migrated_url) as engine, listening(engine, notified):
        lock(engine, "api_key:acme")
        assert "feed-listener" not in {thread.name for thread in threading.enumerate()}
    assert notified.times == 0


def test_listening_resumes_after_an_outage(
    own_postgres: Any,
    notified: Notifications,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("analyzer.store.transaction.notify.RETRY_S", 0.1)
    url = own_postgres.new_database()
    upgrade(url)
    with (
        caplog.at_level("INFO", "analyzer.store.transaction.notify"),
        opened(url) as engine,
        listening(engine, notified),
    ):
        assert notified.wait()
        own_postgres.kill()
        wait_until(lambda: len(caplog.records) == 1)
        own_postgres.start()
        assert notified.wait()  # of what was committed meanwhile
        with opened(url) as writer:
            lock(writer, "api_key:acme")
        assert notified.wait()
    assert len(caplog.records) == 1
