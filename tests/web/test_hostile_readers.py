"""Bounds of what one read token may cost: clients that ask for versions that never were, and a gate."""

from __future__ import annotations

import gzip
import http.client
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from analyzer.kernel import tokens
from analyzer.kernel.database.engine import open_engine
from gatekeeper import Gate
from gatekeeper.sources.http import HttpSource
from tests.support.depth import IS_DEEP
from tests.support.running import Analyzer

LOCKS = 100_000 if IS_DEEP else 20_000
CLIENTS = 10
LATER_S_MAX = 1.0
# Each client asks again as soon as it has its answer.
CLIENT = """
import http.client, random, sys, threading
host, port, token, clients = sys.argv[1:]
def ask():
    while True:
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        try:
            while True:
                path = f"/v1/locks?since={random.choice((7, 1, 10**6))}&mark={random.randbytes(4).hex()}"
                connection.request("GET", path, headers={"authorization": f"Bearer {token}"})
                answer = connection.getresponse()
                while answer.read(1 << 20):
                    pass
                print(f"{answer.status}\\n", end="", flush=True)  # in one piece
        except OSError:
            pass
for _ in range(int(clients)):
    threading.Thread(target=ask, daemon=True).start()
threading.Event().wait()
"""
SERVE = """
import runpy, sys
sys.argv = ["gatelock", "serve"]
runpy.run_module("analyzer.faces.cli", run_name="__main__")
"""


@contextmanager
def hostile_clients(address: str, token: str) -> Iterator[None]:
    """Runs the clients, from the moment that each of them may have had an answer."""
    arguments = [sys.executable, "-c", CLIENT, *address.split(":"), token, str(CLIENTS)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for _ in range(2 * CLIENTS):
                assert process.stdout.readline() == "200\n"
            yield
        finally:
            process.kill()


def fill(url: str, count: int) -> None:
    """Adds so many locks, as versions 1 to 10 of the feed."""
    engine = open_engine(url)
    columns = (
        "scope, key, resource, policy, kind, action, status, reason, detail, began_ms, until_ms, on_stale"
    )
    now_ms = time.time_ns() // 1_000_000
    statements = (
        f"insert into locks ({columns}, slow_limit, slow_ms) "
        "select 'caller', 'api_key:' || n, '', 'daily', 'quota', 'deny', 429, 'quota-exceeded', "
        "'100,000 requests per day (Europe/Berlin), 100,214 counted', "
        f"{now_ms}, {now_ms + 3_600_000}, 'keep', 0, 0 from generate_series(1, {count}) n",
        "update feed set version = 10, mark = 'mark-10'",
        "insert into feed_versions (version, mark, at_ms) "
        f"select n, 'mark-' || n, {now_ms} from generate_series(1, 10) n",
    )
    with engine.begin() as db:
        for statement in statements:
            db.exec_driver_sql(statement)
    engine.dispose()


def answered_s(address: str, token: str) -> float:
    """Seconds until the whole first answer to a cold gate is here; reading it is the gate's own time."""
    connection = http.client.HTTPConnection(address, timeout=60)
    began_s = time.monotonic()
    headers = {"authorization": f"Bearer {token}", "accept-encoding": "gzip"}
    connection.request("GET", "/v1/locks", headers=headers)
    answer = connection.getresponse()
    content = answer.read()
    passed_s = time.monotonic() - began_s
    connection.close()
    assert answer.status == 200
    assert gzip.decompress(content).count(b"api_key:") == LOCKS
    return passed_s


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_ten_hostile_clients_do_not_keep_a_cold_gate_from_its_locks(
    tmp_path: Path, migrated_url: str
) -> None:
    fill(migrated_url, LOCKS)
    engine = open_engine(migrated_url)
    token = tokens.create(engine, "shop", "read", None, "ann", "")
    engine.dispose()
    server = Analyzer(tmp_path, "one", "", migrated_url, SERVE)
    try:
        server.wait_until_ready()
        answered_s(server.http, token)
        alone_s = answered_s(server.http, token)
        with hostile_clients(server.http, token):
            seconds = [answered_s(server.http, token) for _ in range(5)]
            with Gate(HttpSource(f"http://{server.http}", token)) as gate:
                assert gate.ready(30)
                assert not gate.allow(f"api_key:{LOCKS}")
        print(f"{alone_s:.2f} s alone, beside the clients {' '.join(f'{s:.2f}' for s in seconds)} s")
        assert min(seconds) < alone_s + LATER_S_MAX, (alone_s, seconds)
    finally:
        server.end()
