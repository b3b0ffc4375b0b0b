"""Fixtures for sources on Kafka: installations, and a broker with authentication."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient

from tests.support.certificates import Authority
from tests.support.installation import Installation, RealKafka
from tests.support.servers import Missing
from tests.support.servers.report import ServersUsed
from tests.support.servers.secured import PASSWORD, USER, SecuredKafka


@pytest.fixture
def new(real_kafka: RealKafka, tmp_path: Path) -> Iterator[Callable[..., Installation]]:
    """Makes installations on the shared broker, and ends them."""
    made = []

    def new(*topics: str, metadata_ms: int = 500) -> Installation:
        made.append(Installation(tmp_path, real_kafka.bootstrap, topics, metadata_ms=metadata_ms))
        return made[-1]

    yield new
    for installation in made:
        installation.close()


@pytest.fixture
def admin(real_kafka: RealKafka) -> Iterator[KafkaAdminClient]:
    admin = KafkaAdminClient(bootstrap_servers=real_kafka.bootstrap)
    yield admin
    admin.close()


@pytest.fixture(scope="session")
def secured(servers: ServersUsed) -> Iterator[SecuredKafka]:
    """A broker that authenticates its clients, started once: `USER` by SCRAM, `plain` by PLAIN."""
    with tempfile.TemporaryDirectory(prefix="gatelock-kafka-", ignore_cleanup_errors=True) as folder:
        try:
            broker = SecuredKafka(Path(folder), {"plain": "plain-secret"})
        except Missing as missing:
            servers.lacks("kafka", missing)
        broker.start()
        servers.found("kafka", broker.kind)
        broker.add_scram(USER, PASSWORD)
        broker.add_scram("guest", PASSWORD)
        broker.authority.issue("client")
        broker.authority.issue("locked", "key-secret")
        Authority(broker.folder, "other-authority").issue("impostor")
        yield broker
        broker.close()
