"""The few figures that are compared from release to release: CPU a record, freshness, limit to refusal.

`make bench ARGS=headline` prints them; docs/sizing.md keeps those of the last change.
"""

from __future__ import annotations

from statistics import median

from tests.benchmarks import latency, refusal
from tests.benchmarks.ingest import Cost, Shape, fill, run_gatelock
from tests.benchmarks.servers import Servers

SHAPES = {"5,000 callers": Shape(), "100,000 callers": Shape(callers=100_000)}


def run(
    servers: Servers, records: int = 600_000, rounds: int = 3, seconds: float = 30.0, locks: int = 200
) -> None:
    topics = {name: fill(servers, shape, records) for name, shape in SHAPES.items()}
    costs: dict[str, list[Cost]] = {name: [] for name in SHAPES}
    for _ in range(rounds):  # in turn, so that a busy moment hits both alike
        for name, shape in SHAPES.items():
            costs[name].append(run_gatelock(servers, shape, topics[name], records))
    print(f"us of CPU a record, {records:,} records, two meters, one quota, median of {rounds}")
    print(f"  {'':16} {'analyzer':>8}  {'postgresql':>10}")
    for name, measured in costs.items():
        ours_us, postgres_us = (
            median(column) * 1e6 / records
            for column in ([cost.ours_s for cost in measured], [cost.postgres_s for cost in measured])
        )
        print(f"  {name:16} {ours_us:8.2f}  {postgres_us:10.2f}")
    latency.run(servers, seconds)
    refusal.run(servers, ("quota by caller",), locks)
