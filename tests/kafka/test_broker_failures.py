"""A broker that is away, paused, or serves what it should not: nothing is lost, and somebody is told."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka.record import MemoryRecords

from analyzer.core.model import Gap, RecordSet
from analyzer.kafka.client import REQUEST_S_MAX
from analyzer.kafka.connection_errors import FailureCause
from analyzer.kafka.connection_health import RECONNECT_MAX_S, SILENT_S, ConnectionHealth
from analyzer.kafka.internals.consumer import ConnectionFailures
from tests.support.batches import records_of
from tests.support.kafka_log import lines, open_source, produce, run_all, stored
from tests.support.places import MemoryPlaces, Reader
from tests.support.servers.child import free_port
from tests.support.servers.kafka import MockKafka, NativeKafka

KINDS = ("raw", "plain", "group")
WAITS_S = (
    3 * REQUEST_S_MAX
)  # a turn may ask where a log begins, where it ends, and close what does not answer
Open = Callable[..., list[Reader]]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Three readers of one topic, each with a store of its own: whole batches, records, and as a group."""
    readers: list[Reader] = []

    def opened(kafka: NativeKafka, topic: str, **given: Any) -> list[Reader]:
        for kind in KINDS:
            places, named = MemoryPlaces(), {"group_id": topic} if kind == "group" else {}
            source = open_source(kafka, places, topic, raw=kind != "plain", **named, **given)
            readers.append(Reader(source, places, {}))
        return readers

    yield opened
    for reader in readers:
        reader.source.close()


def turns(readers: list[Reader], seconds: float) -> float:
    """Read for a while; returns the longest turn."""
    end_s, longest_s = time.monotonic() + seconds, 0.0
    while time.monotonic() < end_s:
        for reader in readers:
            turn_s = time.monotonic()
            reader.turn()
            longest_s = max(longest_s, time.monotonic() - turn_s)
    return longest_s


def run_each(readers: list[Reader], wanted: list[bytes]) -> None:
    for reader in readers:
        run_all([reader], wanted)


def problems(readers: list[Reader]) -> list[dict[str, str]]:
    return [dict(reader.source.problems()) for reader in readers]


def all_say_that_it_is_silent(readers: list[Reader]) -> None:
    for reader in readers:
        end_s = time.monotonic() + 20
        while "kafka" not in reader.source.problems():
            assert time.monotonic() < end_s, reader.source.problems()
            assert turns([reader], 0.2) < WAITS_S, "no turn hangs"


def test_a_broker_that_stood_still_or_was_killed_is_read_on(own_kafka: NativeKafka, opened: Open) -> None:
    topic = own_kafka.create_topic()
    readers = opened(own_kafka, topic, uptime_s=lambda: time.monotonic() * 10)
    produce(own_kafka, topic, lines(40))
    run_each(readers, lines(40))

    own_kafka.pause()
    try:
        all_say_that_it_is_silent(readers)
    finally:
        own_kafka.resume()
    produce(own_kafka, topic, lines(40, begin=40))
    run_each(readers, lines(80))
    assert problems(readers) == [{}, {}, {}]

    own_kafka.kill()
    all_say_that_it_is_silent(readers)
    own_kafka.start()
    produce(own_kafka, topic, lines(40, begin=80))
    back_s = time.monotonic()
    run_each(readers, lines(120))
    assert time.monotonic() - back_s < 10
    turns(readers, 1)
    assert problems(readers) == [{}, {}, {}]


def test_a_broker_that_comes_later_than_we_is_waited_for(own_kafka: NativeKafka, opened: Open) -> None:
    topic = own_kafka.create_topic()
    own_kafka.stop()
    readers = opened(own_kafka, topic, options={"bootstrap_timeout_ms": 300})
    before = threading.active_count()
    turns(readers, 3)
    assert all("connection refused" in each["kafka"] for each in problems(readers))
    assert threading.active_count() == before, "nothing of the failed connections is left"
    own_kafka.start()
    produce(own_kafka, topic, lines(40))
    run_each(readers, lines(40))
    assert problems(readers) == [{}, {}, {}]


def test_a_damaged_batch_stops_its_partition_alone(own_kafka: NativeKafka, opened: Open) -> None:
    topic = own_kafka.create_topic(partitions=2)
    for batch in range(4):
        produce(own_kafka, topic, lines(10, begin=10 * batch), partition=0)
    produce(own_kafka, topic, lines(10, begin=100), partition=1)
    own_kafka.stop()
    log = own_kafka.folder / "data" / f"{topic}-0" / "00000000000000000000.log"
    content = bytearray(log.read_bytes())
    content[content.index(b"line 000015")] ^= 0xFF
    log.write_bytes(content)
    own_kafka.start()

    readers: list[Reader] = [Judge(reader) for reader in opened(own_kafka, topic)]
    wanted = [*lines(10), *lines(10, begin=100)]
    run_each(readers, wanted)
    turns(readers, 1)
    assert [stored([reader]) for reader in readers] == [wanted] * 3
    assert [list(each) for each in problems(readers)] == [[f"{topic}[0]"]] * 3
    produce(own_kafka, topic, lines(10, begin=200), partition=1)
    wanted += lines(10, begin=200)
    run_each(readers, wanted)

    for reader in readers:
        reader.start_over()  # it is looked at once more; kafka-python alone would hang
    turns(readers, 2)
    assert [list(each) for each in problems(readers)] == [[f"{topic}[0]"]] * 3
    produce(own_kafka, topic, lines(10, begin=300), partition=1)
    run_each(readers, wanted + lines(10, begin=300))


