"""The web application over a real database: who waits is told at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from analyzer.config.settings import Settings, load
from analyzer.health import Health
from analyzer.metrics import Metrics
from analyzer.store.database.engine import open_engine
from analyzer.store.transaction import lock_feed as feed_store
from analyzer.web import feed_cache as feed_module
from analyzer.web.wiring import web_application
from gatekeeper.model import Change, Lock, Set
from gatekeeper.sources.http import HttpSource

NOW = datetime.now(UTC)
LOCK = Lock("caller", "api_key:acme", "daily", NOW, NOW + timedelta(hours=1))


@pytest.fixture
def settings(tmp_path: Path, migrated_url: str) -> Settings:
    file = tmp_path / "gatelock.toml"
    file.write_text(f'[database]\nurl = "{migrated_url}"\n[analyzer]\nhttp = "127.0.0.1:0"\n')
    return load(file)


@pytest.fixture
def engine(migrated_url: str) -> Iterator[sa.Engine]:
    engine = open_engine(migrated_url)
    yield engine
    engine.dispose()


def publish(engine: sa.Engine, change: Change) -> None:
    with engine.begin() as db:
        feed_store.publish(db, [change], "mark")


def told_after_s(settings: Settings, engine: sa.Engine, health: Health) -> float:
    """How long after a lock was stored by another process somebody who waits is told."""
    with web_application(settings, engine, health, dict) as address:
        assert address is not None
        source = HttpSource(f"http://127.0.0.1:{address[1]}", wait=20, timeout=20)
        at = source.fetch(None).at
        threading.Timer(0.5, publish, (engine, Set(LOCK))).start()
        begun_s = time.monotonic()
        assert source.fetch(at).changes[0].at == LOCK.at
        source.close()
        return time.monotonic() - begun_s - 0.5


@pytest.mark.parametrize("database", ["postgresql"])
def test_what_another_analyzer_stores_is_told_without_waiting_for_a_look(
    settings: Settings, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "REFRESH_EVERY_S", 12.0)
    assert told_after_s(settings, engine, Health(Metrics("1"), time.monotonic)) < 6.0


@pytest.mark.parametrize("database", ["sqlite"])
def test_what_the_analyzer_beside_it_stores_is_told_without_waiting_for_a_look(
    settings: Settings, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "REFRESH_EVERY_S", 12.0)
    health = Health(Metrics("1"), time.monotonic)
    threading.Timer(1.0, lambda: health.locks_ended([Set(LOCK)])).start()
    assert told_after_s(settings, engine, health) < 6.0


def test_where_nobody_tells_it_is_found_by_looking(
    settings: Settings, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a pooler, which passes no notifications on."""
    monkeypatch.setattr("analyzer.store.transaction.notify.CHANNEL", "another")
    assert told_after_s(settings, engine, Health(Metrics("1"), time.monotonic)) < 6.0
