"""A group does not wait for the session time-out of a member whose process is known to be dead."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from analyzer.sources.kafka.group.dead_members import (
    JOIN_S_MAX,
    client_id,
    remove_dead_members,
    remove_dead_members_soon,
)
from tests.support.kafka_log import open_source
from tests.support.servers.kafka import GivenKafka, NativeKafka
from tests.support.source_reader import MemoryPositionStore, SourceReader

SESSION_S = 30.0
JOINS_WITHIN_S = 30
MEMBER = """
import faulthandler, sys
faulthandler.dump_traceback_later(float(sys.argv.pop(1)), exit=True)
from analyzer.sources.kafka.internals.consumer import OpenConsumer
from analyzer.sources.kafka.group.dead_members import client_id
from kafka import KafkaConsumer
bootstrap, topic, name = sys.argv[1:]
consumer = KafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=topic, client_id=client_id(name),
                         session_timeout_ms=30_000, auto_offset_reset="earliest", enable_auto_commit=False)
OpenConsumer(consumer).keep_join_outcomes()
while True:
    consumer.poll(100)
    if consumer.assignment():
        faulthandler.cancel_dump_traceback_later()
        print("joined", flush=True)
"""


@contextmanager
def member(kafka: NativeKafka | GivenKafka, topic: str, name: str) -> Iterator[subprocess.Popen[str]]:
    """Runs a process that is the only member of the group `topic`."""
    command = [sys.executable, "-c", MEMBER, str(JOINS_WITHIN_S), kafka.bootstrap, topic, name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "joined\n", "no partition; stderr has where it waited"
            yield child
        finally:
            child.kill()


def seconds_to_join(kafka: NativeKafka | GivenKafka, topic: str, name: str, s_max: float) -> float:
    positions = MemoryPositionStore()
    options = {"client_id": client_id(name)}
    source = open_source(
        kafka, positions, topic, group_id=topic, session_timeout_s=SESSION_S, assign="group", options=options
    )
    reader, began_s = SourceReader(source, positions, {}), time.monotonic()
    try:
        while not source.positions() and time.monotonic() - began_s < s_max:
            reader.turn()
        return time.monotonic() - began_s
    finally:
        source.close()


def test_an_analyzer_that_restarts_after_a_sigkill_continues_at_once(
    real_kafka: NativeKafka | GivenKafka,
) -> None:
    topic = real_kafka.create_topic()
    with member(real_kafka, topic, "web-1") as child:
        child.send_signal(signal.SIGKILL)
        child.wait(5)
        assert seconds_to_join(real_kafka, topic, "web-1", SESSION_S) < SESSION_S / 3


@pytest.mark.parametrize("name", ["web-2", "web"])
def test_dead_members_of_another_analyzer_are_left_alone(
    real_kafka: NativeKafka | GivenKafka, name: str
) -> None:
    topic = real_kafka.create_topic()
    with member(real_kafka, topic, "web-1") as child:
        child.send_signal(signal.SIGKILL)
        child.wait(5)
        began_s = time.monotonic()
        assert remove_dead_members(options_of(real_kafka, topic, name), f"gatelock-{name}") == 0
        assert time.monotonic() - began_s < JOIN_S_MAX, "no member was taken for dead"


def test_a_living_member_is_not_removed(real_kafka: NativeKafka | GivenKafka) -> None:
    topic = real_kafka.create_topic()
    with member(real_kafka, topic, "web-1"):
        began_s = time.monotonic()
        assert remove_dead_members(options_of(real_kafka, topic, "web-1"), "gatelock-web-1") == 0
        assert time.monotonic() - began_s < JOIN_S_MAX, "no member was taken for dead"


def test_dead_members_stay_in_a_group_that_we_have_not_joined(real_kafka: NativeKafka | GivenKafka) -> None:
    """An empty group would wait for more members when we join."""
    topic = real_kafka.create_topic()
    with member(real_kafka, topic, "web-1") as child:
        child.send_signal(signal.SIGKILL)
        child.wait(5)
        options = options_of(real_kafka, topic, "web-1")
        assert remove_dead_members(options, "gatelock-web-1", join_s_max=0.1) == 0


def options_of(kafka: NativeKafka | GivenKafka, topic: str, name: str) -> dict[str, str]:
    return {"bootstrap_servers": kafka.bootstrap, "group_id": topic, "client_id": client_id(name)}


def test_with_a_foreign_client_id_no_group_is_asked() -> None:
    before = threading.active_count()
    remove_dead_members_soon({"bootstrap_servers": "127.0.0.1:1", "client_id": "mine"})
    assert threading.active_count() == before
