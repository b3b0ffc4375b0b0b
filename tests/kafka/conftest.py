from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import Authority
from tests.support.servers import Missing
from tests.support.servers.report import ServersUsed
from tests.support.servers.secured import PASSWORD, USER, SecuredKafka


@pytest.fixture(scope="session")
def secured(servers: ServersUsed) -> Iterator[SecuredKafka]:
    """A broker that asks who comes, started once. `USER` comes in by SCRAM, `plain` by PLAIN."""
    with tempfile.TemporaryDirectory(prefix="gatelock-kafka-", ignore_cleanup_errors=True) as folder:
        try:
            broker = SecuredKafka(Path(folder), {"plain": "plain-secret"})
        except Missing as missing:
            servers.lacks("kafka", missing)
        broker.start()
        servers.found("kafka", broker.kind)
        broker.add_scram(USER, PASSWORD)
        broker.add_scram("nobody", PASSWORD)
        broker.authority.issue("client")
        broker.authority.issue("locked", "key-secret")
        Authority(broker.folder, "stranger").issue("impostor")
        yield broker
        broker.close()
