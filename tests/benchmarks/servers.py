"""A real Kafka and a real PostgreSQL for the time of a measurement, found as the tests find them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.servers.kafka import Kafka, find_kafka
from tests.support.servers.postgres import Postgres, find_postgres


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
        postgres = find_postgres(folder / "postgres")
        held.callback(postgres.close)
        print(f"servers: kafka {kafka.kind}, postgresql {postgres.kind}")
        yield Servers(kafka, postgres, folder)
