"""A real Kafka and a real PostgreSQL for the time of a measurement, found as the tests find them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.servers.kafka import Kafka, find_kafka
from tests.support.servers.postgres import Postgres, find_postgres

# As somebody has it who counts millions of callers: what is written stays in memory, and no checkpoint
# comes in every few flushes. PostgreSQL's own defaults are for a machine of 1 GB.
AS_IN_PRODUCTION = {"shared_buffers": "1GB", "max_wal_size": "4GB"}


class Servers(NamedTuple):
    kafka: Kafka
    postgres: Postgres
    folder: Path


@contextmanager
def servers() -> Iterator[Servers]:
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="gatelock-bench-")))
        for name in ("kafka", "postgres"):
            (folder / name).mkdir(mode=0o755)
        folder.chmod(0o755)
        kafka = find_kafka(folder / "kafka")
        held.callback(kafka.close)
        postgres = find_postgres(folder / "postgres", AS_IN_PRODUCTION)
        held.callback(postgres.close)
        print(f"servers: kafka {kafka.kind}, postgresql {postgres.kind}")
        yield Servers(kafka, postgres, folder)
