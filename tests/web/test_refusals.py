"""Refused requests are stored in bounded writes, and named by commands in other processes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
import sqlalchemy as sa

from analyzer.config.settings import Settings
from analyzer.faces import authentication as module
from analyzer.faces.authentication import Credentials, RefusalRecorder
from analyzer.faces.feed import gates_endpoint
from analyzer.faces.signals.health import Health
from analyzer.faces.signals.metrics import Metrics
from analyzer.faces.wiring import web_application
from analyzer.gates.gate_reports import reporting_gates
from analyzer.gates.refused_clients import RefusalCount, refused_clients
from analyzer.gates.refused_requests import REASONS
from analyzer.kernel.errors import StoreAway
from analyzer.kernel.tokens import create, revoke
from gatekeeper import Gate
from gatekeeper.sources.http import HttpSource
from gatekeeper.telemetry import gate_status
from tests.support import plain_http
from tests.support.command_line import run_command
from tests.support.waiting import PATIENCE_S, wait_for, wait_until


@pytest.fixture
def url(
    settings: Settings, engine: sa.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A server whose waits are short, in the folder of its configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "STORE_EVERY_S", 0.1)
    monkeypatch.setattr(module, "TOKENS_CACHED_S", 0.1)
    monkeypatch.setattr(gates_endpoint, "STORE_EVERY_S", 0.05)
    monkeypatch.setattr(gate_status, "REPORT_EVERY_S", 0.1)
    with web_application(settings, engine, Health(Metrics("1"), time.monotonic), dict) as address:
        assert address is not None
        yield f"http://127.0.0.1:{address[1]}"


def gatelock(*arguments: str) -> tuple[int, str]:
    result = run_command(arguments)
    return result.exit_code, result.stdout


def test_clients_without_a_valid_token_are_named_by_gates_list_and_doctor(
    url: str, engine: sa.Engine
) -> None:
    create(engine, "shop", "read", None, "ann", "")
    wait_until(lambda: plain_http.get(f"{url}/v1/locks").status_code == 401)
    for _ in range(3):
        assert plain_http.get(f"{url}/v1/locks", headers={"authorization": "Bearer gone"}).status_code == 401
    wait_until(lambda: {client.reason for client in refused_clients(engine)} == {"no-token", "invalid-token"})
    code, shown = gatelock("upkeep", "gates", "list")
    assert code == 1
    assert "127.0.0.1 asks without a token since 20" in shown
    assert " s ago: 1 request refused" in shown
    rows = [json.loads(line) for line in gatelock("upkeep", "gates", "list", "--json")[1].splitlines()]
    assert {row["refused"] for row in rows} == {"no-token", "invalid-token"}
    assert {row["address"] for row in rows} == {"127.0.0.1"}
    findings = [json.loads(line) for line in gatelock("doctor", "--json")[1].splitlines()]
    whats = [finding["what"] for finding in findings if finding["check"] == "gates"]
    assert any("asks with a token that was revoked, has expired or never" in what for what in whats)
    assert not any("asks without a token" in what for what in whats), "a gate asks more often"


def test_a_known_gate_whose_token_is_revoked_stays_listed_with_a_growing_age(
    url: str, engine: sa.Engine
) -> None:
    token = create(engine, "shop", "read", None, "ann", "")
    with Gate(HttpSource(url, token, wait=0.1), name="shop") as gate:
        assert gate.ready(PATIENCE_S)
        wait_until(lambda: len(reporting_gates(engine)) == 1)
        revoke(engine, "shop", "ann", "it leaked")
        row = wait_for(refused_row)
        assert row["application"] == "shop"
        assert "asks with a token that was revoked" in row["wrong"]["refused"]
        age_s = row["age_s"]
        wait_until(lambda: (refused_row() or row)["age_s"] > age_s + 1)
    findings = [json.loads(line) for line in gatelock("doctor", "--json")[1].splitlines()]
    (found,) = [finding for finding in findings if "a token that was revoked" in finding["what"]]
    assert found["what"].startswith(f"shop {row['instance']} asks with a token that was revoked")
    assert found["cure"].startswith("give it a token of `gatelock upkeep tokens list`")


def refused_row() -> dict[str, Any] | None:
    """The row of the one gate in `upkeep gates list`, once it is refused."""
    rows = [json.loads(line) for line in gatelock("upkeep", "gates", "list", "--json")[1].splitlines()]
    (row,) = rows
    return row if "refused" in row["wrong"] else None


# The bounds of what is stored


class RefusalStore:
    """Receives what a recorder stores; fails while `is_away`."""

    def __init__(self) -> None:
        self.writes: list[Sequence[RefusalCount]] = []
        self.is_away = False

    def store(self, counts: Sequence[RefusalCount]) -> None:
        if self.is_away:
            raise StoreAway("it is not there")
        self.writes.append(counts)


def from_(address: str, instance: str = "") -> Credentials:
    return Credentials("", False, (address, 1), instance)


def recorded(act: Callable[[RefusalRecorder], None], monkeypatch: pytest.MonkeyPatch) -> RefusalStore:
    """Returns what a recorder has stored when everything that `act` added is stored."""
    monkeypatch.setattr(module, "STORE_EVERY_S", 0.05)
    store = RefusalStore()

    async def record() -> None:
        recorder = RefusalRecorder(store.store, time.monotonic)
        act(recorder)
        assert recorder._storing is not None
        await asyncio.wait_for(recorder._storing, PATIENCE_S)

    asyncio.run(record())
    return store


def test_any_number_of_refusals_makes_one_write_of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def flood(recorder: RefusalRecorder) -> None:
        for number in range(10_000):
            recorder.add("no-token", from_(f"10.0.{number % 250}.{number // 250}"))

    (counts,) = recorded(flood, monkeypatch).writes
    assert len(counts) == module.CLIENTS_MAX + 1
    assert sum(count.requests for count in counts) == 10_000
    assert counts[-1].address == ""


@pytest.mark.parametrize("host", ["10.0.0.7", "2001:db8::{:x}"])
def test_a_client_that_invents_names_leaves_room_for_others(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    def invent(recorder: RefusalRecorder) -> None:
        for number in range(1_000):
            recorder.add("no-token", from_(host.format(number), f"web:1:{number}"))
        recorder.add("no-token", from_("10.0.0.8", "till:1:b"))

    (counts,) = recorded(invent, monkeypatch).writes
    assert len(counts) == module.CLIENTS_PER_NETWORK_MAX + 2
    assert ("10.0.0.8", "till:1:b") in [(count.address, count.instance) for count in counts]


def test_refusals_are_kept_while_the_database_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STORE_EVERY_S", 0.05)
    store = RefusalStore()

    async def record() -> None:
        store.is_away = True
        recorder = RefusalRecorder(store.store, time.monotonic)
        recorder.add("no-token", from_("10.0.0.7"))
        await asyncio.sleep(0.2)
        store.is_away = False
        recorder.add("no-token", from_("10.0.0.7"))
        assert recorder._storing is not None
        await asyncio.wait_for(recorder._storing, PATIENCE_S)

    asyncio.run(record())
    assert [[count.requests for count in counts] for counts in store.writes] == [[2]]


@pytest.mark.parametrize("name", ["", "\x1b[2J", "a b", "x" * 101])
def test_a_name_that_no_gate_has_is_not_stored(url: str, engine: sa.Engine, name: str) -> None:
    create(engine, "shop", "read", None, "ann", "")
    headers = {"gatelock-instance": name}
    wait_until(lambda: plain_http.get(f"{url}/v1/locks", headers=headers).status_code == 401)
    wait_until(lambda: refused_clients(engine))
    assert refused_clients(engine)[0].instance == ""


def test_each_reason_has_a_sentence_and_a_cure() -> None:
    assert set(get_args(module.Refusal)) == set(REASONS)
    assert all(sentence and cure for sentence, cure in REASONS.values())
