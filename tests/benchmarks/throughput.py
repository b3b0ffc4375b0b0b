"""Records per CPU-second through the whole of `gatelock run` into PostgreSQL, beside the plain loops."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import msgspec
import psutil
import sqlalchemy as sa
from confluent_kafka import Producer

from analyzer.store.database.engine import open_engine
from analyzer.store.database.schema import buckets, offsets
from tests.benchmarks.servers import Servers
from tests.support.servers.postgres import dsn_of

PARTITIONS = 4
CALLERS = 5_000
RIVALS = Path(__file__).parent / "rivals"
CONFIGURATION = """
[database]
url = "{database}"
[kafka]
bootstrap_servers = "{kafka}"
group_id = "{group}"
[analyzer]
http = "off"
[[sources]]
topic = "{topic}"
[sources.fields]
time = {{ path = "ts", unit = "ms" }}
api_key = "key"
bytes = "bytes"
[[meters]]
name = "volume"
sum = "bytes"
[[policies]]
name = "daily"
limit = 1_000_000_000
window = {{ per = "day" }}
"""


def fill(servers: Servers, records: int) -> str:
    """A topic of `records` of about 180 bytes, 5,000 callers (Zipf), ten minutes of event time; zstd."""
    topic = servers.kafka.create_topic(partitions=PARTITIONS)
    producer = Producer({
        "bootstrap.servers": servers.kafka.bootstrap, "compression.type": "zstd", "linger.ms": 50,
        "batch.num.messages": 1000, "queue.buffering.max.messages": 500_000,
    })  # fmt: skip
    chance = random.Random(1)
    weights = [1 / (n + 1) for n in range(CALLERS)]
    callers = chance.choices(range(CALLERS), weights, k=records)
    now_ms = int(time.time() * 1000) - 600_000
    encode = msgspec.json.Encoder().encode
    for n, caller in enumerate(callers):
        record = {
            "ts": now_ms + n * 600_000 // records,
            "id": f"{chance.getrandbits(96):024x}",
            "key": f"acct-{caller:07}",
            "app": f"svc-{caller % 20:02}",
            "method": "GET",
            "path": f"/v1/items/{n % 100_000}",
            "status": 200,
            "bytes": chance.randrange(20_000),
            "ms": chance.randrange(900),
        }
        while True:
            try:
                producer.produce(topic, encode(record), partition=caller % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()
    return topic


def gatelock_cpu_s(servers: Servers, topic: str, records: int) -> float:
    """CPU-seconds of our process from its first flush to its last, scaled to all records."""
    database = servers.postgres.new_database()
    config = servers.folder / "bench.toml"
    config.write_text(
        CONFIGURATION.format(
            database=database, kafka=servers.kafka.bootstrap, topic=topic, group=f"bench-{time.time_ns()}"
        )
    )
    command = [sys.executable, "-m", "analyzer.cli", "--config", str(config), "run"]
    engine = open_engine(database)
    with (servers.folder / "bench.log").open("wb") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log)
        process = psutil.Process(child.pid)
        try:
            while (first := _counted(engine)) == 0:
                assert child.poll() is None, (servers.folder / "bench.log").read_text()
                time.sleep(0.01)
            began_s = sum(process.cpu_times()[:2])
            while (last := _counted(engine)) < records:
                time.sleep(0.02)
            took_s = sum(process.cpu_times()[:2]) - began_s
        finally:
            child.terminate()
            child.wait(15)
    with engine.connect() as db:
        total = db.execute(sa.select(sa.func.sum(buckets.c.value_0))).scalar_one()
    engine.dispose()
    assert total == records
    assert last > first, "all was counted in the first flush: measure with more records"
    return took_s * records / (last - first)


def _counted(engine: sa.Engine) -> int:
    try:
        with engine.connect() as db:
            return int(
                db.execute(sa.select(sa.func.coalesce(sa.func.sum(offsets.c.counted), 0))).scalar_one()
            )
    except sa.exc.ProgrammingError:  # the tables are not there yet
        return 0


def rival(servers: Servers, name: str, topic: str, records: int) -> float:
    arguments = [servers.kafka.bootstrap, topic, str(PARTITIONS), str(records)]
    if name != "kafka_python_loop":
        url = servers.postgres.new_database()
        arguments.append(dsn_of(url) if name == "confluent_loop" else url)
    command = [sys.executable, str(RIVALS / f"{name}.py"), *arguments]
    cpu_s, counted = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert int(counted) == records
    return float(cpu_s)


def run(servers: Servers, records: int = 2_000_000, rounds: int = 3) -> None:
    topic = fill(servers, records)
    names = ("kafka_python_loop", "kafka_python_sqlalchemy", "confluent_loop")
    took: dict[str, list[float]] = {name: [] for name in ("gatelock run", *names)}
    for _ in range(rounds):  # in turn, so that a busy moment hits them alike
        took["gatelock run"].append(gatelock_cpu_s(servers, topic, records))
        for name in names:
            took[name].append(rival(servers, name, topic, records))
    rates = {name: records / median(seconds) for name, seconds in took.items()}
    print(f"records per CPU-second, {records:,} records, median of {rounds}")
    for name, rate in rates.items():
        print(f"  {name:24} {rate:10,.0f}   gatelock / this: {rates['gatelock run'] / rate:.2f}")
