"""A running server with pages, about an installation that has counted and locked."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest
import sqlalchemy as sa

from analyzer.config.settings import Settings
from analyzer.faces.signals.health import Health
from analyzer.faces.signals.metrics import Metrics
from analyzer.faces.wiring import web_application
from analyzer.flush.sql_store import SqlStore
from analyzer.plan.plan import make_plan
from analyzer.plan.policies import Quota
from analyzer.plan.windows import Calendar
from tests.store.flushing import a_row, flush, now_s
from tests.support.plain_http import Client

MONTH = Calendar("month")  # a test must not fail at midnight
PLAN = make_plan([], [], [Quota("daily", 50, MONTH), Quota("watched", 55, MONTH, mode="shadow")])
HOSTILE = 'user:"><script>alert(1)</script>'
SPREADSHEET = "api_key:=1+1"


@pytest.fixture
def counted(engine: sa.Engine) -> None:
    """60 requests of acme, which a limit of 50 locks, 25 of bob, and callers with hostile names."""
    store = SqlStore(engine, "here")
    store.activate(PLAN)
    at_s = now_s(engine)
    rows = [(60, "api_key:acme"), (25, "api_key:bob"), (7, HOSTILE), (6, "user:" + "long-" * 40)]
    flush(store, PLAN, [a_row(number, at_s, name) for number, name in rows])


@pytest.fixture
def address(settings: Settings, engine: sa.Engine, counted: None) -> Iterator[str]:
    with web_application(settings, engine, Health(Metrics("1"), lambda: 0.0), dict) as found:
        assert found is not None
        yield f"http://127.0.0.1:{found[1]}"


@pytest.fixture
def client(address: str) -> Iterator[httpx2.Client]:
    with Client(base_url=address, timeout=20) as found:
        yield found
