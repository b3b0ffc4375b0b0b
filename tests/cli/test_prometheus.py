"""The rules and the board in a real Prometheus, which scrapes a real analyzer and a real gate."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client import CollectorRegistry, start_http_server

from gatekeeper import Gate
from gatekeeper.telemetry.prometheus import GateCollector
from tests.support import plain_http
from tests.support.running import Analyzer
from tests.support.servers import Missing
from tests.support.servers.child import free_port
from tests.support.servers.prometheus import NativePrometheus, find_programs
from tests.support.servers.report import ServersUsed
from tests.support.waiting import wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "gatelock.rules.yml"
BOARD = json.loads((DEPLOY / "grafana" / "gatelock.json").read_text())
CONFIGURATION = """
    [[sources]]
    name    = "web"
    file    = "{folder}/access.log"
    format  = "combined"
    caller  = "address"
    deny_if = {{ status = 429 }}
    [[policies]]
    name   = "ever"
    limit  = 3
    window = {{ per = "month" }}
    [[policies]]
    name   = "tried"
    limit  = 2
    mode   = "shadow"
    window = {{ per = "month" }}
"""
# Nothing to show while nothing is wrong, or without a Kafka.
EMPTY = {
    "Brakes, suspension, waiting": {"braked {{policy}}"},
    "Clocks": {"requests ahead of Kafka, {{source}}", "Kafka ahead of the database, {{source}}"},
    "Failing jobs": {"{{name}}"},
    "Failures": {"{{what}}"},
    "Locks lifted": {"{{policy}} {{cause}}"},
    "Notices": {"{{policy}}"},
    "Refused requests of clients": {"{{reason}}"},
    "Rejected records": {"denials that no lock supports"},
    "Remembered ids of events": {"{{source}}"},
    "Shipping delay": {"{{source}} 50 %", "{{source}} 99 %"},
}


@pytest.fixture
def programs(servers: ServersUsed) -> tuple[str, str]:
    try:
        found = find_programs()
    except Missing as missing:
        servers.lacks("prometheus", missing)
    servers.found("prometheus", "native")
    return found


class World:
    """An analyzer that follows a log, a gate that asks it, and a Prometheus that scrapes both."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "access.log"
        self.log.touch()
        self.analyzer = Analyzer(folder, "here", CONFIGURATION.format(folder=folder))
        self.gate = Gate(f"http://{self.analyzer.http}", name="shop")
        registry, port = CollectorRegistry(), free_port()
        registry.register(GateCollector(self.gate))
        self.server, self.thread = start_http_server(port, "127.0.0.1", registry)
        (folder / "prometheus").mkdir()
        targets = self.analyzer.http, f"127.0.0.1:{port}"
        self.prometheus = NativePrometheus(folder / "prometheus", targets, RULES)
        self.gate.start()
        wait_until(self.is_ready, 60.0)  # a file is followed from its end

    def is_ready(self) -> bool:
        with suppress(httpx2.TransportError):
            return plain_http.get(f"http://{self.analyzer.http}/readyz").is_success
        return False

    def write(self, address: str, status: int = 200) -> None:
        now = datetime.now(UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
        with self.log.open("a") as log:
            log.write(f'{address} - - [{now}] "GET / HTTP/1.1" {status} 5 "-" "-"\n')

    def work(self) -> None:
        """A caller asks, and is denied once it has a lock; a line cannot be read."""
        for _ in range(3):
            is_allowed = self.gate.check(address="192.0.2.7").allowed
            self.write("192.0.2.7", status=200 if is_allowed else 429)
        with self.log.open("a") as log:
            log.write("no line of a log\n")

    def close(self) -> None:
        self.gate.close()
        self.server.shutdown()
        self.server.server_close()
        self.prometheus.stop()
        self.analyzer.end()


@pytest.fixture
def world(tmp_path: Path, programs: tuple[str, str]) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def expressions() -> list[tuple[str, str, str]]:
    """Panel, legend and expression, with values for the variables of the board."""
    return [
        (panel["title"], target["legendFormat"],
         target["expr"].replace("$__rate_interval", "10s").replace("$source", ".*"))
        for panel in BOARD["panels"]
        for target in panel.get("targets", ())
    ]  # fmt: skip


@pytest.mark.slow
def test_the_board_shows_an_analyzer_and_a_gate_and_no_rule_fails(world: World) -> None:
    def shown(title: str) -> list[dict[str, Any]]:
        (expression,) = [text for at, _, text in expressions() if at == title]
        return world.prometheus.values(expression)

    def has_data() -> bool:
        world.work()  # rates are those of the last ten seconds
        found = map(shown, ("Denied requests by policy", "Checks by outcome", "Gates by state"))
        return all(found) and shown("Denied")[0]["value"][1] != "NaN"

    wait_until(has_data, 60.0, every_s=1.0)
    empty: dict[str, set[str]] = {}
    for title, legend, expression in expressions():
        if not world.prometheus.values(expression):
            empty.setdefault(title, set()).add(legend)
    empty.pop("Problems and alarms", None)  # a busy machine may have some
    assert empty == EMPTY
    wait_until(lambda: all(rule["health"] != "unknown" for rule in rules(world)))
    assert {rule["name"]: rule.get("lastError") for rule in rules(world) if rule["health"] != "ok"} == {}
    assert [rule["name"] for rule in rules(world) if rule["state"] == "firing"] == []


def rules(world: World) -> list[dict[str, Any]]:
    (group,) = world.prometheus.get("rules")["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def test_the_rules_pass_their_tests(programs: tuple[str, str]) -> None:
    for command in (("check", "rules", RULES.name), ("test", "rules", "gatelock.tests.yml")):
        ran = subprocess.run(
            [programs[1], *command], cwd=RULES.parent, capture_output=True, text=True, timeout=60
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_metrics_of_an_analyzer_are_well_formed(world: World, programs: tuple[str, str]) -> None:
    text = plain_http.get(f"http://{world.analyzer.http}/metrics").text
    command = [programs[1], "check", "metrics"]
    ran = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
    # It takes the closed days for the unit.
    assert (ran.stdout + ran.stderr).splitlines() == [
        'gatelock_differing_days use base unit "seconds" instead of "days"'
    ]
