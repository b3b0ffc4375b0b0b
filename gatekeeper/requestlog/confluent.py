"""A request log in a Kafka topic, through librdkafka. Needs confluent-kafka."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from gatekeeper.requestlog.acknowledged import ABANDONED, IN_FLIGHT_MAX, AcknowledgedSink
from gatekeeper.requestlog.background_writer import run_first_at_exit
from gatekeeper.requestlog.log_record import LogLine

try:
    from confluent_kafka import KafkaException, Producer
except ImportError as missing:
    raise ImportError("gatekeeper.requestlog.confluent needs confluent-kafka: install it") from missing

__all__ = ["ConfluentSink"]

CONNECT_S = 2.0  # per attempt to find the topic; only the writer's thread waits
CLOSE_S = 1.0

# Equal to those of KafkaSink.
DEFAULTS: Mapping[str, Any] = {
    "client.id": "gatelock-requestlog",
    "enable.idempotence": True,  # a record that is sent again after a lost reply is stored once
    "linger.ms": 5,
    "delivery.timeout.ms": 600_000,
    "allow.auto.create.topics": False,
    "partitioner": "murmur2_random",  # as kafka-python and Java: callers stay in their partitions
    "log.connection.close": False,
}
RESERVED_OPTIONS = ("bootstrap.servers", "partitioner", "transactional.id", "on_delivery", "logger")

log = logging.getLogger("gatekeeper")


class ConfluentSink(AcknowledgedSink):
    """Sends records to a Kafka topic, at a fraction of the CPU time that `KafkaSink` needs.

    Records, keys, partitions and guarantees are those of `KafkaSink`, so both may write to one topic. The
    options have librdkafka's names.

    Connects with the first record, in each process separately. While the brokers are unavailable, `in_flight`
    records wait here, and then the log's buffer fills.

    Args:
        bootstrap_servers: "HOST:PORT", or several of them.
        topic: The topic; it must exist.
        in_flight: Records that Kafka has not acknowledged yet, at most.
        options: Options of librdkafka's producer: security, compression, time-outs.

    Raises:
        ValueError: An option is unknown, reserved or invalid, or `in_flight` is below 1.

    Example:
        >>> sink = ConfluentSink("localhost:9092", "requests", options={"compression.type": "zstd"})
        >>> sink.write([])  # RequestLog(app, to=sink) writes; the first record connects
        WriteOutcome(taken=0, written=0, lost=0, trouble='')
    """

    errors = (KafkaException, BufferError, OSError, ValueError)

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        topic: str,
        *,
        in_flight: int = IN_FLIGHT_MAX,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        options = dict(options or {})
        if reserved := options.keys() & set(RESERVED_OPTIONS):
            raise ValueError(f"options: {', '.join(sorted(reserved))} cannot be changed: remove it")
        try:
            Producer({**DEFAULTS, **options}, logger=log)  # without servers: it only checks the options
        except KafkaException as error:
            raise ValueError(f"options: {error.args[0].str()}") from error
        servers = bootstrap_servers if isinstance(bootstrap_servers, str) else ",".join(bootstrap_servers)
        self._options = {**DEFAULTS, **options, "bootstrap.servers": servers}
        super().__init__(topic, in_flight)

    def _reset(self) -> None:
        super()._reset()
        self._is_ready = False  # whether the topic was found
        self._delivered = self._failed = 0

    def _send(self, line: LogLine) -> None:
        if not self._is_ready:
            self._connect()
        key = line.key.encode("utf-8", "replace") if line.key else None
        self._producer.produce(self._topic, line.text[:-1], key, on_delivery=self._on_delivery)

    def _connect(self) -> None:
        """Finds the topic. Records sent before that would be lost after half a minute without it."""
        if self._producer is None:
            self._producer = Producer(self._options, logger=log)
            run_first_at_exit()
        metadata = self._producer.list_topics(self._topic, CONNECT_S).topics[self._topic]
        if metadata.error is not None:
            raise KafkaException(metadata.error)
        self._is_ready = True

    def _on_delivery(self, error: Any, _message: object) -> None:
        if error is None:
            self._delivered += 1
        else:
            self._failed += 1
            self._failure = f"Kafka, topic {self._topic}: {error.str()}"

    def _settled(self) -> tuple[int, int]:
        if self._producer is not None:
            self._producer.poll(0)  # calls `_on_delivery`
        return self._delivered, self._failed

    def close(self) -> None:
        """Closes the producer; a later `write` connects again."""
        if self._producer is not None:
            self._producer.flush(CLOSE_S)
            # Records that it has not sent are lost with it, and no longer count as waiting.
            self._producer.purge()
            self._producer.flush(CLOSE_S)
            # On a busy machine librdkafka may not have reported all of them by then.
            if unreported := self._taken - self._delivered - self._failed:
                self._failed += unreported
                self._failure = f"Kafka, topic {self._topic}: closed before a broker answered"
            self._producer, self._is_ready = None, False

    def forked(self) -> None:
        """Abandons the parent's producer in a forked child."""
        if self._producer is not None:
            abandon(self._producer)
        self._reset()


def abandon(producer: Producer) -> None:
    """Keeps `producer` referenced for good: its release waits for threads that a child does not have."""
    import ctypes

    # References from Python end when the interpreter does.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(producer))
    ABANDONED.append(producer)
