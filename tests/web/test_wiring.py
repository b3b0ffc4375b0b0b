"""The web application over a real database: waiting gates get a change when it is committed."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from analyzer.config.settings import Settings
from analyzer.faces.feed import feed_cache
from analyzer.faces.signals.health import Health
from analyzer.faces.signals.metrics import Metrics
from analyzer.faces.wiring import web_application
from analyzer.judging.judge import Judged
from analyzer.judging.locks import lock_feed
from analyzer.kernel.tokens import create
from gatekeeper.model import Change, Lock, Set
from gatekeeper.sources.http import HttpSource

NOW = datetime.now(UTC)
LOCK = Lock("caller", "api_key:acme", "daily", NOW, NOW + timedelta(hours=1))
COMMIT_AFTER_S = 0.5
SOON_S = 6.0  # half of the time to the next refresh that is not notified


def publish(engine: sa.Engine, change: Change) -> None:
    with engine.begin() as db:
        lock_feed.publish(db, [change], "mark")


def delay_of_a_change_s(settings: Settings, engine: sa.Engine, health: Health) -> float:
    """Seconds from the commit of a lock by another process to the answer for a waiting gate."""
    with web_application(settings, engine, health, dict) as address:
        assert address is not None
        source = HttpSource(f"http://127.0.0.1:{address[1]}", wait=20, timeout=20)
        at = source.fetch(None).at
        threading.Timer(COMMIT_AFTER_S, publish, (engine, Set(LOCK))).start()
        began_s = time.monotonic()
        assert source.fetch(at).changes[0].at == LOCK.at
        source.close()
        return time.monotonic() - began_s - COMMIT_AFTER_S


@pytest.mark.parametrize("database", ["postgresql"])
def test_a_commit_of_another_analyzer_is_notified_by_postgresql(
    settings: Settings, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_cache, "REFRESH_EVERY_S", 2 * SOON_S)
    assert delay_of_a_change_s(settings, engine, Health(Metrics("1"), time.monotonic)) < SOON_S


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_commit_of_the_analyzer_in_this_process_is_notified_by_its_loop(
    settings: Settings, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_cache, "REFRESH_EVERY_S", 2 * SOON_S)
    health = Health(Metrics("1"), time.monotonic)
    threading.Timer(2 * COMMIT_AFTER_S, lambda: health.judged(Judged([Set(LOCK)]), "records")).start()
    assert delay_of_a_change_s(settings, engine, health) < SOON_S


def test_a_commit_without_a_notification_is_found_by_the_next_refresh(
    settings: Settings, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example behind a connection pooler that passes no notifications."""
    monkeypatch.setattr("analyzer.judging.locks.notify.feed_changed", lambda db: None)
    assert delay_of_a_change_s(settings, engine, Health(Metrics("1"), time.monotonic)) < SOON_S


@pytest.mark.parametrize("database", ["sqlite"])
def test_the_log_of_the_first_start_says_who_may_do_what(
    settings: Settings, engine: sa.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "analyzer.faces.wiring")

    def lines() -> list[str]:
        caplog.clear()
        with web_application(settings, engine, Health(Metrics("1"), lambda: 0.0), dict):
            return [line for line in caplog.messages if "token" in line]

    (line,) = lines()
    assert "may read over HTTP" in line
    assert "gatelock upkeep tokens create NAME --scope operate" in line
    create(engine, "ops", "operate", None, "ann", "tests")
    assert lines() == []
