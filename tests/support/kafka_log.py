"""Writing to Kafka for tests, and reading it back through a source of ours."""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection, Sequence
from typing import Any

from confluent_kafka import Producer
from kafka.protocol.producer import ProduceRequest

from analyzer.kafka import KafkaRecords
from tests.support.kafka_features import RECORDS_ONLY
from tests.support.servers.kafka import Kafka
from tests.support.source_reader import MemoryPositionStore, SourceReader


def produce(
    kafka: Kafka, topic: str, lines: Sequence[bytes], partition: int | None = None, **config: Any
) -> None:
    """To one partition, in order; or by their place in `lines` to four."""
    named = {name.replace("_", "."): value for name, value in config.items()}
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, **named})
    for number, line in enumerate(lines):
        producer.produce(topic, line, partition=number % 4 if partition is None else partition)
    assert producer.flush(30) == 0


def lines(count: int, begin: int = 0) -> list[bytes]:
    return [b"line %06d" % number for number in range(begin, begin + count)]


def open_source(
    kafka: Kafka, store: MemoryPositionStore, topics: str | Collection[str], **given: Any
) -> KafkaRecords:
    """A source of `topics`: of all partitions, unless a group is given. `raw=False` reads single records."""
    topics = [topics] if isinstance(topics, str) else topics
    options = {**kafka.client, "bootstrap_servers": kafka.bootstrap, "metadata_max_age_ms": 500}
    options |= given.pop("options", {})
    given.setdefault("assign", "group" if "group_id" in given else "all")
    if not given.pop("raw", True):
        given["features"] = RECORDS_ONLY
    return KafkaRecords(dict.fromkeys(topics, "log"), store, options=options, **given)


def stored(readers: Collection[SourceReader]) -> list[bytes | None]:
    """Every value that these readers stored, of all partitions; each offset once."""
    kept = next(iter(readers)).kept
    assert all(reader.kept is kept for reader in readers)
    for part, records in kept.items():
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets)), f"{part}: {offsets}"
    return sorted(
        (record.value for records in kept.values() for record in records), key=lambda value: value or b""
    )


def run_all(readers: Collection[SourceReader], wanted: Sequence[bytes], turns: int = 1200) -> None:
    """Let them read in turn until everything wanted is stored; then nothing else must be."""
    for _ in range(turns):
        if len(stored(readers)) >= len(wanted):
            break
        for reader in readers:
            reader.turn()
    assert stored(readers) == sorted(wanted)


def produce_as_is(kafka: Kafka, topic: str, partition: int, raw: bytes) -> None:
    """Write a batch byte for byte, as no producer would. The broker looks into it all the same."""
    data = ProduceRequest.TopicProduceData.PartitionProduceData(index=partition, records=raw)
    asked = ProduceRequest(
        version=9,
        transactional_id=None,
        acks=1,
        timeout_ms=30_000,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
    )
    asked.with_header(correlation_id=1, client_id="tests")
    host, _, port = kafka.bootstrap.partition(",")[0].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(asked.encode(framed=True, header=True))
        with connection.makefile("rb") as answers:
            (length,) = struct.unpack(">i", answers.read(4))
            answer = answers.read(length)
    # Behind the correlation id and tags: one topic by its name, one partition by its number, the error.
    (error,) = struct.unpack_from(">h", answer, 4 + 1 + 1 + 1 + len(topic) + 1 + 4)
    assert error == 0, f"the broker refused the batch: error {error}"
