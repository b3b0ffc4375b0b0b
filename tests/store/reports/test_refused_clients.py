"""Clients that are refused: added up, bounded, and forgotten after a while."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from analyzer.gates import refused_clients as module
from analyzer.gates.gate_reports import reporting_gates, store_statuses
from analyzer.gates.refused_clients import REFUSED_KEPT_MS, RefusalCount, refused_clients, store_refusals
from analyzer.kernel.database.engine import NowMs, writing
from analyzer.kernel.tables.schema import refused_requests
from tests.store.reports.test_gate_reports import a_status


def a_count(
    address: str = "10.0.0.7", instance: str = "", requests: int = 1, age_ms: int = 0
) -> RefusalCount:
    return RefusalCount(address, instance, "no-token", requests, age_ms, age_ms)


def stored(engine: sa.Engine) -> dict[tuple[str, str], int]:
    return {(found.address, found.instance): found.requests for found in refused_clients(engine)}


def test_refusals_of_a_client_are_added_up_from_the_first_to_the_last(engine: sa.Engine) -> None:
    store_refusals(engine, [a_count(requests=300, age_ms=60_000), a_count("10.0.0.8", "web:1:a")])
    store_refusals(engine, [a_count(requests=11, age_ms=4_000)])
    assert stored(engine) == {("10.0.0.7", ""): 311, ("10.0.0.8", "web:1:a"): 1}
    client = refused_clients(engine)[1]
    assert client.reason == "no-token"
    assert 60 <= client.first_age_s < 80
    assert 4 <= client.last_age_s < 24


def test_a_client_that_was_not_refused_for_ten_minutes_is_forgotten(engine: sa.Engine) -> None:
    store_refusals(engine, [a_count(requests=300), a_count("10.0.0.8")])
    with writing(engine) as db:
        past = NowMs() - REFUSED_KEPT_MS - 1_000
        db.execute(sa.update(refused_requests).values(first_ms=past, last_ms=past))
    assert stored(engine) == {}
    store_refusals(engine, [a_count()])
    assert stored(engine) == {("10.0.0.7", ""): 1}, "since its return"
    with engine.connect() as db:
        assert db.scalar(sa.select(sa.func.count()).select_from(refused_requests)) == 1


def test_the_number_of_clients_is_limited_to_those_refused_last(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REFUSED_KEPT", 3)
    for number in range(7):
        store_refusals(engine, [a_count(f"10.0.0.{number}", age_ms=10_000 * (7 - number))])
    assert set(stored(engine)) == {("10.0.0.4", ""), ("10.0.0.5", ""), ("10.0.0.6", "")}


def test_a_gate_that_was_known_before_is_refused(engine: sa.Engine) -> None:
    store_statuses(engine, [a_status("web:1:a"), a_status("till:1:b")])
    store_refusals(engine, [a_count(instance="web:1:a")])
    by_instance = {gate.status.instance: gate.refused for gate in reporting_gates(engine)}
    assert by_instance["till:1:b"] is None
    assert by_instance["web:1:a"] is not None


def test_a_gate_that_reports_is_not_refused_when_another_client_uses_its_name(engine: sa.Engine) -> None:
    store_refusals(engine, [a_count(instance="web:1:a", age_ms=60_000)])
    store_statuses(engine, [a_status("web:1:a")])
    (gate,) = reporting_gates(engine)
    assert gate.refused is None
