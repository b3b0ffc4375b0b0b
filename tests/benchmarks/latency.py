"""Seconds from a record's being produced to its being counted, at 5,000 records a second, and the cost."""

from __future__ import annotations

import json
import time

from confluent_kafka import Producer

from tests.benchmarks.analyzers import Analyzer, Watched, running, watched
from tests.benchmarks.ingest import Shape, configuration
from tests.benchmarks.percentiles import percentiles
from tests.benchmarks.producers import producing
from tests.benchmarks.servers import Servers

RATE = 5_000
TICK_S = 0.005
PARTITIONS = Shape().partitions
CALLERS = 1_000


def run(servers: Servers, seconds: float = 30.0) -> None:
    database, topic = servers.postgres.new_database(), servers.kafka.create_topic(partitions=PARTITIONS)
    config = servers.folder / "latency.toml"
    config.write_text(configuration(Shape(), database, servers.kafka.bootstrap, topic))
    with (
        producing(servers, linger_ms=5) as producer,
        running(config) as [analyzer],
        watched(database) as store,
    ):
        warm = _produce(producer, topic, 0, PARTITIONS * 10)
        producer.flush()
        store.wait_for(warm, 30)
        waits_s, cores = _measure(producer, topic, analyzer, store, seconds, warm)
    print(f"produced to counted, s, {RATE:,} records/s for {seconds:g} s, flush every 0.1 s")
    print(f"  {percentiles(waits_s, 50, 90, 99)}")
    print(f"  at {cores:.3f} of a core")


def _produce(producer: Producer, topic: str, first: int, count: int) -> int:
    now_ms = int(time.time() * 1000)
    for n in range(first, first + count):
        record = {"ts": now_ms, "key": f"acct-{n * 7919 % CALLERS:07}", "bytes": n % 20_000, "status": 200}
        producer.produce(topic, json.dumps(record), partition=n % PARTITIONS)
    producer.poll(0)
    return count


def _measure(
    producer: Producer, topic: str, analyzer: Analyzer, store: Watched, seconds: float, warm: int
) -> tuple[list[float], float]:
    """Each record's wait, and the analyzer's share of a core. The n-th record of a partition is counted when
    its count passes n; we look every few milliseconds, so a wait is found long by as much."""
    made_s: list[list[float]] = [[] for _ in range(PARTITIONS)]
    seen = [0] * PARTITIONS
    before = warm // PARTITIONS
    waits_s: list[float] = []
    began_s, began_cpu_s, made = time.monotonic(), analyzer.cpu_s(), 0
    wanted = int(RATE * seconds)
    cores = 0.0
    while len(waits_s) < wanted:
        now_s = time.monotonic()
        assert now_s - began_s < seconds + 30, f"{len(waits_s)} of {wanted} counted"
        due = min(wanted, int((now_s - began_s) * RATE)) - made
        if due > 0:
            due = -(-due // PARTITIONS) * PARTITIONS
            _produce(producer, topic, made, due)
            for times_s in made_s:
                times_s.extend([now_s] * (due // PARTITIONS))
            made += due
        elif not cores and made >= wanted:
            cores = (analyzer.cpu_s() - began_cpu_s) / (now_s - began_s)
        counted, now_s = store.counted(), time.monotonic()
        for number, times_s in enumerate(made_s):
            upto = counted.get(number, before) - before
            waits_s += [now_s - each_s for each_s in times_s[seen[number] : upto]]
            seen[number] = max(seen[number], upto)
        time.sleep(TICK_S)
    return waits_s, cores
