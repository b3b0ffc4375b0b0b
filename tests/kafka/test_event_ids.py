"""A producer that sends its records twice, on a real broker, and analyzers that are killed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.tables.schema import offsets
from analyzer.maintenance.audit import audit
from analyzer.plan.meters import DUPLICATES, REQUESTS
from tests.support.depth import IS_DEEP
from tests.support.kafka_log import produce
from tests.support.running import Analyzer
from tests.support.servers.kafka import GivenKafka, NativeKafka
from tests.support.stored_counts import stored_counts
from tests.support.waiting import wait_until

RealKafka = NativeKafka | GivenKafka
WAIT_S_MAX = 60.0
CONFIGURATION = """
[kafka]
bootstrap_servers = "{kafka}"
group_id = "{topic}"
[[sources]]
topic = "{topic}"
id = "id"
[sources.fields]
time = {{ path = "ts", unit = "ms" }}
api_key = "key"
id = "id"
"""
PARTITIONS, BATCH, BATCHES = 2, 300, 4 if IS_DEEP else 3


class Producer:
    """Writes each batch, and then once more, as a shipper that has missed the acknowledgement."""

    def __init__(self, kafka: RealKafka, topic: str) -> None:
        self._kafka, self._topic, self.sent = kafka, topic, 0

    def send(self, partition: int) -> None:
        now_ms = int(time.time() * 1000)
        values = [
            json.dumps({"ts": now_ms, "key": f"c{n % 7}", "id": f"{partition}-{self.sent + n}"}).encode()
            for n in range(BATCH)
        ]
        for _ in range(2):
            produce(self._kafka, self._topic, values, partition=partition)
        self.sent += BATCH


@pytest.fixture
def engine(migrated_url: str) -> Iterator[sa.Engine]:
    found = open_engine(migrated_url)
    yield found
    found.dispose()


def seen(engine: sa.Engine) -> int:
    with engine.connect() as db:
        return int(db.execute(sa.select(sa.func.coalesce(sa.func.sum(offsets.c.seen), 0))).scalar_one())


def wait_for(engine: sa.Engine, analyzer: Analyzer, records: int) -> None:
    wait_until(lambda: seen(engine) >= records, WAIT_S_MAX, lambda: (seen(engine), analyzer.log[-5:]))


@pytest.mark.parametrize("database", ["postgresql"])
def test_records_that_are_sent_twice_count_once_while_analyzers_are_killed(
    real_kafka: RealKafka, migrated_url: str, engine: sa.Engine, tmp_path: Path
) -> None:
    topic = real_kafka.create_topic(partitions=PARTITIONS)
    configuration = CONFIGURATION.format(kafka=real_kafka.bootstrap, topic=topic)
    producer = Producer(real_kafka, topic)
    for number in range(BATCHES):
        analyzer = Analyzer(tmp_path, f"analyzer{number}", configuration, migrated_url)
        before = seen(engine)
        producer.send(number % PARTITIONS)
        if number < BATCHES - 1:
            wait_for(engine, analyzer, before + 1)
            analyzer.kill()
    wait_for(engine, analyzer, 2 * producer.sent)
    analyzer.end()
    found = audit(engine)
    assert found.equal
    assert sum(ledger.counted for ledger in found.partitions) == producer.sent
    assert sum(ledger.duplicate for ledger in found.partitions) == producer.sent
    with engine.connect() as db:
        rows = list(stored_counts(db))
    for meter in (REQUESTS.name, DUPLICATES.name):
        assert sum(row.value for row in rows if row.meter == meter) == producer.sent
