"""A producer for a measurement, which writes nothing to standard error.

It is flushed when it is left: the client would report records that were not delivered.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer

from tests.benchmarks.servers import Servers

FLUSHED_WITHIN_S = 60.0


@contextmanager
def producing(servers: Servers, linger_ms: int = 0, **settings: str | int) -> Iterator[Producer]:
    """Yields a producer; in the names of `settings`, `_` stands for a dot."""
    producer = Producer({
        "bootstrap.servers": servers.kafka.bootstrap,
        "linger.ms": linger_ms,
        "log_level": 0,  # a broker may end before its clients
        **{name.replace("_", "."): value for name, value in settings.items()},
    })  # fmt: skip
    try:
        yield producer
    finally:
        producer.flush(FLUSHED_WITHIN_S)
