"""A client that makes the application answer with the header of a denial gets no free requests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from analyzer.config.settings import load
from analyzer.counting.counter.counter import PythonCounter
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import open_engine, writing
from analyzer.kernel.model import Partition, Record, Records
from analyzer.kernel.tables.schema import disbelieved, lock_history
from gatekeeper import Gate
from gatekeeper.requestlog.asgi import RequestLog
from tests.support.fresh_databases import migrated_sqlite
from tests.support.requestlog import MemorySink
from tests.support.stored_counts import stored_counts

ROOT = Path(__file__).parents[2]
LIMIT = 5
POLICY = f"""
[[policies]]
name = "daily"
kind = "quota"
limit = {LIMIT}
window = {{ per = "month" }}
"""
CLIENT = "address:192.0.2.9"
SCOPE = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("192.0.2.9", 5000)}


async def echo(scope: Any, _receive: Any, send: Any) -> None:
    """An application behind no guard that passes on what another service has answered."""
    headers = [(b"gatelock", b'denied;policy="daily"')]
    await send({"type": "http.response.start", "status": 429, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


def forged_lines(count: int) -> list[bytes]:
    """Returns the lines that the application logs for `count` requests of the client."""
    sink = MemorySink()
    app = RequestLog(echo, to=sink)

    async def receive() -> dict[str, str]:
        return {"type": "http.request"}

    async def send(_message: object) -> None:
        """Takes the response."""

    async def requests() -> None:
        for _ in range(count):
            await app(dict(SCOPE), receive, send)

    asyncio.run(requests())
    app.close()
    assert [record["gate"] for record in sink.records()] == ["denied"] * count
    return [line.text for line in sink.lines]


def test_a_client_that_forges_denials_is_counted_and_locked(tmp_path: Path) -> None:
    url = migrated_sqlite(tmp_path)
    file = tmp_path / "gatelock.toml"
    source = (ROOT / "deploy/requestlog.toml").read_text()
    file.write_text(f'[database]\nurl = "{url}"\n{source}{POLICY}')
    settings = load(file)
    plan, mappings = settings.plan(), settings.mappings()
    [name] = mappings
    part = Partition("files", "log", 0, name, "requests.log")
    engine = open_engine(url)
    with writing(engine) as db:  # as if this version ran for long
        db.execute(sa.update(lock_history).values(began_ms=0))
    store = SqlStore(engine, "here")
    version = store.activate(plan)
    store.begin(part, 0)
    counter = PythonCounter(mappings, plan.groupings, plan.meters)
    lines = forged_lines(LIMIT)
    records = [Record(number, None, line.strip()) for number, line in enumerate(lines)]
    counter.feed(Records.of(part, 0, len(lines), records))
    counted = counter.drain()
    with store.transaction() as flush:
        flush.move_offsets(counted.parts, {})
        flush.apply(plan, version, counted, flush.check_plan(plan, version))
    with engine.connect() as db:
        assert {(row.key, row.value, row.denied) for row in stored_counts(db)} == {(CLIENT, LIMIT, 0)}
        assert db.execute(sa.select(sa.func.sum(disbelieved.c.requests))).scalar_one() == LIMIT
    with Gate(url) as gate:
        gate.ready(5)
        assert not gate.check(CLIENT).allowed
    engine.dispose()
