"""Three brokers of which one dies, and records whose clock does not know what year it is."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from tests.faults.fleet import Fleet
from tests.support.servers import Missing
from tests.support.servers.cluster import KafkaCluster
from tests.support.servers.report import ServersUsed

PARTITIONS = 3
pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(servers: ServersUsed) -> Iterator[KafkaCluster]:
    with tempfile.TemporaryDirectory(prefix="gatelock-kafka-", ignore_cleanup_errors=True) as folder:
        try:
            cluster = KafkaCluster(Path(folder))
        except Missing as missing:
            servers.lacks("kafka", missing)
        try:
            cluster.start()
            servers.found("kafka", cluster.kind)
            yield cluster
        finally:
            cluster.close()


def wait_until(true: Callable[[], bool], within_s: float = 30.0) -> None:
    until_s = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < until_s
        time.sleep(0.05)


def test_a_leader_that_is_killed_among_three_brokers_is_not_seen_in_the_counts(
    cluster: KafkaCluster, postgres: object, tmp_path: Path, random: Random
) -> None:
    topic = cluster.create_topic(PARTITIONS)
    fleet = Fleet(tmp_path, postgres.new_database(), cluster.bootstrap, topic, PARTITIONS)
    try:
        fleet.join()
        traffic = fleet.traffic(random)
        traffic.start()
        fleet.wait_until_seen(1_000)
        first = cluster.leader(topic, 0)
        cluster.nodes[first].kill()
        wait_until(lambda: cluster.leader(topic, 0) not in (first, -1))
        fleet.wait_until_seen(fleet.seen() + 2_000)  # the others lead, and it goes on
        cluster.start_again(first)
        fleet.wait_until_seen(fleet.seen() + 2_000)  # while it catches up
        traffic.stop()
        fleet.wait_until_seen(traffic.truth.records)
        assert fleet.counts() == traffic.truth.counts
        assert all(member.poll() is None for member in fleet.members)
    finally:
        fleet.close()
