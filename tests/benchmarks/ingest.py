"""A topic of a given shape, counted by `gatelock run` into PostgreSQL, and the CPU time of both."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil
import sqlalchemy as sa

from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.tables.schema import buckets, offsets
from analyzer.plan.catalog import load
from tests.benchmarks.producers import producing
from tests.benchmarks.servers import Servers

SIZE = "select pg_total_relation_size('buckets') + pg_total_relation_size('totals')"
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
took = "ms"
"""


@dataclass(frozen=True)
class Shape:
    """Traffic, and what is counted of it."""

    callers: int = 5_000
    partitions: int = 4
    codec: str = "zstd"
    disorder_s: int = 0  # records are up to so much older than the newest
    padding: int = 0  # bytes more than the usual 180
    meters: int = 2
    policies: int = 1
    is_even: bool = False  # all callers alike, instead of Zipf


class Cost(NamedTuple):
    """CPU seconds, and what the records left in the database."""

    ours_s: float
    postgres_s: float
    wall_s: float
    wal_bytes: float = 0
    rows: int = 0  # of buckets
    table_bytes: int = 0  # of buckets and totals, indexes included


def configuration(shape: Shape, database: str, kafka: str, topic: str) -> str:
    """Returns the configuration by which a topic of this shape is counted."""
    group = f"bench-{time.time_ns()}"
    text = CONFIGURATION.format(database=database, kafka=kafka, topic=topic, group=group)
    for number in range(1, shape.meters):
        field = "bytes" if number % 2 else "took"
        text += f'[[meters]]\nname = "meter{number}"\nsum = "{field}"\n'
    for number in range(shape.policies):
        text += f'[[policies]]\nname = "p{number}"\nlimit = {10**9 + number}\nwindow = {{ per = "day" }}\n'
    return text


@lru_cache(maxsize=1)
def _weights(shape: Shape) -> list[float]:
    return list(accumulate(1.0 if shape.is_even else 1 / (n + 1) for n in range(shape.callers)))


def fill(servers: Servers, shape: Shape, records: int) -> str:
    """Returns a new topic with ten minutes of event time."""
    topic = servers.kafka.create_topic(partitions=shape.partitions)
    chance = random.Random(1)
    callers = chance.choices(range(shape.callers), cum_weights=_weights(shape), k=records)
    now_ms = int(time.time() * 1000) - 600_000
    encode = msgspec.json.Encoder().encode
    padding = "x" * shape.padding
    with producing(
        servers,
        linger_ms=50,
        compression_type=shape.codec,
        batch_num_messages=1000,
        queue_buffering_max_messages=500_000,
    ) as producer:
        for n, caller in enumerate(callers):
            late_ms = chance.randrange(shape.disorder_s * 1000) if shape.disorder_s else 0
            record = {
                "ts": now_ms + n * 600_000 // records - late_ms,
                "id": f"{chance.getrandbits(96):024x}",
                "key": f"acct-{caller:07}",
                "app": f"svc-{caller % 20:02}",
                "method": "GET",
                "path": f"/v1/items/{n % 100_000}{padding}",
                "status": 200,
                "bytes": chance.randrange(20_000),
                "ms": chance.randrange(900),
            }
            while True:
                try:
                    producer.produce(topic, encode(record), partition=caller % shape.partitions)
                    break
                except BufferError:
                    producer.poll(0.1)
    return topic


def postgres_cpu_s(servers: Servers) -> float:
    """CPU seconds of a PostgreSQL that was started here, all of its processes; 0 for another one."""
    folder = getattr(servers.postgres, "folder", None)
    if folder is None:
        return 0.0
    postmaster = psutil.Process(int((Path(folder) / "data" / "postmaster.pid").read_text().split()[0]))
    total = sum(postmaster.cpu_times()[:4])  # with those of processes that have ended
    for child in postmaster.children(recursive=True):
        try:
            total += sum(child.cpu_times()[:2])
        except psutil.NoSuchProcess:
            continue
    return total


def run_gatelock(servers: Servers, shape: Shape, topic: str, records: int) -> Cost:
    """Returns the cost from the moment at which positions are known to the last flush."""
    database = servers.postgres.new_database()
    config = servers.folder / "bench.toml"
    config.write_text(configuration(shape, database, servers.kafka.bootstrap, topic))
    command = [sys.executable, "-m", "analyzer.faces.cli", "--config", str(config), "run"]
    engine = open_engine(database)
    with (servers.folder / "bench.log").open("wb") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log)
        process = psutil.Process(child.pid)
        try:
            while not _has_begun(engine):
                assert child.poll() is None, (servers.folder / "bench.log").read_text()
                time.sleep(0.01)
            began = _meters(process, servers, engine)
            while _counted(engine) < records:
                assert child.poll() is None, (servers.folder / "bench.log").read_text()
                time.sleep(0.02)
            ended = _meters(process, servers, engine)
        finally:
            child.terminate()
            child.wait(15)
    with engine.connect() as db:
        place = load(db).meters["requests"].place
        total = db.execute(sa.select(sa.func.sum(buckets.c[f"value_{place}"]))).scalar_one()
        assert total == records, (total, records)
        rows = db.execute(sa.select(sa.func.count()).select_from(buckets)).scalar_one()
        table_bytes = db.execute(sa.text(SIZE)).scalar_one()
    engine.dispose()
    costs = (after - before for before, after in zip(began, ended, strict=True))
    return Cost(*costs, rows, table_bytes)


def _meters(process: psutil.Process, servers: Servers, engine: sa.Engine) -> tuple[float, ...]:
    """CPU of the analyzer and of PostgreSQL, time, and bytes of the write-ahead log so far."""
    with engine.connect() as db:
        wal = db.execute(sa.text("select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')")).scalar_one()
    return sum(process.cpu_times()[:2]), postgres_cpu_s(servers), time.monotonic(), float(wal)


def _has_begun(engine: sa.Engine) -> bool:
    """Whether a partition's position is stored: records are fetched from here on."""
    try:
        with engine.connect() as db:
            return db.execute(sa.select(offsets.c.next).limit(1)).first() is not None
    except sa.exc.ProgrammingError:  # the tables are not there yet
        return False


def _counted(engine: sa.Engine) -> int:
    with engine.connect() as db:
        return int(db.execute(sa.select(sa.func.coalesce(sa.func.sum(offsets.c.counted), 0))).scalar_one())
