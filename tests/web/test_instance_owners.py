"""An instance belongs to its token in the database: for every server, also after a restart."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
import sqlalchemy as sa

from analyzer.config.settings import Settings
from analyzer.faces import authentication
from analyzer.faces.feed import gates_endpoint
from analyzer.faces.signals.health import Health
from analyzer.faces.signals.metrics import Metrics
from analyzer.faces.wiring import web_application
from analyzer.gates import gate_reports
from analyzer.gates.gate_reports import OWNED_S, reporting_gates, store_statuses
from analyzer.gates.refused_clients import refused_clients
from analyzer.kernel.database.engine import NowMs, open_engine, writing
from analyzer.kernel.tables.schema import gates
from analyzer.kernel.tokens import create, revoke
from gatekeeper.model import GateStatus
from gatekeeper.sources.sql import SqlSource
from gatekeeper.telemetry import status_json
from tests.support import plain_http
from tests.support.gate_reports import gate_status
from tests.support.waiting import wait_until

WEB = "web:1:a"


@pytest.fixture
def tokens(engine: sa.Engine) -> dict[str, str]:
    return {name: create(engine, name, "read", None, "ann", "") for name in ("shop", "other")}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates_endpoint, "STORE_EVERY_S", 0.02)
    monkeypatch.setattr(gates_endpoint, "OWNERS_CACHED_S", 0.05)
    monkeypatch.setattr(authentication, "STORE_EVERY_S", 0.05)
    monkeypatch.setattr(authentication, "TOKENS_CACHED_S", 0.05)


@contextmanager
def a_server(settings: Settings) -> Iterator[str]:
    engine = open_engine(settings.database.address)
    with web_application(settings, engine, Health(Metrics("1"), time.monotonic), dict) as address:
        assert address is not None
        yield f"http://127.0.0.1:{address[1]}"
    engine.dispose()


def report(url: str, token: str, status: GateStatus) -> int:
    """Sends a report; returns the status of the answer."""
    headers = {"authorization": f"Bearer {token}"}
    body = status_json.dump(status)
    return plain_http.put(f"{url}/v1/gates/{status.instance}", content=body, headers=headers).status_code


def a_report(number: int, instance: str = WEB) -> GateStatus:
    return gate_status(instance, number=number, at=None)


def numbers(engine: sa.Engine) -> dict[str, int]:
    """The number of the report that is stored, by instance."""
    return {gate.status.instance: gate.status.number for gate in reporting_gates(engine)}


def fall_silent(engine: sa.Engine, *instances: str) -> None:
    with writing(engine) as db:
        past = NowMs() - round(OWNED_S * 1000) - 1_000
        db.execute(sa.update(gates).where(gates.c.instance.in_(instances)).values(at_ms=past))


def test_every_server_refuses_a_report_with_another_token_also_after_a_restart(
    settings: Settings, engine: sa.Engine, tokens: dict[str, str]
) -> None:
    with ExitStack() as servers:
        first, second = (servers.enter_context(a_server(settings)) for _ in range(2))
        assert report(first, tokens["shop"], a_report(1)) == 204
        wait_until(lambda: numbers(engine) == {WEB: 1})
        forged = a_report(2**63 - 1)
        assert [report(url, tokens["other"], forged) for url in (first, second)] == [403, 403]
        wait_until(lambda: [found.reason for found in refused_clients(engine)] == ["other-token"])
        metrics = plain_http.get(f"{second}/metrics").text
        assert 'gatelock_refused_requests_total{reason="other-token"} 1' in metrics
    with a_server(settings) as restarted:
        assert report(restarted, tokens["other"], forged) == 403
        assert report(restarted, tokens["shop"], a_report(2)) == 204
        wait_until(lambda: numbers(engine) == {WEB: 2})
        fall_silent(engine, WEB)
        wait_until(lambda: report(restarted, tokens["other"], a_report(1)) == 204)
        wait_until(lambda: numbers(engine) == {WEB: 1})
    with a_server(settings) as restarted:
        assert report(restarted, tokens["shop"], a_report(3)) == 403


def test_of_two_servers_that_accept_at_once_the_database_keeps_the_first_token(
    settings: Settings, engine: sa.Engine, tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates_endpoint, "OWNERS_CACHED_S", 60.0)
    with ExitStack() as servers:
        first, second = (servers.enter_context(a_server(settings)) for _ in range(2))
        for url in (first, second):  # both have read the owners
            assert report(url, tokens["other"], a_report(1, "till:1:b")) == 204
        assert report(first, tokens["shop"], a_report(1)) == 204
        wait_until(lambda: numbers(engine) == {WEB: 1, "till:1:b": 1})
        assert report(second, tokens["other"], a_report(2**63 - 1)) == 204, "not known yet"
        assert report(second, tokens["other"], a_report(2, "till:1:b")) == 204
        wait_until(lambda: numbers(engine)["till:1:b"] == 2)
        assert numbers(engine)[WEB] == 1


def test_the_instances_of_a_revoked_token_belong_to_none(
    settings: Settings, engine: sa.Engine, tokens: dict[str, str]
) -> None:
    with a_server(settings) as url:
        assert report(url, tokens["shop"], a_report(1)) == 204
        wait_until(lambda: numbers(engine) == {WEB: 1})
    revoke(engine, "shop", "ann", "replaced")
    with a_server(settings) as url:
        assert report(url, tokens["other"], a_report(2)) == 204
        wait_until(lambda: numbers(engine) == {WEB: 2})


def test_a_gate_that_reports_over_sql_belongs_to_no_token(
    settings: Settings, engine: sa.Engine, tokens: dict[str, str]
) -> None:
    source = SqlSource(settings.database.address, report_status=True)
    source.report_status(a_report(1))
    source.close()
    with a_server(settings) as url:
        assert report(url, tokens["shop"], a_report(2**63 - 1)) == 403
    assert numbers(engine) == {WEB: 1}


def test_a_row_of_an_earlier_version_belongs_to_the_first_token_that_reports_it(
    settings: Settings, engine: sa.Engine, tokens: dict[str, str]
) -> None:
    store_statuses(engine, [a_report(1)])
    with a_server(settings) as url:
        assert report(url, tokens["shop"], a_report(2)) == 204
        wait_until(lambda: numbers(engine) == {WEB: 2})
        assert report(url, tokens["other"], a_report(3)) == 403


class TestTheNumberOfInstances:
    @pytest.fixture(autouse=True)
    def few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (gate_reports, gates_endpoint):
            monkeypatch.setattr(module, "GATES_PER_TOKEN_MAX", 3)

    def test_one_token_has_a_bounded_number_of_instances_at_all_servers(
        self, settings: Settings, engine: sa.Engine, tokens: dict[str, str]
    ) -> None:
        with ExitStack() as servers:
            first, second = (servers.enter_context(a_server(settings)) for _ in range(2))
            answers = [report(first, tokens["shop"], a_report(1, f"h:{n}")) for n in range(5)]
            assert answers == [204, 204, 204, 429, 429]
            wait_until(lambda: set(numbers(engine)) == {"h:0", "h:1", "h:2"})
            assert report(second, tokens["shop"], a_report(1, "h:9")) == 429
            assert report(second, tokens["shop"], a_report(2, "h:1")) == 204, "it has its place"
            assert report(second, tokens["other"], a_report(1, "till:1:b")) == 204
            wait_until(lambda: numbers(engine) == {"h:0": 1, "h:1": 2, "h:2": 1, "till:1:b": 1})

    def test_of_silent_instances_the_newest_give_way(
        self, settings: Settings, engine: sa.Engine, tokens: dict[str, str]
    ) -> None:
        for n in range(3):
            store_statuses(engine, [a_report(1, f"h:{n}")], {f"h:{n}": "shop"})
        with writing(engine) as db:
            for n in range(3):
                first_ms = NowMs() - 1_000_000 + n
                db.execute(sa.update(gates).where(gates.c.instance == f"h:{n}").values(first_ms=first_ms))
        fall_silent(engine, "h:0", "h:1")
        with a_server(settings) as url:
            assert report(url, tokens["shop"], a_report(1, "h:9")) == 204
            wait_until(lambda: set(numbers(engine)) == {"h:0", "h:2", "h:9"})

    def test_two_servers_that_know_nothing_of_each_other_keep_the_bound(
        self, engine: sa.Engine, tokens: dict[str, str]
    ) -> None:
        for n in range(5):
            store_statuses(engine, [a_report(1, f"h:{n}")], {f"h:{n}": "shop"})
        assert len(numbers(engine)) == 3
