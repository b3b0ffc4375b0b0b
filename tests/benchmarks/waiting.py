"""Cost of 500 long polls at `gatelock serve`, and the delay until the last gate receives a lock."""

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

import psutil
import sqlalchemy as sa

from analyzer.judging.locks import lock_feed
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.database.migrate import upgrade
from analyzer.kernel.tables.schema import feed
from gatekeeper.model import Lock, Set
from tests.benchmarks.gates import wait_until_up
from tests.benchmarks.percentiles import percentiles
from tests.benchmarks.servers import Servers
from tests.support.servers.child import free_port

PAUSE_S = 0.01  # of a gate between a long poll and the next
WAIT_S = 5
CONFIGURATION = """
[database]
url = "{database}"
[analyzer]
http = "127.0.0.1:{port}"
"""


class Fleet:
    """Connections that poll as gates do, and the versions that each of them received."""

    def __init__(self, port: int, gates: int) -> None:
        self._port = port
        self._gates = gates
        # Of each gate: version and time of each change that it received.
        self.received: list[list[tuple[int, float]]] = [[] for _ in range(gates)]
        self.responses = 0

    @property
    def lowest_version(self) -> int:
        """The lowest version among the gates; -1 while one has none."""
        return min(changes[-1][0] if changes else -1 for changes in self.received)

    def last_received_s(self, version: int) -> float:
        """Returns the time at which the last gate received `version` or a later one."""
        return max(
            next(at_s for received, at_s in changes if received >= version) for changes in self.received
        )

    async def poll(self) -> None:
        await asyncio.gather(*map(self._poll, range(self._gates)))

    async def _poll(self, number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        query = ""
        while True:
            writer.write(f"GET /v1/locks{query} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length")
            )
            response = json.loads(await reader.readexactly(length))
            self.responses += 1
            if response["changes"] or response["snapshot"]:
                self.received[number].append((response["version"], time.time()))
            query = f"?since={response['version']}&mark={response['mark']}&wait={WAIT_S}"
            await asyncio.sleep(max(PAUSE_S, response["next_poll_s"]))


@contextmanager
def serving(config: Path) -> Iterator[psutil.Process]:
    command = [sys.executable, "-m", "analyzer.faces.cli", "--config", str(config), "serve"]
    with config.with_suffix(".log").open("wb") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield psutil.Process(child.pid)
    finally:
        child.terminate()
        child.wait(20)


@contextmanager
def installed(folder: Path, database: str) -> Iterator[tuple[psutil.Process, int]]:
    """`gatelock serve` on a new database, and its port."""
    upgrade(database)
    port, config = free_port(), folder / "waiting.toml"
    config.write_text(CONFIGURATION.format(database=database, port=port))
    with serving(config) as process:
        wait_until_up(port)
        yield process, port


def run(servers: Servers, gates: int = 500, seconds: float = 10.0) -> None:
    print(f"long polls of at most {WAIT_S} s at `gatelock serve`")
    one_s = 3 * seconds  # a thousandth of a core shows only after some time
    for database in (servers.postgres.new_database(), f"sqlite:///{servers.folder}/waiting.db"):
        with installed(servers.folder, database) as (process, port):
            asyncio.run(_measure_one(process, port, database.partition(":")[0], one_s))
    database = servers.postgres.new_database()
    engine = open_engine(database)
    print(f"{gates} of them, over PostgreSQL")
    try:
        with installed(servers.folder, database) as (process, port):
            before_mb = process.memory_info().rss / 1e6
            asyncio.run(_measure(Fleet(port, gates), process, engine, seconds, before_mb))
    finally:
        engine.dispose()


async def _measure_one(process: psutil.Process, port: int, database: str, seconds: float) -> None:
    """Prints what the server costs without a gate, and what one waiting gate adds."""
    await asyncio.sleep(2)  # the start is over
    cores = []
    for gates in (0, 1):
        polling = asyncio.ensure_future(Fleet(port, gates).poll())
        await asyncio.sleep(WAIT_S)
        cpu_s, began_s = _cpu_s(process), time.monotonic()
        await asyncio.sleep(seconds)
        cores.append((_cpu_s(process) - cpu_s) / (time.monotonic() - began_s))
        polling.cancel()
    print(f"  {database}: {cores[0]:.4f} of a core without a gate, one gate adds {cores[1] - cores[0]:.4f}")


async def _measure(
    fleet: Fleet, process: psutil.Process, engine: sa.Engine, seconds: float, before_mb: float
) -> None:
    polling = asyncio.ensure_future(fleet.poll())
    while fleet.lowest_version < 0:
        await asyncio.sleep(0.1)
    for name, locks_per_s in (("no change", 0.0), ("a lock per second", 1.0), ("ten per second", 10.0)):
        cpu_s, began_s, responses = _cpu_s(process), time.monotonic(), fleet.responses
        delays_s = await _lock(fleet, engine, seconds, locks_per_s)
        took_s = time.monotonic() - began_s
        cores, rate = (_cpu_s(process) - cpu_s) / took_s, (fleet.responses - responses) / took_s
        print(f"  {name:20} {cores:.3f} of a core, {rate:.0f} responses/s", end="")
        if delays_s:
            print(f"; from commit to the last gate, s: {percentiles(delays_s, 50, 95)}", end="")
        print()
    print(f"  memory {before_mb:.0f} MB before, {process.memory_info().rss / 1e6:.0f} MB with them")
    polling.cancel()


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def _lock(fleet: Fleet, engine: sa.Engine, seconds: float, per_s: float) -> list[float]:
    """Publishes locks; returns the delay from the commit of each to the last gate."""
    if not per_s:
        await asyncio.sleep(seconds)
        return []
    committed_s: dict[int, float] = {}
    for number in range(int(seconds * per_s)):
        version = await asyncio.to_thread(_publish, engine, f"{per_s}-{number}")
        committed_s[version] = time.time()
        await asyncio.sleep(1 / per_s)
    while fleet.lowest_version < version:
        await asyncio.sleep(0.1)
    return [fleet.last_received_s(version) - at_s for version, at_s in committed_s.items()]


def _publish(engine: sa.Engine, name: str) -> int:
    """Publishes a lock; returns the version of the feed that has it."""
    now = datetime.now(UTC)
    lock = Lock("caller", f"api_key:{name}", "daily", now, now + timedelta(hours=1))
    with engine.begin() as db:
        lock_feed.publish(db, [Set(lock)], name)
        return int(db.execute(sa.select(feed.c.version)).scalar_one())
