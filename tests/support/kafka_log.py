"""Writing to Kafka for tests, and reading it back through a source of ours."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from confluent_kafka import Producer

from analyzer.kafka import KafkaRecords
from tests.support.places import MemoryPlaces, Reader
from tests.support.servers.kafka import Kafka


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
    kafka: Kafka, places: MemoryPlaces, topics: str | Collection[str], **given: Any
) -> KafkaRecords:
    """A source of `topics`: of all partitions, unless a group is given."""
    topics = [topics] if isinstance(topics, str) else topics
    options = {**kafka.client, "bootstrap_servers": kafka.bootstrap, "metadata_max_age_ms": 500}
    options |= given.pop("options", {})
    given.setdefault("assign", "group" if "group_id" in given else "all")
    return KafkaRecords(dict.fromkeys(topics, "log"), places, options=options, **given)


def stored(readers: Collection[Reader]) -> list[bytes | None]:
    """Every value that these readers stored, of all partitions; each offset once."""
    kept = next(iter(readers)).kept
    assert all(reader.kept is kept for reader in readers)
    for part, records in kept.items():
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets)), f"{part}: {offsets}"
    return sorted(
        (record.value for records in kept.values() for record in records), key=lambda value: value or b""
    )


def run_all(readers: Collection[Reader], wanted: Sequence[bytes], turns: int = 1200) -> None:
    """Let them read in turn until everything wanted is stored; then nothing else must be."""
    for _ in range(turns):
        if len(stored(readers)) >= len(wanted):
            break
        for reader in readers:
            reader.turn()
    assert stored(readers) == sorted(wanted)
