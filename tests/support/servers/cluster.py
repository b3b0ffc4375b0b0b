"""Three Kafka nodes, each broker and controller: one may die, and the other two go on."""

from __future__ import annotations

import re
import time
from pathlib import Path

from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient

from tests.support.servers.child import START_S_MAX, accepts, free_port
from tests.support.servers.kafka import NativeKafka, new_id, new_name

NODES = 3


class KafkaCluster:
    """Keeps its data below `folder` until you delete it."""

    def __init__(self, folder: Path) -> None:
        """Raises Missing."""
        near = [free_port() for _ in range(NODES)]
        controllers = [f"127.0.0.1:{free_port()}" for _ in range(NODES)]
        voters = ",".join(f"{number}@{address}" for number, address in enumerate(controllers, 1))
        kept_by_all = {
            f"{name}.replication.factor": NODES
            for name in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
        }
        self.nodes: dict[int, NativeKafka] = {}
        cluster = new_id()
        for number, (port, controller) in enumerate(zip(near, controllers, strict=True), 1):
            home = folder / f"node-{number}"
            home.mkdir()
            node = NativeKafka(
                home,
                port,
                {
                    **kept_by_all,
                    "node.id": number,
                    "controller.quorum.voters": voters,
                    "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://{controller}",
                    "transaction.state.log.min.isr": 2,
                    "share.coordinator.state.topic.min.isr": 2,
                },
            )
            node._format()
            named = home / "data" / "meta.properties"
            text = re.sub(r"(?m)^cluster\.id=.*$", f"cluster.id={cluster}", named.read_text())
            named.write_text(re.sub(r"(?m)^node\.id=.*$", f"node.id={number}", text))
            self.nodes[number] = node
        self.bootstrap = ",".join(node.bootstrap for node in self.nodes.values())
        self.kind = f"{NODES} nodes of {self.nodes[1].home.version}"

    def start(self) -> None:
        """Returns when clients may connect to each. A node alone opens no door: it takes two to agree."""
        for number in self.nodes:
            self.start_again(number)
        until_s = time.monotonic() + START_S_MAX
        while not all(accepts(node.port) for node in self.nodes.values()):
            assert time.monotonic() < until_s, [node._child.log[-1000:] for node in self.nodes.values()]
            time.sleep(0.05)

    def start_again(self, number: int) -> None:
        """Let a node that was killed come back; does not wait for it."""
        self.nodes[number]._child.start(ready=lambda: True)

    def create_topic(self, partitions: int) -> str:
        """A topic that every node keeps, and of which two must have what is acknowledged."""
        name = new_name()
        wanted = {"num_partitions": partitions, "replication_factor": NODES,
                  "configs": {"min.insync.replicas": 2}}  # fmt: skip
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            admin.create_topics({name: wanted}, wait_for_metadata=True)
        finally:
            admin.close()
        return name

    def leader(self, topic: str, partition: int) -> int:
        """Which node leads; -1 while there is none."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return int(admin.list_topics(topic, timeout=10).topics[topic].partitions[partition].leader)

    def close(self) -> None:
        for node in self.nodes.values():
            node.close()
