"""Throughput of several analyzers on one PostgreSQL, and its limit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

import psutil
import sqlalchemy as sa

from tests.benchmarks.analyzers import Analyzer, running, watched
from tests.benchmarks.ingest import Shape, configuration, fill
from tests.benchmarks.servers import Servers

TICK_S = 0.01  # in which the kernel counts CPU time
DEADLOCKS = sa.text("select deadlocks, xact_commit from pg_stat_database where datname = current_database()")


def run(servers: Servers, records: int = 1_000_000, counts: Sequence[int] = (1, 2, 4)) -> None:
    topic = fill(servers, Shape(), records)
    print(
        f"analyzers on one PostgreSQL, {records:,} records in 4 partitions,"
        f" {os.cpu_count()} cores for all of it"
    )
    print(
        "  analyzers   records/s   records/CPU-s   CPU analyzers, s   CPU PostgreSQL, s   deadlocks   equal"
    )
    for count in counts:
        print("  " + _line(servers, topic, records, count))


def _line(servers: Servers, topic: str, records: int, count: int) -> str:
    database = servers.postgres.new_database()
    config = servers.folder / f"scaling-{count}.toml"
    config.write_text(configuration(Shape(), database, servers.kafka.bootstrap, topic))
    with watched(database) as store, running(config, count) as analyzers:
        first, began = 0, (time.monotonic(), _cpu(analyzers), _postgres_cpu_s())
        while (stored := store.total()) == 0:
            time.sleep(0.002)
        if stored < records:  # without the start; of a few records the first flush stores all
            first, began = stored, (time.monotonic(), _cpu(analyzers), _postgres_cpu_s())
        began_s, cpu_s, server_s = began
        store.wait_for(records, 300, 0.02)
        took_s = time.monotonic() - began_s
        cpu_s, server_s = _cpu(analyzers) - cpu_s, _postgres_cpu_s() - server_s
        with store.engine.connect() as db:
            deadlocks, _ = db.execute(DEADLOCKS).one()
    audit = [sys.executable, "-m", "analyzer.faces.cli", "--config", str(config), "billing", "audit"]
    equal = subprocess.run(audit, capture_output=True, check=False).returncode == 0
    done, cpu_s = records - first, max(cpu_s, TICK_S)
    return (
        f"{count:9}   {done / took_s:9,.0f}   {done / cpu_s:13,.0f}   {cpu_s:16.1f}   {server_s:17.1f}"
        f"   {deadlocks:9}   {'yes' if equal else 'NO'}"
    )


def _cpu(analyzers: Sequence[Analyzer]) -> float:
    return sum(analyzer.cpu_s() for analyzer in analyzers)


def _postgres_cpu_s() -> float:
    """CPU-seconds of every PostgreSQL process of this machine that lives; those of one that ended are lost,
    which is why connections are kept for the time of a measurement."""
    total = 0.0
    for process in psutil.process_iter(["name", "cpu_times"]):
        if (process.info["name"] or "").startswith("postgres") and process.info["cpu_times"]:
            total += process.info["cpu_times"].user + process.info["cpu_times"].system
    return total
