"""A fake page and a fake gauge are shown: no code elsewhere knows the names of their tables' entries."""

from __future__ import annotations

import httpx2
import pytest
import sqlalchemy as sa

from analyzer.config.settings import Settings
from analyzer.faces.pages import serving_pages
from analyzer.faces.pages.page_content import Content
from analyzer.faces.pages.page_list import PAGES
from analyzer.faces.pages.page_request import Page, PageRequest
from analyzer.faces.signals import metrics
from analyzer.faces.signals.health import Health
from analyzer.faces.signals.metrics import Gauge, Measurements, Metric, Metrics
from analyzer.faces.wiring import web_application
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.tokens import create
from analyzer.plan.plan import Plan
from tests.support.plain_http import Client


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_page_is_one_entry(settings: Settings, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def tides(_request: PageRequest) -> Content:
        return Content("High water at noon")

    monkeypatch.setattr(serving_pages, "PAGES", (*PAGES, Page("/tides", "Tides", "view", tides)))
    SqlStore(engine, "one:7").activate(Plan())
    token = create(engine, "viewer", "view", None, "test", "for a test")
    with web_application(settings, engine, Health(Metrics("1"), lambda: 0.0), dict) as address:
        assert address is not None
        with Client(base_url=f"http://127.0.0.1:{address[1]}", timeout=20) as client:
            signed_in: httpx2.Response = client.post("/sign-in", data={"token": token, "next": "/tides"})
            assert signed_in.headers["location"] == "/tides"
            assert "High water at noon" in client.get("/tides").text
            assert ">Tides</a>" in client.get("/").text


def test_a_gauge_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    metric = Metric("gatelock_tide_metres", "gauge", "The height of the water.", ("place",))
    gauge = Gauge(metric, lambda now: {("Hamburg",): len(now.problems), ("Basel",): None})
    monkeypatch.setattr(metrics, "GAUGES", (*metrics.GAUGES, gauge))
    measurements = Measurements({}, None, None, ("database",), None, None)
    text = Metrics("1").exposition(measurements, "")[0].decode()
    assert 'gatelock_tide_metres{place="Hamburg"} 1.0' in text
    assert "Basel" not in text
