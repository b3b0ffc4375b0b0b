"""A Kafka cluster of three nodes, each broker and controller: two continue when one dies."""

from __future__ import annotations

import re
from pathlib import Path

from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient

from tests.support.servers.child import START_S_MAX, accepts, free_port
from tests.support.servers.kafka import NativeKafka, new_id, new_name
from tests.support.waiting import wait_until

NODES = 3


class KafkaCluster:
    """Three nodes on 127.0.0.1 that keep their data below `folder`, which the caller deletes."""

    def __init__(self, folder: Path) -> None:
        """Raises Missing."""
        ports = [free_port() for _ in range(NODES)]
        controllers = [f"127.0.0.1:{free_port()}" for _ in range(NODES)]
        voters = ",".join(f"{number}@{address}" for number, address in enumerate(controllers, 1))
        replication = {
            f"{name}.replication.factor": NODES
            for name in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
        }
        self.nodes: dict[int, NativeKafka] = {}
        cluster = new_id()
        for number, (port, controller) in enumerate(zip(ports, controllers, strict=True), 1):
            home = folder / f"node-{number}"
            home.mkdir()
            node = NativeKafka(
                home,
                port,
                {
                    **replication,
                    "node.id": number,
                    "controller.quorum.voters": voters,
                    "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://{controller}",
                    "transaction.state.log.min.isr": 2,
                    "share.coordinator.state.topic.min.isr": 2,
                },
            )
            node._format()
            meta = home / "data" / "meta.properties"
            text = re.sub(r"(?m)^cluster\.id=.*$", f"cluster.id={cluster}", meta.read_text())
            meta.write_text(re.sub(r"(?m)^node\.id=.*$", f"node.id={number}", text))
            self.nodes[number] = node
        self.bootstrap = ",".join(node.bootstrap for node in self.nodes.values())
        self.kind = f"{NODES} nodes of {self.nodes[1].home.version}"

    def start(self) -> None:
        """Returns when clients can connect to each node; none listens before two of them agree."""
        for number in self.nodes:
            self.start_again(number)
        wait_until(
            lambda: all(accepts(node.port) for node in self.nodes.values()),
            START_S_MAX,
            lambda: [node._child.log[-1000:] for node in self.nodes.values()],
            every_s=0.05,
        )

    def start_again(self, number: int) -> None:
        """Starts a node that was killed; does not wait until it is ready."""
        self.nodes[number]._child.start(ready=lambda: True)

    def create_topic(self, partitions: int) -> str:
        """Creates a topic with a replica on each node; two must have a record before it is acknowledged."""
        name = new_name()
        options = {"num_partitions": partitions, "replication_factor": NODES,
                  "configs": {"min.insync.replicas": 2}}  # fmt: skip
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            admin.create_topics({name: options}, wait_for_metadata=True)
        finally:
            admin.close()
        return name

    def leader(self, topic: str, partition: int) -> int:
        """Returns the number of the partition's leader; -1 while there is none."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return int(admin.list_topics(topic, timeout=10).topics[topic].partitions[partition].leader)

    def close(self) -> None:
        for node in self.nodes.values():
            node.close()
