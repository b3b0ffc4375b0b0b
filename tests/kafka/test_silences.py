"""Where kafka-python is silent: each silence is told, by name, in the log, in /readyz and as a metric.

A broker that is away and a member that was left out are in test_trouble and test_groups; rights and passwords
that are taken away while we read, in test_security.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.bombs import bomb
from tests.support.kafka_log import lines, open_source, produce, produce_as_is, run_all
from tests.support.places import MemoryPlaces, Reader
from tests.support.running import NAMED_S_MAX, Analyzer
from tests.support.servers.kafka import GivenKafka, NativeKafka

RealKafka = NativeKafka | GivenKafka
LINE = '{{"ts": 1795216000, "key": "acme", "n": {}}}'

# kafka-python as it is, polled again after it met a batch that it does not unpack: which we never do.
HANGING = """
import sys
import analyzer.kafka.records as records
import analyzer.watchdog as watchdog
from analyzer.cli import main
from analyzer.kafka.client import Client
from kafka.errors import CorruptRecordError

records.NO_RAW = "as if kafka-python's fetcher had changed"
watchdog.TOLD_S, watchdog.HUNG_S = 11.0, 14.0

def poll(client, timeout_s):
    try:
        return client._poll(timeout_s)
    except CorruptRecordError:
        return client._poll(timeout_s)

Client.poll = poll
sys.argv = ["gatelock", "run"]
main()
"""


Start = Callable[..., Analyzer]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    from analyzer.store.migrate import upgrade

    upgrade(f"sqlite:///{tmp_path}/gatelock.db")
    started: list[Analyzer] = []

    def start(*given: Any, **more: Any) -> Analyzer:
        started.append(Analyzer(tmp_path, f"analyzer-{len(started)}", *given, **more))
        return started[-1]

    yield start
    for each in started:
        each.end()


def reading(kafka: RealKafka, topic: str, more: str = 'assign = "all"') -> str:
    return f"""
        [kafka]
        bootstrap_servers = "{kafka.bootstrap}"
        {more}
        [[sources]]
        topic  = "{topic}"
        fields = {{ time = {{ path = "ts", unit = "s" }}, api_key = "key" }}
    """


def test_a_poll_that_hangs_is_named_and_ends_the_process(real_kafka: RealKafka, start: Start) -> None:
    topic = real_kafka.create_topic(partitions=1)
    produce_as_is(real_kafka, topic, 0, bomb("zstd", 128))
    analyzer = start(reading(real_kafka, topic), code=HANGING)
    assert "poll() has not come back" in analyzer.named("kafka-hung")
    assert analyzer.process.wait(NAMED_S_MAX) == 3, "not 0: whoever started it does so again"
    last = analyzer.log[-1]
    assert last["level"] == "critical"
    assert "fetched_records" in last["message"], "where it hangs"


def test_two_that_read_the_same_are_named(real_kafka: RealKafka, start: Start) -> None:
    """Two with assign = "all" on one database: whoever stores second, has counted for nothing."""
    topic = real_kafka.create_topic()
    first, second = (start(reading(real_kafka, topic)) for _ in range(2))
    first.listening()
    second.listening()
    end_s, said = time.monotonic() + NAMED_S_MAX, {}
    while "contention" not in said:
        assert time.monotonic() < end_s, (first.log[-3:], second.log[-3:])
        produce(real_kafka, topic, [LINE.format(number).encode() for number in range(200)])
        said = first.problems() | second.problems()
    assert "two read the same partitions" in said["contention"]


def test_a_wrong_password_does_not_look_like_a_broker_that_is_away(
    start: Start, real_kafka: RealKafka
) -> None:
    """It asks for no login at all, which is as wrong as a login can be."""
    login = """
        security.protocol = "SASL_PLAINTEXT"
        sasl.mechanism = "PLAIN"
        sasl.jaas.config = 'x.PlainLoginModule required username="ada" password="s3cret";'
    """
    analyzer = start(reading(real_kafka, "t", login))
    assert "security_protocol" in analyzer.named("kafka-login")
    began_s, told_s = analyzer.logged("listening"), analyzer.logged("kafka-login")
    assert began_s is not None
    assert told_s is not None
    assert told_s - began_s < 10
    told = [each for each in analyzer.log if each["level"] == "error"]
    assert [each["message"].partition(":")[0] for each in told] == ["kafka-login"]
    assert "s3cret" not in json.dumps(analyzer.log)


def test_a_member_whose_name_another_has_taken_is_named_and_stays_away(
    real_kafka: RealKafka, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "analyzer.kafka")
    topic = real_kafka.create_topic()
    given = {
        "group_id": topic,
        "session_timeout_s": 1.5,
        "options": {"group_instance_id": "one", "heartbeat_interval_ms": 200},
    }
    places, kept = MemoryPlaces(), {}
    first, second = (Reader(open_source(real_kafka, places, topic, **given), places, kept) for _ in range(2))
    produce(real_kafka, topic, lines(40))
    run_all([first], lines(40))
    end_s = time.monotonic() + NAMED_S_MAX
    while "kafka-group" not in first.source.problems():
        assert time.monotonic() < end_s
        second.turn()
        first.turn()
    assert "has joined the group" in first.source.problems()["kafka-group"]
    assert any("kafka-group" in record.message for record in caplog.records)
    produce(real_kafka, topic, lines(40, begin=40))
    run_all([first, second], lines(80))
    assert first.source.positions() == {}
    assert second.source.problems() == {}

    second.source.close()
    produce(real_kafka, topic, lines(40, begin=80))
    run_all([first], lines(120))
    assert first.source.problems() == {}
    first.source.close()
