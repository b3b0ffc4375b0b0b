"""Seconds from the record that reaches a limit to the last gate's first denial: eight gates in four
processes, over SQL, over HTTP as it is by default, which is a long poll, and over HTTP without waiting."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.tables.schema import locks as locks_table
from tests.benchmarks.analyzers import running
from tests.benchmarks.percentiles import percentiles
from tests.benchmarks.producers import producing
from tests.benchmarks.refusal import CONFIGURATION, LIMIT, QUOTA
from tests.benchmarks.servers import Servers
from tests.support.servers.child import free_port

PROCESSES, GATES = 4, 2

# Each line of its input is a caller; of its output a gate, a caller, and when that gate first said no.
WATCHER = """
import sys, threading, time
from gatekeeper import Gate
from gatekeeper.sources.http import HttpSource
url, waits, count = sys.argv[1], sys.argv[2] == "waits", int(sys.argv[3])
gates = [Gate(url if waits else HttpSource(url, wait=0)) for _ in range(count)]
for gate in gates:
    gate.ready(20)
print("ready", flush=True)
waiting, more = [], []
def read():
    for line in sys.stdin:
        more.append(line.strip())
threading.Thread(target=read, daemon=True).start()
while True:
    while more:
        name = more.pop(0)
        waiting += [(number, gate, name) for number, gate in enumerate(gates)]
    left = []
    for number, gate, name in waiting:
        if gate.allow(name):
            left.append((number, gate, name))
        else:
            print(number, name, time.time(), flush=True)
    waiting = left
    time.sleep(0.005)
"""


class Watchers:
    """Processes with gates, told of callers and telling of denials."""

    def __init__(self, url: str, waits: str) -> None:
        command = [sys.executable, "-c", WATCHER, url, waits, str(GATES)]
        self._children = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(PROCESSES)
        ]
        self.denied_s: defaultdict[str, list[float]] = defaultdict(list)
        for child in self._children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            threading.Thread(target=self._read, args=(child,), daemon=True).start()

    def _read(self, child: subprocess.Popen[str]) -> None:
        for line in child.stdout or ():
            _, name, at_s = line.split()
            self.denied_s[name].append(float(at_s))

    def watch(self, caller: str) -> None:
        for child in self._children:
            assert child.stdin is not None
            print(caller, file=child.stdin, flush=True)

    def close(self) -> None:
        for child in self._children:
            child.kill()
            child.wait(5)


@contextmanager
def watching(url: str, waits: str) -> Iterator[Watchers]:
    watchers = Watchers(url, waits)
    try:
        yield watchers
    finally:
        watchers.close()


def run(servers: Servers, locks: int = 200, every_s: float = 0.137) -> None:
    port = free_port()
    database, topic = servers.postgres.new_database(), servers.kafka.create_topic(partitions=4)
    config = servers.folder / "gates.toml"
    text = CONFIGURATION.format(
        database=database, kafka=servers.kafka.bootstrap, topic=topic, limit=LIMIT, policy=QUOTA
    ).replace('http = "off"', f'http = "127.0.0.1:{port}"')
    config.write_text(text)
    print(f"limit reached to the last of {PROCESSES * GATES} gates' first denial, s, {locks} locks")
    with running(config) as [analyzer]:
        wait_until_up(port)
        http = f"http://127.0.0.1:{port}"
        for number, (name, url, waits) in enumerate(
            (
                ("SQL", database, "waits"),
                ("HTTP, long poll", http, "waits"),
                ("HTTP, no waiting", http, "not"),
            )
        ):
            with watching(url, waits) as watchers:
                _lock(servers, topic, watchers, f"warm-{number}", 3, every_s)
                reached_s, denied_s = _lock(servers, topic, watchers, f"caller-{number}", locks, every_s)
            judged_s = _judged(database, f"api_key:caller-{number}-")
            _tell(name, [denied_s[caller] - reached_s[caller] for caller in reached_s])
            _tell("  to the judgement", [judged_s[caller] - reached_s[caller] for caller in reached_s])
            _tell("  and from there", [denied_s[caller] - judged_s[caller] for caller in reached_s])
        print(f"  the analyzer, all the time: {analyzer.rss_mb():.0f} MB")


def _tell(name: str, waits_s: list[float]) -> None:
    print(f"  {name:18} {percentiles(waits_s, 50, 90, 99)}")


def _judged(database: str, prefix: str) -> dict[str, float]:
    """Returns the time at which each of these callers was judged, before the commit."""
    engine = open_engine(database)
    try:
        with engine.connect() as db:
            statement = sa.select(locks_table.c.key, locks_table.c.began_ms)
            rows = db.execute(statement.where(locks_table.c.key.startswith(prefix, autoescape=True)))
            return {key: began_ms / 1000 for key, began_ms in rows}
    finally:
        engine.dispose()


def wait_until_up(port: int) -> None:
    until_s = time.monotonic() + 40
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            if time.monotonic() > until_s:
                raise
            time.sleep(0.2)


def _lock(
    servers: Servers, topic: str, watchers: Watchers, prefix: str, locks: int, every_s: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Returns when each caller reached its limit, and when the last gate first denied it."""
    reached_s: dict[str, float] = {}
    with producing(servers) as producer:
        for n in range(locks):
            name = f"{prefix}-{n}-{time.time_ns()}"
            watchers.watch(f"api_key:{name}")
            for _ in range(LIMIT):
                producer.produce(topic, json.dumps({"ts": int(time.time() * 1000), "key": name}))
            producer.poll(0)
            reached_s[f"api_key:{name}"] = time.time()
            time.sleep(every_s)
    until_s = time.monotonic() + 20
    while any(len(watchers.denied_s[name]) < PROCESSES * GATES for name in reached_s):
        assert time.monotonic() < until_s, "a gate has not denied"
        time.sleep(0.05)
    return reached_s, {name: max(watchers.denied_s[name]) for name in reached_s}
