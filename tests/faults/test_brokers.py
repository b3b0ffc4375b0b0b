"""Three brokers, of which the leader of a partition is killed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.faults.fleet import Fleet
from tests.support.servers import Missing
from tests.support.servers.cluster import KafkaCluster
from tests.support.servers.report import ServersUsed
from tests.support.waiting import wait_until

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


@pytest.mark.deep("three brokers")
def test_a_killed_leader_of_three_brokers_changes_no_count(
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
        fleet.wait_until_seen(fleet.seen() + 2_000)  # another broker leads, and counting continues
        cluster.start_again(first)
        fleet.wait_until_seen(fleet.seen() + 2_000)  # while the first one catches up
        traffic.stop()
        fleet.wait_until_seen(traffic.expected.records)
        assert fleet.counts() == traffic.expected.counts
        assert all(member.poll() is None for member in fleet.members)
    finally:
        fleet.close()
