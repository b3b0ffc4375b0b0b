"""Writes to Kafka for tests, and reads back through a source of the analyzer."""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection, Sequence
from typing import Any

from confluent_kafka import Producer
from kafka.protocol.producer import ProduceRequest

from analyzer.sources.kafka import KafkaRecords
from tests.support.servers.kafka import Kafka
from tests.support.source_reader import MemoryPositionStore, SourceReader


def produce(
    kafka: Kafka, topic: str, lines: Sequence[bytes], partition: int | None = None, **config: Any
) -> None:
    """Writes `lines` to one partition, in order; without `partition` to four in turn."""
    options = {name.replace("_", "."): value for name, value in config.items()}
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, **options})
    for number, line in enumerate(lines):
        producer.produce(topic, line, partition=number % 4 if partition is None else partition)
    assert producer.flush(30) == 0


def lines(count: int, begin: int = 0) -> list[bytes]:
    return [b"line %06d" % number for number in range(begin, begin + count)]


def open_source(
    kafka: Kafka, store: MemoryPositionStore, topics: str | Collection[str], **given: Any
) -> KafkaRecords:
    """Opens a source of all partitions of `topics`, or as a member of the group `group_id`."""
    topics = [topics] if isinstance(topics, str) else topics
    options = {**kafka.client, "bootstrap_servers": kafka.bootstrap, "metadata_max_age_ms": 500}
    options |= given.pop("options", {})
    given.setdefault("assign", "group" if "group_id" in given else "all")
    return KafkaRecords(dict.fromkeys(topics, "log"), store, options=options, **given)


def stored(readers: Collection[SourceReader]) -> list[bytes | None]:
    """Returns all values that these readers stored; checks that each offset was stored once, in order."""
    kept = next(iter(readers)).kept
    assert all(reader.kept is kept for reader in readers)
    for part, records in kept.items():
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets)), f"{part}: {offsets}"
    return sorted(
        (record.value for records in kept.values() for record in records), key=lambda value: value or b""
    )


def read_and_check(readers: Collection[SourceReader], wanted: Sequence[bytes], turns: int = 1200) -> None:
    """Has the readers take turns until all of `wanted` is stored, and checks that nothing else is."""
    for _ in range(turns):
        if len(stored(readers)) >= len(wanted):
            break
        for reader in readers:
            reader.turn()
    assert stored(readers) == sorted(wanted)


def produce_as_is(kafka: Kafka, topic: str, partition: int, raw: bytes) -> None:
    """Writes a batch without a producer, byte by byte. The broker still checks it."""
    data = ProduceRequest.TopicProduceData.PartitionProduceData(index=partition, records=raw)
    request = ProduceRequest(
        version=9,
        transactional_id=None,
        acks=1,
        timeout_ms=30_000,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
    )
    request.with_header(correlation_id=1, client_id="tests")
    host, _, port = kafka.bootstrap.partition(",")[0].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(request.encode(framed=True, header=True))
        with connection.makefile("rb") as responses:
            (length,) = struct.unpack(">i", responses.read(4))
            response = responses.read(length)
    # After the correlation id and tags: one topic by its name, one partition by its number, the error.
    (error,) = struct.unpack_from(">h", response, 4 + 1 + 1 + 1 + len(topic) + 1 + 4)
    assert error == 0, f"the broker refused the batch: error {error}"