class Judge(Reader):
    """Looks at checksums, as the counter does: the batches before a damaged one count, then it stops."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader.source, reader.places, reader.kept)
        taking = reader.source.take

        def take(timeout_s: float) -> Iterator[Any]:
            for taken in taking(timeout_s):
                good = intact(taken.raw) if isinstance(taken, RecordSet) else None
                if good is None or good == taken.raw:
                    yield taken
                else:
                    yield taken._replace(raw=good)
                    _, records = records_of(good, taken.start, taken.aborted)
                    at = records[-1].offset + 1 if records else taken.start
                    self.source.stop(taken.part, Gap("corrupt", at, None, "a batch is damaged"))

        self.source.take = take  # type: ignore[method-assign]  # stands in front of it


def intact(raw: bytes) -> bytes:
    """The batches before the first damaged one."""
    batches, size = MemoryRecords(raw), 0
    while (batch := batches.next_batch()) is not None and batch.validate_crc():
        size += batch.size_in_bytes
    return raw[:size]


def test_an_address_where_nobody_is_takes_no_longer_than_it_may() -> None:
    mock = MockKafka()
    mock.bootstrap = f"127.0.0.1:{free_port()}"
    options = {"bootstrap_timeout_ms": 300}
    source = open_source(mock, MemoryPlaces(), "t", options={"api_version": None, **options})
    began_s = time.monotonic()
    assert list(source.take(0.05)) == []
    assert time.monotonic() - began_s < 3
    assert source.polling_since is None
    before_s = time.monotonic()
    assert list(source.take(0.05)) == []
    assert time.monotonic() - before_s < 0.2, "in between it only waits"
    source.close()
    mock.close()


class TestWatch:
    def test_each_failure_waits_longer_up_to_a_bound_and_a_long_life_forgives(self) -> None:
        clock = [100.0]
        watch = ConnectionHealth(lambda: clock[0], {}, [])
        assert watch.wait_s == 0
        pauses = [watch.failed(ValueError("no")) for _ in range(8)]
        assert pauses == [0.5, 1, 2, 4, 8, RECONNECT_MAX_S, RECONNECT_MAX_S, RECONNECT_MAX_S]
        clock[0] += RECONNECT_MAX_S
        assert watch.wait_s == 0
        watch.opened()
        clock[0] += 60
        assert watch.failed(ValueError("no")) == 0.5

    def test_what_keeps_us_from_connecting_is_told_until_we_are_connected(self) -> None:
        watch = ConnectionHealth(lambda: 0.0, {}, [])
        watch.failed(ValueError("no"))
        assert watch.cause(None, None) == FailureCause("away", "no")
        watch.opened()
        assert watch.cause(Fine(), None) is None

    def test_a_right_that_is_missing_is_told_whatever_was_wrong_before(self) -> None:
        """Who may not read is never answered: an earlier trouble would stand for ever."""
        watch = ConnectionHealth(lambda: 0.0, {}, ["t"])
        watch.opened()
        watch.failed(ValueError("no"))
        watch.opened()
        lacking = Fine()
        lacking.forbidden = lambda: ["t"]  # type: ignore[method-assign]  # of this one alone
        found = watch.cause(lacking, None)
        assert found is not None
        assert found.kind == "right"

    def test_what_a_connection_was_given_up_for_is_told_until_a_broker_answers(self) -> None:
        watch = ConnectionHealth(lambda: 0.0, {}, [])
        watch.opened()
        watch.failed(ValueError("no"))
        assert watch.cause(None, None) == FailureCause("away", "no")
        watch.opened()
        watch.waited(0.1, 0, is_reading=True, is_idle=False)
        assert watch.cause(Fine(), None) == FailureCause("away", "no")
        watch.waited(0.1, 1, is_reading=True, is_idle=False)
        assert watch.cause(Fine(), None) is None

    def test_only_time_spent_waiting_for_records_is_silence(self) -> None:
        watch = ConnectionHealth(lambda: 0.0, {}, [])
        watch.waited(SILENT_S - 1, 0, is_reading=True, is_idle=False)
        watch.waited(100.0, 0, is_reading=False, is_idle=False)
        assert watch.cause(Fine(), None) is None
        watch.waited(1.0, 0, is_reading=True, is_idle=False)
        assert watch.cause(Fine(), None) == FailureCause(
            "away", f"no broker has answered for {SILENT_S:.0f} s; check the brokers and the network"
        )
        watch.waited(1.0, 1, is_reading=True, is_idle=False)
        assert watch.cause(Fine(), None) is None

    def test_it_is_logged_when_it_begins_once_a_minute_and_when_it_ends(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "analyzer.kafka")
        clock = [0.0]
        watch = ConnectionHealth(lambda: clock[0], {"bootstrap_servers": ["a:1", "b:2"]}, [])
        away, login = FailureCause("away", "no broker answers"), FailureCause("login", "the broker refuses")
        for at_s, cause in ((0, None), (1, away), (2, away), (60, away), (62, away), (63, login), (64, None)):
            clock[0] = at_s
            watch.report(cause)
        assert [record.message for record in caplog.records] == [
            "kafka: a:1,b:2: no broker answers",
            "kafka: a:1,b:2: no broker answers",
            "kafka-login: a:1,b:2: the broker refuses",
            "Kafka answers again",
        ]


class Fine:
    """A connection that nothing is the matter with."""

    failures = ConnectionFailures()

    def known(self) -> list[str]:
        return []

    def forbidden(self) -> list[str]:
        return []
