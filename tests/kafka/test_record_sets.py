"""Record sets of a fetch: whole batches as Kafka stores them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from analyzer.kernel.model import Position, RecordSet
from analyzer.sources.kafka import KafkaRecords
from analyzer.sources.kafka.internals.raw_fetcher import IDLE_ANSWERS
from analyzer.sources.kafka.probes.plain_records import PlainLog
from tests.support.batches import records_of
from tests.support.kafka_log import lines, open_source, produce, read_and_check, stored
from tests.support.servers.kafka import GivenKafka, Kafka, NativeKafka
from tests.support.source_reader import MemoryPositionStore, SourceReader

RealKafka = NativeKafka | GivenKafka


@pytest.fixture
def opened() -> Iterator[Any]:
    readers: list[SourceReader] = []

    def opened(kafka: Kafka, topic: str, **given: Any) -> SourceReader:
        store = MemoryPositionStore()
        readers.append(SourceReader(open_source(kafka, store, topic, **given), store, {}))
        return readers[-1]

    yield opened
    for reader in readers:
        reader.source.close()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_batches_of_every_codec_are_handed_on(kafka: Kafka, codec: str, opened: Any) -> None:
    if codec == "zstd" and not kafka.real:
        pytest.skip("the mock does not know zstd")
    topic = kafka.create_topic()
    produce(kafka, topic, lines(400), compression_type=codec, linger_ms=20)
    reader = opened(kafka, topic)
    read_and_check([reader], lines(400))
    assert stored([reader]) == lines(400)


def test_fetches_return_the_bytes_of_batches(kafka: Kafka, opened: Any) -> None:
    topic = kafka.create_topic()
    produce(kafka, topic, lines(40))
    source = opened(kafka, topic).source
    taken = next(item for _ in range(100) for item in source.take(0.1))
    assert isinstance(taken, RecordSet)
    assert records_of(taken.raw, taken.start, taken.aborted)[1][0].value in lines(40)


def test_aborted_records_are_skipped_and_leave_no_lag(real_kafka: RealKafka, opened: Any) -> None:
    topic = real_kafka.create_topic(partitions=1)
    producer = Producer(
        {"bootstrap.servers": real_kafka.bootstrap, "transactional.id": topic, "linger.ms": 2}
    )
    producer.init_transactions(30)
    wanted: list[bytes] = []
    for number in range(8):
        producer.begin_transaction()
        batch = lines(10, begin=10 * number)
        for line in batch:
            producer.produce(topic, line, partition=0)
        producer.flush(30)
        if number % 2:
            producer.abort_transaction(30)  # the last one, too: the log ends with aborted records
        else:
            producer.commit_transaction(30)
            wanted += batch
    reader = opened(real_kafka, topic, options={"max_partition_fetch_bytes": 400})
    read_and_check([reader], wanted)
    reader.run_until(lambda: list(reader.source.positions().values()) == [88])  # 80 records, 8 markers
    assert [lag.records for lag in reader.source.lags().values()] == [0]
    assert [position.next for position in reader.position_store.stored.values()] == [88]


def test_nothing_is_read_behind_an_open_transaction(real_kafka: RealKafka, opened: Any) -> None:
    topic = real_kafka.create_topic(partitions=1)
    produce(real_kafka, topic, lines(10), partition=0)
    producer = Producer({"bootstrap.servers": real_kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush(30)
    produce(real_kafka, topic, lines(10, begin=10), partition=0)

    reader = opened(real_kafka, topic)
    read_and_check([reader], lines(10))
    for _ in range(5):
        assert reader.turn() == 0
    assert [lag.records for lag in reader.source.lags().values()] == [0]
    producer.commit_transaction(30)
    read_and_check([reader], [*lines(20), b"open"])


def test_holes_left_by_compaction_are_skipped(real_kafka: RealKafka, opened: Any) -> None:
    eager = {"segment.ms": 100, "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": 100}
    topic = real_kafka.create_topic(partitions=1, configs={"cleanup.policy": "compact", **eager})
    producer = Producer({"bootstrap.servers": real_kafka.bootstrap, "linger.ms": 2, "batch.num.messages": 10})

    def write(line: bytes, key: bytes) -> None:
        producer.produce(topic, line, key=key, partition=0)

    for number in range(200):
        write(b"line %06d" % number, b"%d" % (number if number % 40 == 0 else -1 - number % 7))
    producer.flush(30)

    def read(start: int = 0) -> list[tuple[int, bytes | None]]:
        reader = opened(real_kafka, topic)
        store = reader.position_store
        store.begin = lambda part, offset, resume_token="": store.stored.setdefault(part, Position(start))
        reader.run_until(lambda: list(reader.source.positions().values()) >= [200])
        return [(record.offset, record.value) for record in reader.kept.popitem()[1] if record.offset < 200]

    end_s = time.monotonic() + 60
    while len(kept := read()) > 50:
        assert time.monotonic() < end_s
        write(b"a new segment, because the active one is never cleaned", b"roll")
        producer.flush(30)
    assert kept[-1] == (199, b"line 000199")
    log = PlainLog(topic, 0, {"bootstrap_servers": real_kafka.bootstrap})
    assert [(record.offset, record.value) for record in log.records(0, 200)] == kept
    hole = next(one[0] + 1 for one, two in itertools.pairwise(kept) if two[0] > one[0] + 1)
    assert read(start=hole) == [record for record in kept if record[0] >= hole]


def test_a_record_larger_than_a_fetch_is_read(real_kafka: RealKafka, opened: Any) -> None:
    topic = real_kafka.create_topic(partitions=1, configs={"max.message.bytes": 5_000_000})
    large = b"x" * 3_000_000
    produce(real_kafka, topic, [b"before", large, b"behind"], partition=0, message_max_bytes=5_000_000)
    reader = opened(real_kafka, topic, options={"max_partition_fetch_bytes": 1000})
    read_and_check([reader], [b"before", large, b"behind"])
    assert stored([reader]) == [b"before", b"behind", large]


class TestOptions:
    def test_an_option_that_does_not_exist_is_refused(self) -> None:
        with pytest.raises(ValueError, match="kafka-python has no option fetch_min_byte; check the spelling"):
            KafkaRecords({"t": "log"}, MemoryPositionStore(), assign="all", options={"fetch_min_byte": 1})

    @pytest.mark.parametrize(
        "name", ["enable_auto_commit", "auto_offset_reset", "isolation_level", "group_id"]
    )
    def test_an_option_that_is_fixed_is_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match=f"must not be set, because Gatelock sets it: {name}; remove it"):
            KafkaRecords({"t": "log"}, MemoryPositionStore(), assign="all", options={name: "x"})

    def test_a_group_needs_an_id(self) -> None:
        with pytest.raises(ValueError, match="group_id"):
            KafkaRecords({"t": "log"}, MemoryPositionStore())


def test_an_idle_topic_is_requested_twice_a_second_and_a_record_ends_the_wait(
    real_kafka: RealKafka, opened: Any
) -> None:
    """Requests for all partitions ten times a second were most of the cost of an idle analyzer."""
    topic = real_kafka.create_topic()
    produce(real_kafka, topic, lines(4))
    reader = opened(real_kafka, topic)
    read_and_check([reader], lines(4))
    source = reader.source

    def answers_within(seconds: float) -> int:
        before, end_s = source._client.answers, time.monotonic() + seconds
        while time.monotonic() < end_s:
            reader.turn()
        return int(source._client.answers - before)

    deadline_s = time.monotonic() + 30.0
    while answers_within(2.0) > 5:
        assert time.monotonic() < deadline_s
    produce(real_kafka, topic, lines(4, begin=4))
    read_and_check([reader], lines(8))
    assert source._client._fetcher.empty_answers < IDLE_ANSWERS
