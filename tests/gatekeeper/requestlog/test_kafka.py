"""A request log in a topic, on a real broker: acknowledged, waiting and dropped records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from gatekeeper.adapters.admission_control import RequestIdentity
from gatekeeper.clock import SYSTEM_CLOCK
from gatekeeper.requestlog.background_writer import BackgroundWriter
from gatekeeper.requestlog.confluent import ConfluentSink
from gatekeeper.requestlog.kafka import KafkaSink
from gatekeeper.requestlog.log_record import LogEntry, LogLine
from tests.support.servers.child import free_port
from tests.support.servers.kafka import Kafka, NativeKafka

ROOT = Path(__file__).parents[3]
PARTITIONS = 4
AnySink = KafkaSink | ConfluentSink
NewSink = Callable[..., AnySink]

# librdkafka's names of the options in these tests; it has no others of them.
LIBRDKAFKA = {"delivery_timeout_ms": "delivery.timeout.ms", "request_timeout_ms": "socket.timeout.ms"}


@pytest.fixture(params=["kafka-python", "librdkafka"])
def new_sink(request: pytest.FixtureRequest) -> NewSink:
    """Creates a sink by either client; options have kafka-python's names."""

    def create(*args: Any, options: Mapping[str, Any] | None = None, **given: Any) -> AnySink:
        options = options or {}
        if request.param == "kafka-python":
            return KafkaSink(*args, options=options, **given)
        known = {LIBRDKAFKA[name]: value for name, value in options.items() if name in LIBRDKAFKA}
        return ConfluentSink(*args, options=known, **given)

    return create


def an_entry(number: int, caller: str = "api_key:acme") -> LogEntry:
    return LogEntry(number, 0, 200, 0, "GET", f"/{number}", RequestIdentity(caller, address="192.0.2.1"))


