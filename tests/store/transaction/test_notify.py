"""PostgreSQL tells of new versions of the feed at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
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


class Heard:
    def __init__(self) -> None:
        self.times = 0
        self._more = threading.Semaphore(0)

    def __call__(self) -> None:
        self.times += 1
        self._more.release()

    def once(self, timeout: float = PATIENCE_S) -> bool:
        return self._more.acquire(timeout=timeout)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.mark.parametrize("database", ["postgresql"])
def test_a_version_is_heard_of_when_it_is_committed_and_not_before(migrated_url: str, heard: Heard) -> None:
    with opened(migrated_url) as ours, opened(migrated_url) as theirs, listening(ours, heard):
        assert heard.once()  # of whatever was before
        lock(theirs, "api_key:undone", commit=False)
        assert not heard.once(0.3)
        lock(theirs, "api_key:acme")
        assert heard.once()


@pytest.mark.parametrize("database", ["postgresql"])
def test_it_ends_at_once_and_leaves_no_thread(migrated_url: str, heard: Heard) -> None:
    with opened(migrated_url) as engine:
        with listening(engine, heard):
            heard.once()
            begun_s = time.monotonic()
        assert time.monotonic() - begun_s < 1
        assert "news" not in {thread.name for thread in threading.enumerate()}
        with engine.connect() as db:  # what listened is not used for anything else
            assert db.exec_driver_sql("select pg_listening_channels()").all() == []


@pytest.mark.parametrize("database", ["sqlite"])
def test_sqlite_tells_nobody(migrated_url: str, heard: Heard) -> None:
    with opened(migrated_url) as engine, listening(engine, heard):
        lock(engine, "api_key:acme")
        assert "news" not in {thread.name for thread in threading.enumerate()}
    assert heard.times == 0


def test_a_server_that_was_away_is_listened_to_again(
    own_postgres: Any, heard: Heard, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analyzer.store.transaction.notify.RETRY_S", 0.1)
    url = own_postgres.new_database()
    upgrade(url)
    with (
        caplog.at_level("INFO", "analyzer.store.transaction.notify"),
        opened(url) as engine,
        listening(engine, heard),
    ):
        assert heard.once()
        own_postgres.kill()
        _until(lambda: len(caplog.records) == 1)
        own_postgres.start()
        assert heard.once()  # of whatever was told meanwhile
        with opened(url) as theirs:
            lock(theirs, "api_key:acme")
        assert heard.once()
    assert len(caplog.records) == 1


def _until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
