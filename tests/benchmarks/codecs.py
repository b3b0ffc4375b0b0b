"""CPU of `gatelock run` for the same records, uncompressed in Kafka and compressed."""

from __future__ import annotations

from statistics import median

from tests.benchmarks.ingest import Shape, fill, run_gatelock
from tests.benchmarks.servers import Servers

SHAPES = {codec: Shape(codec=codec) for codec in ("zstd", "none", "lz4", "snappy", "gzip")}


def run(servers: Servers, records: int = 1_000_000, rounds: int = 5) -> None:
    topics = {codec: fill(servers, shape, records) for codec, shape in SHAPES.items()}
    took: dict[str, list[float]] = {codec: [] for codec in SHAPES}
    for _ in range(rounds):  # in turn, so that a busy moment hits them alike
        for codec, shape in SHAPES.items():
            took[codec].append(run_gatelock(servers, shape, topics[codec], records).ours_s)
    print(f"records per CPU-second by compression, {records:,} records, median of {rounds}")
    for codec, each_s in took.items():
        ratio = median(zstd_s / s for zstd_s, s in zip(took["zstd"], each_s, strict=True))
        print(f"  {codec:8} {records / median(each_s):10,.0f}   of zstd: {ratio:.2f}")
