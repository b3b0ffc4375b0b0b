"""Guard, request log, analyzer and lock together, with a real server, file, broker and process."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from analyzer.kernel.database.migrate import upgrade
from gatekeeper import Gate
from gatekeeper.adapters.asgi import Guard, routes
from gatekeeper.requestlog.asgi import RequestLog
from gatekeeper.requestlog.kafka import KafkaSink
from tests.support import plain_http
from tests.support.gatelock_processes import GatelockProcess, run_gatelock
from tests.support.servers.kafka import Kafka
from tests.support.uvicorn import serving

ROOT = Path(__file__).parents[3]
LIMIT = 20
PATIENCE_S = 30.0
MORE = """
[database]
url = "{database}"
[kafka]
bootstrap_servers = "{bootstrap}"
assign = "all"
[analyzer]
http = "off"
[[policies]]
name   = "monthly"
limit  = {limit}
window = {{ per = "month" }}
"""


class World:
    """An analyzer that counts the request log with the source in `deploy`."""

    def __init__(self, folder: Path, source: str, bootstrap: str = "localhost:9092") -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/gatelock.db"
        upgrade(self.url)
        shipped = (ROOT / "deploy" / "requestlog.toml").read_text()
        assert 'file    = "/var/log/shop/requests.log"' in shipped
        text = shipped.replace('file    = "/var/log/shop/requests.log"', source)
        more = MORE.format(database=self.url, bootstrap=bootstrap, limit=LIMIT)
        (folder / "gatelock.toml").write_text(more + text)

    @contextmanager
    def analyzer(self) -> Iterator[None]:
        command = ["--config", "gatelock.toml", "run"]
        with (self.folder / "analyzer.log").open("wb") as output:
            child = GatelockProcess(command, folder=self.folder, stdout=output, stderr=output)
        try:
            yield
        finally:
            child.terminate()
            try:
                assert child.wait(15) == 0, (self.folder / "analyzer.log").read_text()
            finally:
                child.kill()

    def used(self) -> dict[str, tuple[int, int]]:
        """Returns admitted and denied requests by caller."""
        command = ["--config", "gatelock.toml", "usage", "--json", "--width", "month"]
        ran = run_gatelock(*command, "--meter", "requests", folder=self.folder)
        assert ran.returncode == 0, ran.stderr
        rows: list[dict[str, Any]] = [json.loads(line) for line in ran.stdout.splitlines()]
        return {row["caller"]: (row["value"], row["denied"]) for row in rows}


def until(ask: Any) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not ask():
        assert time.monotonic() < deadline_s, "the condition was not met in time"
        time.sleep(0.05)


@pytest.mark.parametrize(
    "through", [pytest.param("file", marks=pytest.mark.deep("a flood is counted from a file")), "kafka"]
)
def test_a_caller_above_its_limit_is_denied_and_denied_requests_are_counted_apart(
    tmp_path: Path, through: str, request: pytest.FixtureRequest
) -> None:
    if through == "file":
        world = World(tmp_path, 'file = "requests.log"')
        to: Any = tmp_path / "requests.log"
    else:
        kafka: Kafka = request.getfixturevalue("real_kafka")
        topic = kafka.create_topic()
        world = World(tmp_path, f'topic = "{topic}"', kafka.bootstrap)
        to = KafkaSink(kafka.bootstrap, topic)
    api = FastAPI()

    @api.get("/v1/items/{item}")
    def one(item: int) -> int:
        return item

    gate = Gate(world.url)
    log = RequestLog(Guard(api, gate), to=to)
    with gate, serving(log) as url, plain_http.Client(base_url=url) as client, world.analyzer():

        def ask(caller: str) -> int:
            return client.get("/v1/items/7", headers={"x-api-key": caller}).status_code

        # The limit is reached only if every record is counted once.
        assert [ask("acme") for _ in range(LIMIT - 1)] == [200] * (LIMIT - 1)
        assert [ask("bob") for _ in range(3)] == [200] * 3
        time.sleep(0.5)
        assert ask("acme") == 200
        until(lambda: not gate.allow("api_key:acme"))
        assert [ask("acme") for _ in range(5)] == [429] * 5
        assert ask("bob") == 200
        until(lambda: log.written == LIMIT + 9)  # the last is logged when its answer is sent
        assert log.dropped == 0
        until(lambda: world.used() == {"api_key:acme": (LIMIT, 5), "api_key:bob": (4, 0)})


def test_a_guard_asks_for_the_route_that_the_shipped_mapping_has_counted(tmp_path: Path) -> None:
    """The mapping has no `routes`: what the log calls the resource is one."""
    world = World(tmp_path, 'file = "requests.log"')
    configuration = tmp_path / "gatelock.toml"
    text = configuration.read_text()
    by_route = 'name   = "monthly"\nper    = "caller+resource"'
    configuration.write_text(text.replace('name   = "monthly"', by_route))
    api = FastAPI()

    @api.get("/heavy/{item}")
    @api.get("/light")
    def answer(item: int = 0) -> int:
        return item

    gate = Gate(world.url)
    guard = Guard(api, gate, resource=routes(["/heavy/{item}", "/light"]))
    log = RequestLog(guard, to=tmp_path / "requests.log")
    with gate, serving(log) as url, plain_http.Client(base_url=url) as client, world.analyzer():

        def ask(path: str) -> int:
            return client.get(path, headers={"x-api-key": "acme"}).status_code

        assert [ask(f"/heavy/{n}") for n in range(LIMIT)] == [200] * LIMIT
        until(lambda: ask("/heavy/7") == 429)
        assert ask("/light") == 200
