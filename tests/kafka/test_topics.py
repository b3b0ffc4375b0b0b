"""Topics that appear, grow, lose records or are created again while they are read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka import KafkaAdminClient, TopicPartition

from analyzer.kernel.model import Position
from analyzer.sources.kafka.metadata import request_metadata
from analyzer.sources.kafka.options import consumer_options
from tests.support.kafka_log import lines, open_source, produce, read_and_check, stored
from tests.support.servers.kafka import GivenKafka, NativeKafka, new_name
from tests.support.source_reader import MemoryPositionStore, SourceReader
from tests.support.waiting import wait_until

RealKafka = NativeKafka | GivenKafka
Open = Callable[..., SourceReader]


@pytest.fixture(params=["group", "all"])
def assign(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opened(real_kafka: RealKafka) -> Iterator[Open]:
    readers: list[SourceReader] = []

    def opened(
        topic: str, positions: MemoryPositionStore | None = None, assign: str = "all", **given: Any
    ) -> SourceReader:
        positions = positions or MemoryPositionStore()
        if assign == "group":
            given |= {"group_id": new_name(), "session_timeout_s": 1.5}
        readers.append(SourceReader(open_source(real_kafka, positions, topic, **given), positions, {}))
        return readers[-1]

    yield opened
    for reader in readers:
        reader.source.close()


@pytest.fixture
def admin(real_kafka: RealKafka) -> Iterator[KafkaAdminClient]:
    admin = KafkaAdminClient(bootstrap_servers=real_kafka.bootstrap)
    yield admin
    admin.close()


def turn_until(reader: SourceReader, enough: Callable[[], object], seconds: float = 15) -> None:
    end_s = time.monotonic() + seconds
    while not enough():
        assert time.monotonic() < end_s, reader.source.problems()
        reader.turn()


def recreate(admin: KafkaAdminClient, topic: str, partitions: int = 4) -> None:
    admin.delete_topics([topic])
    wait_until(lambda: topic not in admin.list_topics())
    admin.create_topics(
        {topic: {"num_partitions": partitions, "replication_factor": 1}}, wait_for_metadata=True
    )


def test_a_topic_that_is_created_later_is_read_from_its_beginning(
    real_kafka: RealKafka, assign: str, opened: Open
) -> None:
    topic = new_name()
    reader = opened(topic, assign=assign, start="latest", uptime_s=lambda: time.monotonic() * 5)
    turn_until(reader, lambda: topic in str(reader.source.problems()))
    real_kafka.create_topic(topic)
    turn_until(reader, lambda: len(reader.source.positions()) == 4)
    produce(real_kafka, topic, lines(40))
    read_and_check([reader], lines(40))
    assert reader.source.problems() == {}


def test_new_partitions_are_read_from_their_beginning(
    real_kafka: RealKafka, assign: str, opened: Open, admin: KafkaAdminClient
) -> None:
    """Also with start="latest": records are written to them before the analyzer notices them."""
    topic = real_kafka.create_topic(partitions=2)
    produce(real_kafka, topic, [b"old"], partition=0)
    reader = opened(topic, assign=assign, start="latest")
    turn_until(reader, lambda: len(reader.source.positions()) == 2)
    admin.create_partitions({topic: 4})
    produce(real_kafka, topic, lines(40))
    read_and_check([reader], lines(40))
    assert len(reader.source.positions()) == 4


def test_latest_begins_every_partition_at_its_end_at_once(real_kafka: RealKafka, opened: Open) -> None:
    topic = real_kafka.create_topic()
    produce(real_kafka, topic, lines(40))
    reader = opened(topic, start="latest")
    turn_until(reader, lambda: len(reader.source.positions()) == 4)
    assert {position.next for position in reader.position_store.stored.values()} == {10}
    produce(real_kafka, topic, lines(40, begin=40))
    read_and_check([reader], lines(40, begin=40))


def test_a_topic_that_is_recreated_while_it_is_read_is_not_counted(
    real_kafka: RealKafka, assign: str, opened: Open, admin: KafkaAdminClient
) -> None:
    """kafka-python itself continues silently at the old offset."""
    topic = real_kafka.create_topic()
    produce(real_kafka, topic, lines(40))
    reader = opened(topic, assign=assign)
    read_and_check([reader], lines(40))
    recreate(admin, topic)
    turn_until(reader, lambda: "log" in reader.source.problems())
    produce(real_kafka, topic, lines(80, begin=100))
    for _ in range(40):
        reader.turn()
    assert stored([reader]) == lines(40)
    assert f"topic {topic} was deleted and created again" in reader.source.problems()["log"]
    assert {position.next for position in reader.position_store.stored.values()} == {10}

    reader.start_over()
    for _ in range(20):
        reader.turn()
    assert stored([reader]) == lines(40), "a rewind does not change that"


def test_a_topic_that_was_recreated_while_no_analyzer_ran_is_not_counted(
    real_kafka: RealKafka, assign: str, opened: Open, admin: KafkaAdminClient
) -> None:
    topic = real_kafka.create_topic()
    produce(real_kafka, topic, lines(40))
    first = opened(topic)
    read_and_check([first], lines(40))
    first.source.close()
    recreate(admin, topic)
    produce(real_kafka, topic, lines(80, begin=100))

    reader = opened(topic, first.position_store, assign=assign)
    turn_until(reader, lambda: "log" in reader.source.problems())
    for _ in range(20):
        assert reader.turn() == 0
    assert len(first.position_store.stored) == 4, "no position was begun in the new log"


def test_records_deleted_by_retention_stop_only_their_partition(
    real_kafka: RealKafka, opened: Open, admin: KafkaAdminClient
) -> None:
    topic = real_kafka.create_topic()
    produce(real_kafka, topic, lines(400))
    first = opened(topic)
    turn_until(first, lambda: len(first.source.positions()) == 4)
    for part in first.position_store.stored:
        first.position_store.stored[part] = Position(50)
    first.source.close()
    admin.delete_records({TopicPartition(topic, 2): 70})

    reader = opened(topic, first.position_store, assign="group")
    turn_until(reader, reader.source.problems)
    produce(real_kafka, topic, lines(40, begin=400))
    wanted = [line for number, line in enumerate(lines(440)) if number >= 200 and number % 4 != 2]
    read_and_check([reader], wanted)
    [(name, why)] = reader.source.problems().items()
    assert (name, why.partition(";")[0]) == (f"{topic}[2]", "[50, 70) was deleted before it was counted")
    assert "gatelock upkeep sources list --gaps" in why
    stopped = next(part for part in reader.position_store.stored if part.number == 2)
    assert reader.source.positions()[stopped] == 50
    assert reader.source.lags()[stopped].records >= 50
    assert reader.source.lags()[stopped].seconds > 0

    # As `gatelock upkeep sources resume` does.
    reader.position_store.stored[stopped] = Position(70)
    reader.start_over()
    read_and_check(
        [reader],
        [*wanted, *(line for number, line in enumerate(lines(440)) if number >= 280 and number % 4 == 2)],
    )
    assert reader.source.problems() == {}


def test_a_position_past_the_end_stops_only_its_partition(real_kafka: RealKafka, opened: Open) -> None:
    topic = real_kafka.create_topic()
    produce(real_kafka, topic, lines(40))
    first = opened(topic)
    turn_until(first, lambda: len(first.source.positions()) == 4)
    first.source.close()
    for part in first.position_store.stored:
        first.position_store.stored[part] = Position(1000 if part.number == 1 else 0)

    reader = opened(topic, first.position_store, assign="all")
    read_and_check([reader], [line for number, line in enumerate(lines(40)) if number % 4 != 1])
    why = reader.source.problems()[f"{topic}[1]"]
    assert why.startswith("offset 1000 is past the end of the log, which is 10;")


def test_partitions_have_the_ids_of_their_topic_and_cluster(
    real_kafka: RealKafka, opened: Open, admin: KafkaAdminClient
) -> None:
    topic = real_kafka.create_topic()
    produce(real_kafka, topic, lines(40))
    reader = opened(topic)
    read_and_check([reader], lines(40))
    assert {part.topic_id for part in reader.kept} == {admin.describe_topics([topic])[0]["topic_id"]}
    assert {part.cluster for part in reader.kept} == {admin.describe_cluster()["cluster_id"]}
    described = request_metadata(consumer_options({"bootstrap_servers": real_kafka.bootstrap}), [topic])
    assert {part.cluster for part in reader.kept} == {described.cluster}
    assert {part.topic_id for part in reader.kept} == {described.topics[topic].id}
