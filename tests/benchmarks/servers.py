"""A real Kafka and a real PostgreSQL for a measurement, found as the tests find them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.servers.kafka import Kafka, find_kafka
from tests.support.servers.postgres import Postgres, find_postgres

# For millions of callers: written pages stay in memory, and checkpoints are rare. PostgreSQL's defaults are
# for a machine of 1 GB. Commits wait for the disk, as in production.
AS_IN_PRODUCTION = {"shared_buffers": "1GB", "max_wal_size": "4GB", "fsync": "on"}


class Servers(NamedTuple):
    kafka: Kafka
    postgres: Postgres
    folder: Path


@contextmanager
def servers() -> Iterator[Servers]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gatelock-bench-")))
        for name in ("kafka", "postgres"):
            (folder / name).mkdir(mode=0o755)
        folder.chmod(0o755)
        kafka = find_kafka(folder / "kafka")
        stack.callback(kafka.close)
        postgres = find_postgres(folder / "postgres", AS_IN_PRODUCTION)
        stack.callback(postgres.close)
        print(f"servers: kafka {kafka.kind}, postgresql {postgres.kind}")
        yield Servers(kafka, postgres, folder)
