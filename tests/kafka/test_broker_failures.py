"""A broker that is down, suspended, or serves damaged batches: nothing is lost, and problems name it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka.record import MemoryRecords

from analyzer.kernel.model import Gap, RecordSet
from analyzer.sources.kafka.client import REQUEST_S_MAX
from analyzer.sources.kafka.connection_errors import ConnectionFailures, FailureCause
from analyzer.sources.kafka.connection_health import RECONNECT_MAX_S, SILENT_S, ConnectionHealth
from tests.support.batches import records_of
from tests.support.kafka_log import lines, open_source, produce, read_and_check, stored
from tests.support.servers.child import free_port
from tests.support.servers.kafka import MockKafka, NativeKafka
from tests.support.source_reader import MemoryPositionStore, SourceReader

# A turn may request the begin and the end of a log, and close a connection that does not answer.
TURN_S_MAX = 3 * REQUEST_S_MAX
Open = Callable[..., list[SourceReader]]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Two readers of one topic with separate stores: of all partitions, and as a group."""
    readers: list[SourceReader] = []

    def opened(kafka: NativeKafka, topic: str, **given: Any) -> list[SourceReader]:
        for group in ({}, {"group_id": topic}):
            store = MemoryPositionStore()
            source = open_source(kafka, store, topic, **group, **given)
            readers.append(SourceReader(source, store, {}))
        return readers

    yield opened
    for reader in readers:
        reader.source.close()


def turns(readers: list[SourceReader], seconds: float) -> float:
    """Reads for a while; returns the seconds of the longest turn."""
    end_s, longest_s = time.monotonic() + seconds, 0.0
    while time.monotonic() < end_s:
        for reader in readers:
            turn_s = time.monotonic()
            reader.turn()
            longest_s = max(longest_s, time.monotonic() - turn_s)
    return longest_s


def read_and_check_each(readers: list[SourceReader], wanted: list[bytes]) -> None:
    for reader in readers:
        read_and_check([reader], wanted)


def problems(readers: list[SourceReader]) -> list[dict[str, str]]:
    return [dict(reader.source.problems()) for reader in readers]


def wait_until_all_report_silence(readers: list[SourceReader]) -> None:
    for reader in readers:
        end_s = time.monotonic() + 20
        while "kafka" not in reader.source.problems():
            assert time.monotonic() < end_s, reader.source.problems()
            assert turns([reader], 0.2) < TURN_S_MAX, "no turn hangs"


def test_reading_continues_after_a_broker_was_suspended_or_killed(
    own_kafka: NativeKafka, opened: Open
) -> None:
    topic = own_kafka.create_topic()
    readers = opened(own_kafka, topic, uptime_s=lambda: time.monotonic() * 10)
    produce(own_kafka, topic, lines(40))
    read_and_check_each(readers, lines(40))

    own_kafka.pause()
    try:
        wait_until_all_report_silence(readers)
    finally:
        own_kafka.resume()
    produce(own_kafka, topic, lines(40, begin=40))
    read_and_check_each(readers, lines(80))
    assert problems(readers) == [{}, {}]

    own_kafka.kill()
    wait_until_all_report_silence(readers)
    own_kafka.start()
    produce(own_kafka, topic, lines(40, begin=80))
    back_s = time.monotonic()
    read_and_check_each(readers, lines(120))
    assert time.monotonic() - back_s < 10
    turns(readers, 1)
    assert problems(readers) == [{}, {}]


@pytest.mark.deep("a further broker: one that comes back is another test")
def test_a_broker_that_starts_after_the_analyzer_is_waited_for(own_kafka: NativeKafka, opened: Open) -> None:
    topic = own_kafka.create_topic()
    own_kafka.stop()
    readers = opened(own_kafka, topic, options={"bootstrap_timeout_ms": 300})
    before = threading.active_count()
    turns(readers, 3)
    assert all("connection refused" in found["kafka"] for found in problems(readers))
    assert threading.active_count() == before, "nothing of the failed connections is left"
    own_kafka.start()
    produce(own_kafka, topic, lines(40))
    read_and_check_each(readers, lines(40))
    assert problems(readers) == [{}, {}]


@pytest.mark.deep("a further broker: test_damage.py has damaged batches")
def test_a_damaged_batch_stops_only_its_partition(own_kafka: NativeKafka, opened: Open) -> None:
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

    readers: list[SourceReader] = [CheckingReader(reader) for reader in opened(own_kafka, topic)]
    wanted = [*lines(10), *lines(10, begin=100)]
    read_and_check_each(readers, wanted)
    turns(readers, 1)
    assert [stored([reader]) for reader in readers] == [wanted] * 2
    assert [list(found) for found in problems(readers)] == [[f"{topic}[0]"]] * 2
    produce(own_kafka, topic, lines(10, begin=200), partition=1)
    wanted += lines(10, begin=200)
    read_and_check_each(readers, wanted)

    for reader in readers:
        reader.start_over()  # fetches the batch again, where kafka-python alone would hang
    turns(readers, 2)
    assert [list(found) for found in problems(readers)] == [[f"{topic}[0]"]] * 2
    produce(own_kafka, topic, lines(10, begin=300), partition=1)
    read_and_check_each(readers, wanted + lines(10, begin=300))


