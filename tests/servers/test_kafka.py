"""The Kafka brokers for tests: one record through each, and a broker that is killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.support.servers.kafka import Kafka, MockKafka, NativeKafka


def write(kafka: Kafka, topic: str, *values: bytes) -> None:
    with closing(KafkaProducer(bootstrap_servers=kafka.bootstrap, **kafka.client)) as producer:
        sent = [producer.send(topic, value, partition=0) for value in values]
        for future in sent:
            future.get(timeout=20)


def read(kafka: Kafka, topic: str, count: int) -> list[bytes]:
    """Returns the first `count` values of partition 0; fewer when they do not come within 20 seconds."""
    at = TopicPartition(topic, 0)
    options = {"consumer_timeout_ms": 20_000, "enable_auto_commit": False, **kafka.client}
    with closing(KafkaConsumer(bootstrap_servers=kafka.bootstrap, **options)) as consumer:
        consumer.assign([at])
        consumer.seek(at, 0)
        return [message.value for _, message in zip(range(count), consumer, strict=False)]


@pytest.fixture
def mock() -> Iterator[MockKafka]:
    with closing(MockKafka()) as mock:
        yield mock


def test_a_record_goes_through_the_broker_that_was_found(kafka: Kafka) -> None:
    topic = kafka.create_topic()
    write(kafka, topic, b"one", b"two")
    assert read(kafka, topic, 2) == [b"one", b"two"]


def test_a_record_goes_through_the_mock(mock: MockKafka) -> None:
    topic = mock.create_topic()
    write(mock, topic, b"one", b"two")
    assert read(mock, topic, 2) == [b"one", b"two"]


def test_a_killed_broker_keeps_what_it_acknowledged(own_kafka: NativeKafka) -> None:
    topic = own_kafka.create_topic(partitions=1)
    write(own_kafka, topic, b"before")
    own_kafka.kill()
    own_kafka.start()
    write(own_kafka, topic, b"after")
    assert read(own_kafka, topic, 2) == [b"before", b"after"]
