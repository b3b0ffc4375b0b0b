"""What 500 gates cost that wait for news of `gatelock serve`, and how soon the last of them is told."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import quantiles

import psutil
import sqlalchemy as sa

from analyzer.store.database.engine import open_engine
from analyzer.store.database.migrate import upgrade
from analyzer.store.transaction import lock_feed
from gatekeeper.model import Lock, Set
from tests.benchmarks.gates import wait_until_up
from tests.benchmarks.servers import Servers
from tests.support.servers.child import free_port

PAUSE_S = 0.01  # of a gate that was kept waiting
WAIT_S = 5
CONFIGURATION = """
[database]
url = "{database}"
[analyzer]
http = "127.0.0.1:{port}"
"""


class Fleet:
    """So many gates, as far as a server can tell, and what the last answer of each was."""

    def __init__(self, port: int, gates: int) -> None:
        self._port = port
        self._gates = gates
        self.told: list[list[tuple[int, float]]] = [[] for _ in range(gates)]  # versions, and when
        self.answers = 0

    @property
    def least(self) -> int:
        """The version that every gate has, at least."""
        return min(told[-1][0] if told else -1 for told in self.told)

    def last_s(self, version: int) -> float:
        """When the last gate was told of `version`, or of a later one."""
        return max(next(at_s for told, at_s in each if told >= version) for each in self.told)

    async def poll(self) -> None:
        await asyncio.gather(*map(self._poll, range(self._gates)))

    async def _poll(self, number: int) -> None:
        asked, answered = await asyncio.open_connection("127.0.0.1", self._port)
        query = ""
        while True:
            answered.write(f"GET /v1/locks{query} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
            head = await asked.readuntil(b"\r\n\r\n")
            length = next(
                int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length")
            )
            answer = json.loads(await asked.readexactly(length))
            self.answers += 1
            if answer["changes"] or answer["snapshot"]:
                self.told[number].append((answer["version"], time.time()))
            query = f"?since={answer['version']}&mark={answer['mark']}&wait={WAIT_S}"
            await asyncio.sleep(max(PAUSE_S, answer["next_poll_s"]))


@contextmanager
def serving(config: Path) -> Iterator[psutil.Process]:
    command = [sys.executable, "-m", "analyzer.cli", "--config", str(config), "serve"]
    with config.with_suffix(".log").open("wb") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield psutil.Process(child.pid)
    finally:
        child.terminate()
        child.wait(20)


def run(servers: Servers, gates: int = 500, seconds: float = 10.0) -> None:
    database, port = servers.postgres.new_database(), free_port()
    upgrade(database)
    config = servers.folder / "waiting.toml"
    config.write_text(CONFIGURATION.format(database=database, port=port))
    engine = open_engine(database)
    print(f"{gates} gates that wait, {WAIT_S} s at most, on `gatelock serve` over PostgreSQL")
    try:
        with serving(config) as process:
            wait_until_up(port)
            before_mb = process.memory_info().rss / 1e6
            asyncio.run(_measure(Fleet(port, gates), process, engine, seconds, before_mb))
    finally:
        engine.dispose()


async def _measure(
    fleet: Fleet, process: psutil.Process, engine: sa.Engine, seconds: float, before_mb: float
) -> None:
    polling = asyncio.ensure_future(fleet.poll())
    while fleet.least < 0:
        await asyncio.sleep(0.1)
    for name, locks_per_s in (("nothing happens", 0.0), ("a lock each second", 1.0), ("ten a second", 10.0)):
        cpu_s, began_s, answers = _cpu_s(process), time.monotonic(), fleet.answers
        waits_s = await _lock(fleet, engine, seconds, locks_per_s)
        took_s = time.monotonic() - began_s
        cores, rate = (_cpu_s(process) - cpu_s) / took_s, (fleet.answers - answers) / took_s
        print(f"  {name:20} {cores:.3f} of a core, {rate:.0f} answers/s", end="")
        if waits_s:
            cuts = quantiles(waits_s, n=20)
            print(f"; committed to the last gate, s: p50 {cuts[9]:.3f} p95 {cuts[18]:.3f}", end="")
        print()
    print(f"  memory {before_mb:.0f} MB before, {process.memory_info().rss / 1e6:.0f} MB with them")
    polling.cancel()


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def _lock(fleet: Fleet, engine: sa.Engine, seconds: float, per_s: float) -> list[float]:
    """How long after its commit the last gate knew each lock."""
    if not per_s:
        await asyncio.sleep(seconds)
        return []
    committed_s: dict[int, float] = {}
    for number in range(int(seconds * per_s)):
        version = await asyncio.to_thread(_publish, engine, f"{per_s}-{number}")
        committed_s[version] = time.time()
        await asyncio.sleep(1 / per_s)
    while fleet.least < version:
        await asyncio.sleep(0.1)
    return [fleet.last_s(version) - at_s for version, at_s in committed_s.items()]


def _publish(engine: sa.Engine, name: str) -> int:
    now = datetime.now(UTC)
    lock = Lock("caller", f"api_key:{name}", "daily", now, now + timedelta(hours=1))
    with engine.begin() as db:
        return lock_feed.publish(db, [Set(lock)], name)