class CheckingReader(SourceReader):
    """A reader that checks checksums as the counter does: it stores the batches before a damaged one."""

    def __init__(self, reader: SourceReader) -> None:
        super().__init__(reader.source, reader.position_store, reader.kept)
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

        self.source.take = take  # type: ignore[method-assign]  # of this one


def intact(raw: bytes) -> bytes:
    """Returns the batches before the first damaged one."""
    batches, size = MemoryRecords(raw), 0
    while (batch := batches.next_batch()) is not None and batch.validate_crc():
        size += batch.size_in_bytes
    return raw[:size]


def test_an_address_without_a_broker_takes_no_longer_than_the_timeout() -> None:
    mock = MockKafka()
    mock.bootstrap = f"127.0.0.1:{free_port()}"
    options = {"bootstrap_timeout_ms": 1_500}
    source = open_source(mock, MemoryPositionStore(), "t", options={"api_version": None, **options})
    began_s = time.monotonic()
    assert list(source.take(0.05)) == []
    assert time.monotonic() - began_s < 10
    assert source.polling_since is None
    before_s = time.monotonic()
    assert list(source.take(0.05)) == []
    assert time.monotonic() - before_s < 1, "until the next attempt it only waits"
    source.close()
    mock.close()


class TestConnectionHealth:
    def test_the_back_off_doubles_up_to_a_bound_and_starts_again_after_a_long_connection(self) -> None:
        clock = [100.0]
        health = ConnectionHealth(lambda: clock[0], {}, [])
        assert health.wait_s == 0
        pauses = [health.failed(ValueError("no")) for _ in range(8)]
        assert pauses == [0.5, 1, 2, 4, 8, RECONNECT_MAX_S, RECONNECT_MAX_S, RECONNECT_MAX_S]
        clock[0] += RECONNECT_MAX_S
        assert health.wait_s == 0
        health.opened()
        clock[0] += 60
        assert health.failed(ValueError("no")) == 0.5

    def test_a_failure_to_connect_is_reported_until_we_are_connected(self) -> None:
        health = ConnectionHealth(lambda: 0.0, {}, [])
        health.failed(ValueError("no"))
        assert health.cause(None, None) == FailureCause("away", "no")
        health.opened()
        assert health.cause(Healthy(), None) is None

    def test_a_missing_permission_is_reported_in_place_of_an_earlier_failure(self) -> None:
        """Without the right no broker answers, so the earlier failure would never end."""
        health = ConnectionHealth(lambda: 0.0, {}, ["t"])
        health.opened()
        health.failed(ValueError("no"))
        health.opened()
        forbidden = Healthy()
        forbidden.forbidden = lambda: ["t"]  # type: ignore[method-assign]  # of this one
        found = health.cause(forbidden, None)
        assert found is not None
        assert found.kind == "permission"

    def test_the_failure_of_a_connection_is_reported_until_a_broker_answers(self) -> None:
        health = ConnectionHealth(lambda: 0.0, {}, [])
        health.opened()
        health.failed(ValueError("no"))
        assert health.cause(None, None) == FailureCause("away", "no")
        health.opened()
        health.waited(0.1, 0, is_reading=True, is_idle=False)
        assert health.cause(Healthy(), None) == FailureCause("away", "no")
        health.waited(0.1, 1, is_reading=True, is_idle=False)
        assert health.cause(Healthy(), None) is None

    def test_only_time_spent_waiting_for_records_counts_as_silence(self) -> None:
        health = ConnectionHealth(lambda: 0.0, {}, [])
        health.waited(SILENT_S - 1, 0, is_reading=True, is_idle=False)
        health.waited(100.0, 0, is_reading=False, is_idle=False)
        assert health.cause(Healthy(), None) is None
        health.waited(1.0, 0, is_reading=True, is_idle=False)
        assert health.cause(Healthy(), None) == FailureCause(
            "away", f"no broker has answered for {SILENT_S:.0f} s; check the brokers and the network"
        )
        health.waited(1.0, 1, is_reading=True, is_idle=False)
        assert health.cause(Healthy(), None) is None

    def test_a_cause_is_logged_when_it_begins_once_a_minute_and_when_it_ends(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "analyzer.sources.kafka")
        clock = [0.0]
        health = ConnectionHealth(lambda: clock[0], {"bootstrap_servers": ["a:1", "b:2"]}, [])
        away, login = FailureCause("away", "no broker answers"), FailureCause("login", "the broker refuses")
        for at_s, cause in ((0, None), (1, away), (2, away), (60, away), (62, away), (63, login), (64, None)):
            clock[0] = at_s
            health.report(cause)
        assert [record.message for record in caplog.records] == [
            "kafka: a:1,b:2: no broker answers",
            "kafka: a:1,b:2: no broker answers",
            "kafka-login: a:1,b:2: the broker refuses",
            "Kafka answers again",
        ]


class Healthy:
    """The state of a connection without problems."""

    failures = ConnectionFailures()

    def known(self) -> list[str]:
        return []

    def forbidden(self) -> list[str]:
        return []
