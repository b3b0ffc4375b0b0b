"""Seconds until a gate has 100,000 locks that are raised in ten commits: over SQL, and over HTTP.

The commits follow each other faster than an analyzer could make them, so that both gates lag behind.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from statistics import median
from typing import NamedTuple

import psutil
import sqlalchemy as sa

from analyzer.judging.locks import notify
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.database.migrate import upgrade
from tests.benchmarks.gates import wait_until_up
from tests.benchmarks.servers import Servers
from tests.benchmarks.waiting import CONFIGURATION, serving
from tests.support.servers.child import free_port

COMMITS, LOCKS = 10, 10_000  # of each commit

COLUMNS = """scope, key, resource, policy, kind, action, status, reason, detail, began_ms, until_ms, on_stale,
             slow_limit, slow_ms"""
NOW_MS = "cast(extract(epoch from now()) * 1000 as bigint)"
VALUES = f"""'caller', 'api_key:' || lpad(to_hex(n), 16, '0'), '', 'daily', 'quota', 'deny', 429,
             'quota-exceeded', '100,000 requests per day (Europe/Berlin), ' || (100000 + n) || ' counted',
             {NOW_MS}, {NOW_MS} + 3600000, 'keep', 0, 0"""
NUMBERS = "generate_series(cast(:first as int), :last) n"
# As `lock_feed.publish`, for the locks with these numbers.
PUBLISH = (
    f"insert into locks ({COLUMNS}) select {VALUES} from {NUMBERS}",
    "update feed set version = version + 1, mark = :mark",
    "insert into feed_versions (version, mark, at_ms) select version, mark, 0 from feed",
    f"""insert into lock_changes (version, number, op, {COLUMNS})
        select version, n - cast(:first as int), 'set', {VALUES} from feed, {NUMBERS}""",
    f"select pg_notify('{notify.CHANNEL}', '')",
)

# Prints when it denied the last caller, and the CPU seconds of the process until then.
GATE = """
import sys, time
from gatekeeper import Gate
gate = Gate(sys.argv[1])
gate.ready(20)
before_s = time.process_time()
print("ready", flush=True)
while gate.allow(sys.argv[2]):
    time.sleep(0.01)
print(time.time(), time.process_time() - before_s, flush=True)
"""


class Caught(NamedTuple):
    """Seconds until one gate had every lock, and what they cost."""

    late_s: float  # after the last commit
    gate_cpu_s: float
    server_cpu_s: float  # of `gatelock serve`; 0 over SQL


def run(servers: Servers, locks: int = LOCKS, rounds: int = 3) -> None:
    """Prints the medians over SQL and over HTTP, and their ratio."""
    print(f"{COMMITS * locks:,} locks in {COMMITS} commits, one gate; medians of {rounds} rounds")
    found: dict[str, list[Caught]] = {"SQL": [], "HTTP": []}
    for _ in range(rounds):  # in turns
        for name, results in found.items():
            results.append(_measure(servers, locks, over_http=name == "HTTP"))
    for name, results in found.items():
        late_s, gate_s, server_s = map(median, zip(*results, strict=True))
        print(
            f"  {name:5} all of them {late_s:.2f} s after the last commit; "
            f"CPU: gate {gate_s:.2f} s, server {server_s:.2f} s"
        )
    sql_s, http_s = (median(caught.late_s for caught in results) for results in found.values())
    print(f"  HTTP / SQL {http_s / sql_s:.2f}")


def _measure(servers: Servers, locks: int, *, over_http: bool) -> Caught:
    database, port = servers.postgres.new_database(), free_port()
    upgrade(database)
    config = servers.folder / "many_locks.toml"
    config.write_text(CONFIGURATION.format(database=database, port=port))
    with serving(config) if over_http else nullcontext() as server:
        if server is not None:
            wait_until_up(port)
        url = f"http://127.0.0.1:{port}" if over_http else database
        before_s = 0.0 if server is None else _cpu_s(server)
        with _gate(url, f"api_key:{COMMITS * locks - 1:016x}") as gate:
            committed_s = _publish(database, locks)
            assert gate.stdout is not None
            denied_s, gate_cpu_s = map(float, gate.stdout.readline().split())
        server_cpu_s = 0.0 if server is None else _cpu_s(server) - before_s
    servers.postgres.drop(database)
    return Caught(denied_s - committed_s, gate_cpu_s, server_cpu_s)


@contextmanager
def _gate(url: str, last: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen([sys.executable, "-c", GATE, url, last], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child
    finally:
        child.kill()
        child.wait(5)


def _publish(database: str, locks: int) -> float:
    """Publishes all locks; returns the time of the last commit."""
    engine = open_engine(database, statement_ms=0)
    try:
        for commit in range(COMMITS):
            values = {"first": commit * locks, "last": (commit + 1) * locks - 1, "mark": f"{commit:08x}"}
            with engine.begin() as db:
                for statement in PUBLISH:
                    db.execute(sa.text(statement), values)
    finally:
        engine.dispose()
    return time.time()


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
