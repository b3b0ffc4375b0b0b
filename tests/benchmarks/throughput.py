"""Records per CPU-second of `gatelock run` into PostgreSQL, beside plain loops, with PostgreSQL's CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from statistics import median

from tests.benchmarks.ingest import Cost, Shape, fill, postgres_cpu_s, run_gatelock
from tests.benchmarks.servers import Servers
from tests.support.servers.postgres import dsn_of

RIVALS = Path(__file__).parent / "rivals"
SHAPE = Shape()


def rival(servers: Servers, name: str, topic: str, records: int) -> Cost:
    """Returns the cost of a plain loop that counts the same two meters."""
    arguments = [servers.kafka.bootstrap, topic, str(SHAPE.partitions), str(records)]
    if name != "kafka_python_loop":
        url = servers.postgres.new_database()
        arguments.append(dsn_of(url) if name == "confluent_loop" else url)
    before_s = postgres_cpu_s(servers)
    command = [sys.executable, str(RIVALS / f"{name}.py"), *arguments]
    cpu_s, counted = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert int(counted) == records
    postgres_s = 0.0 if name == "kafka_python_loop" else postgres_cpu_s(servers) - before_s
    return Cost(float(cpu_s), postgres_s, 0.0)


def run(servers: Servers, records: int = 2_000_000, rounds: int = 3) -> None:
    topic = fill(servers, SHAPE, records)
    names = ("kafka_python_loop", "kafka_python_sqlalchemy", "confluent_loop")
    took: dict[str, list[Cost]] = {name: [] for name in ("gatelock run", *names)}
    for _ in range(rounds):  # in turn, so that a busy moment hits them alike
        took["gatelock run"].append(run_gatelock(servers, SHAPE, topic, records))
        for name in names:
            took[name].append(rival(servers, name, topic, records))
    ours_s = {name: median(cost.ours_s for cost in costs) for name, costs in took.items()}
    whole_s = {name: median(cost.ours_s + cost.postgres_s for cost in costs) for name, costs in took.items()}
    print(f"records per CPU-second, {records:,} records, two meters, median of {rounds}")
    print(f"  {'':24} {'process':>10}  gatelock / this   {'with PostgreSQL':>15}  gatelock / this")
    for name in took:
        process, whole = ours_s["gatelock run"] / ours_s[name], whole_s["gatelock run"] / whole_s[name]
        print(
            f"  {name:24} {records / ours_s[name]:10,.0f}  {1 / process:15.2f}   "
            f"{records / whole_s[name]:15,.0f}  {1 / whole:15.2f}"
        )
