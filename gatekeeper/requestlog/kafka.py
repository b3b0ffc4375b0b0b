"""A request log in a Kafka topic. Needs kafka-python: pip install 'gatelock[kafka]'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gatekeeper.requestlog.acknowledged import ABANDONED, IN_FLIGHT_MAX, AcknowledgedSink
from gatekeeper.requestlog.background_writer import run_first_at_exit
from gatekeeper.requestlog.log_record import LogLine
from gatekeeper.telemetry.atomic_counts import AtomicCounts

try:
    from kafka import KafkaProducer
    from kafka.errors import KafkaError
    from kafka.partitioner import DefaultPartitioner
except ImportError as missing:
    raise ImportError(
        "gatekeeper.requestlog.kafka needs kafka-python: pip install 'gatelock[kafka]'"
    ) from missing

__all__ = ["KafkaSink"]

DEFAULTS: Mapping[str, Any] = {
    "client_id": "gatelock-requestlog",
    "acks": "all",
    "enable_idempotence": True,  # a record that is sent again after a lost reply is stored once
    "linger_ms": 5,  # the background writer has batched already
    # A write of the background writer fits in. Behind a full batch each record wakes the producer.
    "batch_size": 256 << 10,
    # A record waits this long for an unavailable broker; then it is lost, and counted.
    "delivery_timeout_ms": 600_000,
    "request_timeout_ms": 10_000,
    "max_block_ms": 2_000,  # per attempt; only the writer's thread waits
    "bootstrap_timeout_ms": 5_000,
    "reconnect_backoff_max_ms": 1_000,
    "allow_auto_create_topics": False,  # otherwise a typo in the name creates a topic
}
KEYS_MAX = 10_000  # callers whose partition is kept, about 2 MB
RESERVED_OPTIONS = ("key_serializer", "value_serializer", "partitioner", "transactional_id", "kafka_client")


class MemoizedPartitioner(DefaultPartitioner):  # type: ignore[misc]  # kafka-python has no types
    """kafka-python's partitions for keys; hashing a key in Python takes as long as encoding its record."""

    def __init__(self) -> None:
        self._partitions: dict[bytes, int] = {}
        self._count = 0  # of the topic's partitions

    def partition(
        self, topic: str, key: Any, key_bytes: bytes | None, value: Any, value_bytes: bytes, cluster: Any
    ) -> int:
        count = len(cluster.partitions_for_topic(topic) or ())
        if count != self._count or len(self._partitions) >= KEYS_MAX:
            self._partitions, self._count = {}, count
        cached = None if key_bytes is None else self._partitions.get(key_bytes)
        if cached is not None:
            return cached
        number = int(super().partition(topic, key, key_bytes, value, value_bytes, cluster))
        if key_bytes is not None:
            self._partitions[key_bytes] = number
        return number


class KafkaSink(AcknowledgedSink):
    """Sends records to a Kafka topic.

    A record's key is its caller. All records of a caller are in one partition, in their order, so analyzers
    seldom wait for each other over a caller's total, and a duplicate is in the same partition as its
    original. A flood of one caller delays one partition.

    Connects with the first record, in each process separately. While the brokers are unavailable, `in_flight`
    records wait here, and then the log's buffer fills.

    Args:
        bootstrap_servers: "HOST:PORT", or several of them.
        topic: The topic; it must exist.
        in_flight: Records that Kafka has not acknowledged yet, at most.
        options: Options of kafka-python's producer: security, compression, time-outs.

    Raises:
        ValueError: An option is unknown or reserved, or `in_flight` is below 1.

    Example:
        >>> sink = KafkaSink("localhost:9092", "requests", options={"compression_type": "gzip"})
        >>> sink.write([])  # RequestLog(app, to=sink) writes; the first record connects
        WriteOutcome(taken=0, written=0, lost=0, trouble='')
    """

    errors = (KafkaError, OSError, ValueError)

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        topic: str,
        *,
        in_flight: int = IN_FLIGHT_MAX,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        options = dict(options or {})
        if unknown := options.keys() - KafkaProducer.DEFAULT_CONFIG.keys():
            raise ValueError(f"options: kafka-python's producer has no option {', '.join(sorted(unknown))}")
        if reserved := options.keys() & set(RESERVED_OPTIONS):
            raise ValueError(f"options: {', '.join(sorted(reserved))} cannot be changed: remove it")
        self._options = {**DEFAULTS, **options, "bootstrap_servers": bootstrap_servers}
        super().__init__(topic, in_flight)

    def _reset(self) -> None:
        super()._reset()
        # The producer's thread adds, the writer's thread reads.
        self._delivered, self._failed = AtomicCounts(), AtomicCounts()

    def _send(self, line: LogLine) -> None:
        if self._producer is None:
            self._producer = KafkaProducer(**self._options, partitioner=MemoizedPartitioner())
            run_first_at_exit()  # before the producer's own exit hook: waiting records must still be sent
        key = line.key.encode("utf-8", "replace") if line.key else None
        future = self._producer.send(self._topic, line.text.removesuffix(b"\n"), key=key)
        future.add_callback(self._on_delivered)
        future.add_errback(self._on_failed)

    def _on_delivered(self, _metadata: object) -> None:
        self._delivered.add()

    def _on_failed(self, error: object) -> None:
        self._failure = f"Kafka, topic {self._topic}: {error}"
        self._failed.add()

    def _settled(self) -> tuple[int, int]:
        return self._delivered.read(), self._failed.read()

    def close(self) -> None:
        """Closes the producer; a later `write` connects again."""
        if self._producer is not None:
            self._producer.close(timeout=1)
            # Records that it has not sent are lost with it, and no longer count as waiting.
            self._producer = None

    def forked(self) -> None:
        """Abandons the parent's producer in a forked child."""
        if self._producer is not None:
            # Its sockets are shared with the parent, its thread does not exist here, and its mutexes may be
            # held. Marked as closed, and referenced, so that nothing of it runs when the child ends.
            self._producer._closed = True
            ABANDONED.append(self._producer)
        self._reset()
