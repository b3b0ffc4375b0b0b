"""`gatelock billing audit --kafka`: the topics are read again, and their records counted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from confluent_kafka import Producer
from kafka import KafkaAdminClient, TopicPartition

from analyzer.kernel.model import Partition
from analyzer.kernel.tables.schema import offsets
from analyzer.sources.kafka.probes.record_counts import count_records
from tests.support.installation import Installation, RealKafka, write
from tests.support.servers.kafka import new_name
from tests.support.waiting import wait_until


@pytest.fixture
def here(real_kafka: RealKafka, tmp_path: Path) -> Iterator[Installation]:
    """Two partitions, of which one has an aborted transaction and a committed one between its records."""
    topic = real_kafka.create_topic(new_name(), partitions=2)
    keys = write(real_kafka, topic, 0, 0) | write(real_kafka, topic, 1, 0, 30)
    producer = Producer({"bootstrap.servers": real_kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    for is_committed in (False, True):
        producer.begin_transaction()
        for number in range(5):
            key = f"{topic}-{is_committed}-{number}"
            producer.produce(topic, json.dumps({"ts": 1, "key": key}) if number else "{", partition=0)
        producer.flush()
        producer.commit_transaction() if is_committed else producer.abort_transaction()
    keys |= write(real_kafka, topic, 0, 10)
    installation = Installation(tmp_path, real_kafka.bootstrap, [topic])
    installation.run_until(lambda: installation.counted() >= keys)
    installation.stop()
    yield installation
    installation.close()


def lines(here: Installation, code: int) -> list[str]:
    result = here.gatelock("billing", "audit", "--kafka")
    assert result.exit_code == code, result.output
    return [line for line in result.output.splitlines() if "records in Kafka" in line]


def test_every_record_of_the_log_was_seen_once(here: Installation) -> None:
    first, second = lines(here, 0)
    assert first.endswith("25 records in Kafka from offset 0 to 32, 25 seen: equal")
    assert second.endswith("30 records in Kafka from offset 0 to 30, 30 seen: equal")
    [rows] = [
        json.loads(line)
        for line in here.gatelock("billing", "audit", "--kafka", "--json").output.splitlines()
    ]
    assert [(row["records"], row["seen"], row["equal"]) for row in rows["kafka"]] == [
        (25, 25, True),
        (30, 30, True),
    ]


def test_a_record_that_was_passed_over_among_the_holes_is_found(here: Installation) -> None:
    """Neither the ledger nor the buckets show it."""
    with here.engine.begin() as db:
        db.execute(sa.update(offsets).where(offsets.c.partition == 0).values(
            seen=offsets.c.seen - 1, dead=offsets.c.dead - 1))  # fmt: skip
    assert here.gatelock("billing", "audit").exit_code == 0
    assert lines(here, 1)[0].endswith("25 records in Kafka from offset 0 to 32, 24 seen: NOT EQUAL")


def test_records_that_retention_has_deleted_are_not_compared(
    here: Installation, real_kafka: RealKafka
) -> None:
    admin = KafkaAdminClient(bootstrap_servers=real_kafka.bootstrap)
    try:
        admin.delete_records({TopicPartition(here.topic, 1): 12})
    finally:
        admin.close()
    wait_until(lambda: "18 records in Kafka from offset 12 to 30, 30 seen" in lines(here, 0)[1])
    assert "not comparable" in lines(here, 0)[1]


def test_records_that_an_operator_skipped_are_not_counted(here: Installation, real_kafka: RealKafka) -> None:
    options = {"bootstrap_servers": real_kafka.bootstrap}
    plain, transactions = (Partition("", "", number, "", here.topic) for number in (1, 0))
    assert count_records(plain, 0, 30, [(20, 25), (5, 10)], options) == (0, 20)
    assert count_records(plain, 0, 30, [(0, 5), (25, 40)], options) == (0, 20)
    assert count_records(plain, 7, 12, [], options) == (7, 5)
    assert count_records(transactions, 0, 32, [(0, 12)], options) == (0, 15), "without the aborted ones"


def test_a_log_that_cannot_be_read_exits_with_3(here: Installation) -> None:
    text = here.file.read_text()
    address = text.partition('bootstrap_servers = "')[2].partition('"')[0]
    here.file.write_text(text.replace(address, "127.0.0.1:1"))
    result = here.gatelock("billing", "audit", "--kafka")
    assert result.exit_code == 3
    assert "cannot read the log: connection refused; check that the broker runs" in result.stderr
