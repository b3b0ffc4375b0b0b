"""Kafka for tests: a broker that is started here, one at a given address, or librdkafka's mock.

Each has `client`, the options that kafka-python needs in addition to `bootstrap_servers`, and `real`, which
is False for the mock: it has no groups that kafka-python can use, and keeps no data.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import signal
import subprocess
import uuid
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from confluent_kafka import Producer
from kafka import KafkaAdminClient

from tests.support.servers import Missing, container_engine
from tests.support.servers.child import Child, accepts, free_port
from tests.support.servers.kafka_home import KafkaHome, find_home

Config = Mapping[str, str | int]

# Short time-outs: with the defaults a killed broker may register again after nine seconds, and a group waits
# three seconds for its first member.
QUICK: Config = {
    "auto.create.topics.enable": "false",  # a misspelt name must not become a topic
    "broker.heartbeat.interval.ms": 200,
    "broker.session.timeout.ms": 1000,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "group.consumer.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": 6000,
    "group.consumer.min.heartbeat.interval.ms": 200,
    "group.consumer.heartbeat.interval.ms": 1000,
    "log.retention.check.interval.ms": 1000,
    "log.cleaner.backoff.ms": 500,
    "metadata.max.idle.interval.ms": 0,  # no empty records into the metadata log
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "share.coordinator.state.topic.num.partitions": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
}

# Of a broker that no test kills or pauses: five heartbeats a second take a hundredth of a core all the time.
NEVER_KILLED: Config = {"broker.heartbeat.interval.ms": 2000, "broker.session.timeout.ms": 9000}

LOG4J = """\
status=error
rootLogger.level=warn
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=[%d] %p %m (%c)%n
"""


class NativeKafka:
    """One KRaft node on 127.0.0.1 that keeps its data in `folder`, which the caller deletes.

    A killed node starts again with every record that it had acknowledged.
    """

    real: Literal[True] = True
    client: Mapping[str, Any] = {}

    def __init__(
        self,
        folder: Path,
        port: int | None = None,
        config: Config | None = None,
        *,
        home: KafkaHome | None = None,
        archive_to: Path | None = None,
    ) -> None:
        """`config` overrides settings of server.properties. Raises Missing."""
        self.home = home or find_home()
        self.port = port or free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.kind = f"native {self.home.version}"
        self.folder = folder
        self._write_settings(config or {})
        command = self.home.command("kafka.Kafka", "server.properties", archive_to=archive_to)
        self._child = Child(command, folder, parent_death_signal=signal.SIGKILL)

    def create_topic(self, name: str = "", partitions: int = 4, configs: Config | None = None) -> str:
        return create_topic(self, name, partitions, configs)

    def start(self) -> None:
        """Returns when clients can connect: the port opens only when requests are served."""
        if not (self.folder / "data").exists():
            self._format()
        self._child.start(ready=lambda: accepts(self.port))

    def stop(self) -> None:
        """Shuts the broker down cleanly."""
        self._child.end(signal.SIGTERM)

    def kill(self) -> None:
        self._child.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        self._child.pause()

    def resume(self) -> None:
        self._child.resume()

    def close(self) -> None:
        self.kill()

    def _write_settings(self, config: Config) -> None:
        controller = f"127.0.0.1:{free_port()}"
        settings: Config = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{controller}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "log.dirs": "data",
            **QUICK,
            **config,
        }
        lines = [f"{name}={value}\n" for name, value in settings.items()]
        (self.folder / "server.properties").write_text("".join(lines))
        (self.folder / "log4j2.properties").write_text(LOG4J)

    def _format(self) -> None:
        """Formats an empty data folder as Kafka's own tool does.

        The tool takes three seconds; its output differs between nodes only by the ids.
        """
        data = self.folder / "data"
        if not self.home.checkpoint.exists():
            tool = ("kafka.tools.StorageTool", "format", "-c", "server.properties", "-t", new_id())
            subprocess.run(self.home.command(*tool), cwd=self.folder, check=True, capture_output=True)
            self.home.checkpoint.write_bytes((data / "bootstrap.checkpoint").read_bytes())
            return
        data.mkdir()
        shutil.copyfile(self.home.checkpoint, data / "bootstrap.checkpoint")
        ids = f"cluster.id={new_id()}\ndirectory.id={new_id()}\n"
        (data / "meta.properties").write_text(f"version=1\nnode.id=1\n{ids}")


class GivenKafka:
    """A broker that was not started here: at an address from the environment, or in a container."""

    real: Literal[True] = True
    client: Mapping[str, Any] = {}

    def __init__(self, bootstrap: str, kind: str, container: Any = None) -> None:
        self.bootstrap = bootstrap
        self.kind = kind
        self._container = container

    def create_topic(self, name: str = "", partitions: int = 4, configs: Config | None = None) -> str:
        return create_topic(self, name, partitions, configs)

    def close(self) -> None:
        if self._container is not None:
            self._container.stop()


class MockKafka:
    """The mock broker in confluent-kafka's wheel: records and offsets in this process.

    kafka-python can read from it with `assign()` only, and needs the option `api_version`.
    """

    real: Literal[False] = False
    client: Mapping[str, Any] = {"api_version": (2, 3)}
    partitions = 4  # of every topic; the mock has no option for it

    def __init__(self, kind: str = "mock") -> None:
        self.kind = kind
        self._cluster = Producer({"test.mock.num.brokers": 1, "log_level": 0})
        self.bootstrap = ",".join(
            f"{broker.host}:{broker.port}" for broker in self._cluster.list_topics().brokers.values()
        )

    def create_topic(self, name: str = "", partitions: int = 4, configs: Config | None = None) -> str:
        """Creates a topic of four partitions. Raises Missing for another number, or with `configs`."""
        if partitions != self.partitions or configs:
            raise Missing("the mock's topics have four partitions and no configuration")
        name = name or new_name()
        self._cluster.list_topics(name)  # creates it
        return name

    def close(self) -> None:
        del self._cluster


Kafka = NativeKafka | GivenKafka | MockKafka


def find_kafka(folder: Path) -> Kafka:
    """Returns the first Kafka that is available: at an address, in a container, native, the mock."""
    if address := os.environ.get("GATELOCK_TEST_KAFKA"):
        return GivenKafka(address, f"at {address}")
    with contextlib.suppress(Missing):
        return kafka_container()
    try:
        native = NativeKafka(folder, config=NEVER_KILLED)
    except Missing as missing:
        return MockKafka(f"mock ({missing})")
    native.start()
    return native


def kafka_container() -> GivenKafka:
    """Starts a broker in a container. Raises Missing."""
    container_engine()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of testcontainers
        from docker.errors import DockerException
        from testcontainers.community.kafka import KafkaContainer

        try:
            container = KafkaContainer().with_kraft().with_env("KAFKA_BROKER_SESSION_TIMEOUT_MS", "1000")
            container.start()
        except (DockerException, OSError, TimeoutError) as error:
            raise Missing(f"no container: {error}") from error
    return GivenKafka(container.get_bootstrap_server(), f"container {container.image}", container)


def create_topic(kafka: NativeKafka | GivenKafka, name: str, partitions: int, configs: Config | None) -> str:
    """Creates a topic, with a random name unless `name` is given; returns the name.

    Do not create a topic again after deleting it, unless the test is about that: clients continue in the new
    one at their old offset.
    """
    name = name or new_name()
    options = {"num_partitions": partitions, "replication_factor": 1, "configs": dict(configs or {})}
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap, **kafka.client)
    try:
        admin.create_topics({name: options}, wait_for_metadata=True)
    finally:
        admin.close()
    return name


def new_name() -> str:
    return f"requests-{uuid.uuid4().hex[:12]}"


def new_id() -> str:
    """Returns a random id in Kafka's format; Kafka's ids never begin with a dash."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text
