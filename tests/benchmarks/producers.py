"""A producer that is flushed when it is left: it would report undelivered records on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer

from tests.benchmarks.servers import Servers

FLUSHED_WITHIN_S = 5.0


@contextmanager
def producing(servers: Servers, linger_ms: int = 0) -> Iterator[Producer]:
    producer = Producer({"bootstrap.servers": servers.kafka.bootstrap, "linger.ms": linger_ms})
    try:
        yield producer
    finally:
        producer.flush(FLUSHED_WITHIN_S)
