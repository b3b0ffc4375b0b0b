"""Cost of a million callers a minute with one request each, with and without the budget of names.

Memory of the whole of `gatelock run`, rows in PostgreSQL, and whether the sum is exact.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import sqlalchemy as sa
from confluent_kafka import Producer

from analyzer.counting.counter.caller_budget import OVERFLOW
from analyzer.kernel.tables.schema import buckets
from tests.benchmarks.analyzers import Watched, running, watched
from tests.benchmarks.producers import producing
from tests.benchmarks.servers import Servers
from tests.support.configured import daily, source

A_MINUTE = 1_000_000
WAIT_S_MAX = 300.0
BUDGETS = {"with the budget (100,000)": 100_000, "without (10,000,000)": 10_000_000}
CONFIGURATION = """
[database]
url = "{database}"
[kafka]
bootstrap_servers = "{kafka}"
group_id = "{group}"
[analyzer]
http = "off"
"""


def run(servers: Servers, minutes: int = 2, a_minute: int = A_MINUTE) -> None:
    print(f"{minutes} minutes of log, each with {a_minute:,} callers who come once; one partition")
    for name, names in BUDGETS.items():
        grown_mb, seconds, rows, overflow = _counted(servers, names, minutes, a_minute)
        grew = ", ".join(f"{mb:+.0f}" for mb in grown_mb)
        print(
            f"  {name:28} memory, MB, minute by minute: {grew}; {rows:,} rows, {overflow:,} requests in the "
            f"overflow; {minutes * a_minute / seconds:,.0f} records/s; the sum is exact"
        )


def _counted(
    servers: Servers, names: int, minutes: int, a_minute: int
) -> tuple[list[float], float, int, int]:
    """By how much memory is larger after each minute than when everything was loaded and nothing counted; how
    long that took; rows of callers, and requests in the overflow."""
    database = servers.postgres.new_database()
    group = f"overflow-{time.time_ns()}"
    topic = servers.kafka.create_topic(partitions=1)
    config = servers.folder / f"{group}.toml"
    config.write_text(
        CONFIGURATION.format(database=database, kafka=servers.kafka.bootstrap, group=group)
        + source(topic, callers_per_hour=names)
        + daily(1_000_000_000)
    )
    grown_mb, took_s = [], 0.0
    start_ms = int(time.time() * 1000) - minutes * 60_000
    producer_of = producing(
        servers, linger_ms=50, compression_type="zstd", queue_buffering_max_messages=500_000
    )
    with producer_of as producer, running(config) as [analyzer], watched(database) as store:
        _write(producer, topic, _minute(start_ms, -1, 1_000))
        store.wait_for(1_000, WAIT_S_MAX)
        began_mb = analyzer.rss_mb()
        for minute in range(minutes):
            _write(producer, topic, _minute(start_ms, minute, a_minute))
            took_s += store.wait_for(1_000 + (minute + 1) * a_minute, WAIT_S_MAX, every_s=0.1)
            grown_mb.append(analyzer.rss_mb() - began_mb)
        rows, overflow = _look(store, 1_000 + minutes * a_minute)
    return grown_mb, took_s, rows, overflow


def _minute(start_ms: int, minute: int, callers: int) -> Iterator[bytes]:
    for number in range(callers):
        at_ms = start_ms + minute * 60_000 + number * 60_000 // callers
        yield b'{"ts":%d,"key":"once-%d-%d"}' % (at_ms, minute, number)


def _write(producer: Producer, topic: str, values: Iterator[bytes]) -> None:
    for value in values:
        while True:
            try:
                producer.produce(topic, value, partition=0)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def _look(store: Watched, total: int) -> tuple[int, int]:
    """Rows, and requests in the overflow. Raises AssertionError when the sum is not `total`."""
    of = buckets.c
    here = sa.select(sa.func.count(), sa.func.sum(of.value_0))
    with store.engine.connect() as db:
        rows, counted = db.execute(here).one()
        overflow = db.execute(here.where(of.key == OVERFLOW)).one()[1] or 0
    assert counted == total, (counted, total)
    return int(rows), int(overflow)
