"""CPU of `gatelock run` and of PostgreSQL for awkward traffic, beside the easy one."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from tests.benchmarks.ingest import Cost, Shape, fill, run_gatelock
from tests.benchmarks.servers import Servers

SHAPES = {
    "5,000 callers": Shape(),
    "100,000 callers": Shape(callers=100_000),
    "100,000 callers, alike": Shape(callers=100_000, is_even=True),
    "an hour of disorder": Shape(disorder_s=3_600),
    "no policy": Shape(policies=0),
    "ten policies, one sum": Shape(policies=10),
    "one meter": Shape(meters=1),
    "five meters": Shape(meters=5),
    "gzip": Shape(codec="gzip"),
    "1 KB": Shape(padding=840),
    "64 partitions": Shape(partitions=64),
}


def run(
    servers: Servers, records: int = 600_000, rounds: int = 3, shapes: Mapping[str, Shape] = SHAPES
) -> None:
    topics = {name: fill(servers, shape, records) for name, shape in shapes.items()}
    took: dict[str, list[Cost]] = {name: [] for name in shapes}
    for _ in range(rounds):
        for name, shape in shapes.items():
            took[name].append(run_gatelock(servers, shape, topics[name], records))
    print(f"us of CPU a record, {records:,} records, median of {rounds}; speed, relative to the first line")
    print(
        f"  {'':24} {'ours':>6}  share  {'postgresql':>10}  share  {'wall':>6}  {'WAL, B':>6}"
        f"  {'rows':>9}  {'B a row':>7}"
    )
    first, us = next(iter(shapes)), 1e6 / records
    middle = {
        name: Cost(*(median(column) for column in zip(*costs, strict=True))) for name, costs in took.items()
    }
    for name, cost in middle.items():
        shares = middle[first].ours_s / cost.ours_s, middle[first].postgres_s / (cost.postgres_s or 1)
        print(
            f"  {name:24} {cost.ours_s * us:6.2f}  {shares[0]:5.2f}  {cost.postgres_s * us:10.2f}"
            f"  {shares[1]:5.2f}  {cost.wall_s * us:6.2f}  {cost.wal_bytes / records:6.0f}"
            f"  {cost.rows:9,.0f}  {cost.table_bytes / cost.rows:7.0f}"
        )