def stored(kafka: Kafka, topic: str) -> dict[int, list[tuple[str, int]]]:
    """Returns the keys and numbers of records by partition, in order."""
    options = {"bootstrap.servers": kafka.bootstrap, "group.id": "test", "enable.partition.eof": True}
    consumer = Consumer({**options, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: dict[int, list[tuple[str, int]]] = defaultdict(list)
    ended: set[int | None] = set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(10)
        assert message is not None, "the topic cannot be read"
        if message.error():
            ended.add(message.partition())
            continue
        number = int(json.loads(message.value() or b"")["path"][1:])
        found[message.partition() or 0].append(((message.key() or b"").decode(), number))
    consumer.close()
    return found


def numbers(found: dict[int, list[tuple[str, int]]]) -> list[int]:
    return sorted(number for records in found.values() for _, number in records)


def a_writer(sink: AnySink, buffer: int = 10_000) -> BackgroundWriter:
    return BackgroundWriter(sink, buffer=buffer, clock=SYSTEM_CLOCK)


def test_every_record_is_acknowledged_and_those_of_a_caller_are_in_one_partition_in_order(
    real_kafka: Kafka, new_sink: NewSink
) -> None:
    topic = real_kafka.create_topic(partitions=PARTITIONS)
    writer = a_writer(new_sink(real_kafka.bootstrap, topic))
    callers = [f"api_key:k{number}" for number in range(20)] + [""]
    for number in range(2_100):
        writer.put(an_entry(number, callers[number % 21]))
    assert writer.flush(20)
    assert (writer.written, writer.dropped, writer.waiting, writer.healthy) == (2_100, 0, 0, True)
    writer.close(1)
    found = stored(real_kafka, topic)
    assert numbers(found) == list(range(2_100))
    for key in (*callers[:-1], "address:192.0.2.1"):
        (of_one,) = (records for records in found.values() if any(name == key for name, _ in records))
        order = [number for name, number in of_one if name == key]
        assert len(order) == 100
        assert order == sorted(order)


@pytest.mark.parametrize(
    "new_sink",
    ["kafka-python", pytest.param("librdkafka", marks=pytest.mark.deep("a further broker"))],
    indirect=True,
)
def test_after_a_broker_was_killed_and_restarted_every_record_is_stored_once(
    own_kafka: NativeKafka, new_sink: NewSink
) -> None:
    topic = own_kafka.create_topic(partitions=PARTITIONS)
    writer = a_writer(new_sink(own_kafka.bootstrap, topic))
    for number in range(500):
        writer.put(an_entry(number))
    assert writer.flush(20)
    for number in range(500, 1_000):
        writer.put(an_entry(number))
    own_kafka.kill()
    for number in range(1_000, 1_500):
        writer.put(an_entry(number))
    assert not writer.flush(1)
    assert writer.written + writer.waiting == 1_500
    own_kafka.start()
    assert writer.flush(30)
    assert (writer.written, writer.dropped) == (1_500, 0)
    writer.close(1)
    assert numbers(stored(own_kafka, topic)) == list(range(1_500))


class TestAnUnavailableBroker:
    def test_no_request_waits_and_dropped_records_are_counted(self, new_sink: NewSink) -> None:
        options = {"bootstrap_timeout_ms": 200, "max_block_ms": 200}
        writer = a_writer(new_sink(f"127.0.0.1:{free_port()}", "requests", options=options), buffer=100)
        began_s = time.monotonic()
        for number in range(5_000):
            writer.put(an_entry(number))
        assert time.monotonic() - began_s < 5.0
        assert not writer.flush(0.5)
        assert not writer.healthy
        assert writer.written == 0
        assert writer.waiting <= 100 + 1_000
        assert writer.dropped == 5_000 - writer.waiting
        writer.close(0)

    @pytest.mark.parametrize(
        "new_sink",
        ["kafka-python", pytest.param("librdkafka", marks=pytest.mark.deep("a further broker"))],
        indirect=True,
    )
    def test_waiting_records_are_bounded(self, own_kafka: NativeKafka, new_sink: NewSink) -> None:
        topic = own_kafka.create_topic(partitions=PARTITIONS)
        options = {"max_block_ms": 200, "request_timeout_ms": 1_000}
        sink = new_sink(own_kafka.bootstrap, topic, in_flight=50, options=options)
        writer = a_writer(sink, buffer=100)
        writer.put(an_entry(0))
        assert writer.flush(20)
        own_kafka.kill()
        for number in range(1, 5_000):
            writer.put(an_entry(number))
            if number % 100 == 0:
                time.sleep(0.001)
        assert not writer.flush(0.5)
        assert writer.waiting <= 50 + 100 + 1_000
        assert writer.written + writer.waiting + writer.dropped == 5_000
        own_kafka.start()
        assert writer.flush(30)
        assert writer.written + writer.dropped == 5_000
        writer.close(1)
        assert len(numbers(stored(own_kafka, topic))) == writer.written

    @pytest.mark.parametrize(
        "new_sink",
        ["kafka-python", pytest.param("librdkafka", marks=pytest.mark.deep("a further broker"))],
        indirect=True,
    )
    def test_records_without_acknowledgement_are_lost_and_counted(
        self, own_kafka: NativeKafka, new_sink: NewSink
    ) -> None:
        topic = own_kafka.create_topic(partitions=PARTITIONS)
        patient = a_writer(new_sink(own_kafka.bootstrap, topic))
        patient.put(an_entry(0))
        assert patient.flush(20), "a broker that has just started takes more than a second for the first"
        patient.close(1)
        options = {"delivery_timeout_ms": 1_000, "request_timeout_ms": 500, "max_block_ms": 200}
        writer = a_writer(new_sink(own_kafka.bootstrap, topic, options=options))
        writer.put(an_entry(0))
        assert writer.flush(20)
        own_kafka.kill()
        for number in range(1, 101):
            writer.put(an_entry(number))
        deadline_s = time.monotonic() + 20
        while writer.dropped < 100:
            assert time.monotonic() < deadline_s, (writer.written, writer.waiting, writer.dropped)
            time.sleep(0.05)
        assert (writer.written, writer.waiting, writer.healthy) == (1, 0, False)
        writer.close(0)


def test_a_missing_topic_is_logged_and_awaited(
    real_kafka: Kafka, new_sink: NewSink, caplog: pytest.LogCaptureFixture
) -> None:
    from tests.support.servers.kafka import new_name

    topic = new_name()
    sink = new_sink(real_kafka.bootstrap, topic, options={"max_block_ms": 300})
    writer = a_writer(sink)
    writer.put(an_entry(1))
    assert not writer.flush(1)
    assert f"Kafka, topic {topic}" in caplog.text
    real_kafka.create_topic(topic, partitions=PARTITIONS)
    assert writer.flush(20)
    writer.close(1)
    assert numbers(stored(real_kafka, topic)) == [1]


PARENT = """
import os, sys, time
from gatekeeper.adapters.admission_control import RequestIdentity
from gatekeeper.clock import SYSTEM_CLOCK
from gatekeeper.requestlog.{module} import {sink}
from gatekeeper.requestlog.log_record import LogEntry
from gatekeeper.requestlog.background_writer import BackgroundWriter

def put(number):
    writer.put(LogEntry(number, 0, 200, 0, "GET", f"/{number}", RequestIdentity("api_key:acme")))

writer = BackgroundWriter({sink}(sys.argv[1], sys.argv[2]), buffer=1000, clock=SYSTEM_CLOCK)
put(1)
assert writer.flush(20)
put(2)
if sys.argv[3] == "forks":
    child = os.fork()
    put(3 if child == 0 else 4)
    if child:
        os.waitpid(child, 0)
# Nothing more: waiting records are written when the process ends.
"""


@pytest.mark.parametrize(("module", "sink"), [("kafka", "KafkaSink"), ("confluent", "ConfluentSink")])
@pytest.mark.parametrize(("how", "wanted"), [("ends", [1, 2]), ("forks", [1, 2, 3, 4])])
def test_a_process_that_ends_or_forks_sends_every_record_once(
    real_kafka: Kafka, module: str, sink: str, how: str, wanted: list[int]
) -> None:
    parent = PARENT.replace("{module}", module).replace("{sink}", sink)
    topic = real_kafka.create_topic(partitions=PARTITIONS)
    ran = subprocess.run(
        [sys.executable, "-c", parent, real_kafka.bootstrap, topic, how],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    # A broker that has just started may have no number for an idempotent producer yet: librdkafka asks again.
    complaints = [line for line in ran.stderr.splitlines() if not line.startswith("GETPID ")]
    assert (ran.returncode, complaints) == (0, [])
    assert numbers(stored(real_kafka, topic)) == wanted


def test_invalid_settings_are_errors() -> None:
    with pytest.raises(ValueError, match="has no option linger"):
        KafkaSink("localhost:9092", "requests", options={"linger": 5})
    with pytest.raises(ValueError, match="key_serializer cannot be changed"):
        KafkaSink("localhost:9092", "requests", options={"key_serializer": str})
    with pytest.raises(ValueError, match="at least 1 record"):
        KafkaSink("localhost:9092", "requests", in_flight=0)
    with pytest.raises(ValueError, match="linger_ms"):
        ConfluentSink("localhost:9092", "requests", options={"linger_ms": 5})
    with pytest.raises(ValueError, match="partitioner cannot be changed"):
        ConfluentSink("localhost:9092", "requests", options={"partitioner": "random"})
    with pytest.raises(ValueError, match="at least 1 record"):
        ConfluentSink("localhost:9092", "requests", in_flight=0)


def test_both_clients_write_the_records_of_a_caller_to_one_partition(real_kafka: Kafka) -> None:
    topic = real_kafka.create_topic(partitions=PARTITIONS)
    for sink in (KafkaSink(real_kafka.bootstrap, topic), ConfluentSink([real_kafka.bootstrap], topic)):
        writer = a_writer(sink)
        for number in range(100):
            writer.put(an_entry(number, f"api_key:k{number % 50}"))
        assert writer.flush(20)
        writer.close(1)
    found = stored(real_kafka, topic)
    callers = [{name for name, _ in records} for records in found.values()]
    assert sum(map(len, callers)) == 50
    assert sum(map(len, found.values())) == 200


def test_records_that_a_closed_producer_had_not_sent_are_counted_as_lost(own_kafka: NativeKafka) -> None:
    topic = own_kafka.create_topic(partitions=PARTITIONS)
    sink = ConfluentSink(own_kafka.bootstrap, topic)
    writer = a_writer(sink)
    writer.put(an_entry(0))
    assert writer.flush(20)
    own_kafka.kill()
    for number in range(1, 11):
        writer.put(an_entry(number))
    assert not writer.flush(0.5)
    assert writer.waiting == 10
    sink.close()
    outcome = sink.write([])
    assert (outcome.written, outcome.lost) == (0, 10)
    assert f"Kafka, topic {topic}: " in outcome.trouble


def test_records_that_librdkafka_has_not_reported_by_the_end_are_counted_as_lost() -> None:
    sink = ConfluentSink("127.0.0.1:1", "requests")
    sink._producer, sink._is_ready = UnreportingProducer(), True
    assert sink.write([LogLine(b"%d\n" % number, "") for number in range(10)]).taken == 10
    sink.close()
    assert sink.write([]).lost == 10


class UnreportingProducer:
    """A producer that was closed before it called back."""

    def produce(self, *_: object, **__: object) -> None: ...
    def poll(self, _timeout_s: float) -> None: ...
    def purge(self) -> None: ...
    def flush(self, _timeout_s: float) -> int:
        return 11  # ten records and an event
