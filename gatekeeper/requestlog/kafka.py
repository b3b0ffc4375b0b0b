"""A request log in a Kafka topic. Needs kafka-python: install gatelock[kafka]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gatekeeper.requestlog.background_writer import WriteOutcome, run_first_at_exit
from gatekeeper.requestlog.log_record import LogLine
from gatekeeper.telemetry.atomic_counts import AtomicCounts

try:
    from kafka import KafkaProducer
    from kafka.errors import KafkaError
except ImportError as missing:
    raise ImportError("gatekeeper.requestlog.kafka needs kafka-python: install gatelock[kafka]") from missing

VAIN_MAX = 5  # looks in a row, within half a second, that find it as full as before: then that is a trouble
IN_FLIGHT_MAX = 10_000  # records that the producer holds, some 10 MB: while a broker is away it holds them

DEFAULTS: Mapping[str, Any] = {
    "client_id": "gatelock-requestlog",
    "acks": "all",
    "enable_idempotence": True,  # what is sent again after a lost answer is there once
    "linger_ms": 5,  # our writer has gathered already
    # For so long a record waits for a broker that is away; then it is lost, and counted.
    "delivery_timeout_ms": 600_000,
    "request_timeout_ms": 10_000,
    "max_block_ms": 2_000,  # per attempt: nobody but our own thread waits for it
    "bootstrap_timeout_ms": 5_000,
    "reconnect_backoff_max_ms": 1_000,
    "allow_auto_create_topics": False,  # or a typo in its name becomes a topic
}
OURS = ("key_serializer", "value_serializer", "partitioner", "transactional_id", "kafka_client")


class KafkaSink:
    """Sends records to `topic`, for `RequestLog(app, to=KafkaSink("localhost:9092", "requests"))`.

    A record's key is its caller. So all of a caller's records are in one partition, in their order: two
    analyzers seldom wait for each other over a caller's total, and a record that was sent twice meets its
    twin. One caller's flood holds up one partition.

    `options` are those of kafka-python's producer: security, compression, time-outs. While the brokers are
    away `in_flight` records wait here, and then the log's buffer fills. Connects when the first record is
    there, and in each process for itself. Raises ValueError for an option that there is not.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        topic: str,
        *,
        in_flight: int = IN_FLIGHT_MAX,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        given = dict(options or {})
        if unknown := given.keys() - KafkaProducer.DEFAULT_CONFIG.keys():
            raise ValueError(f"kafka-python's producer knows no option {', '.join(sorted(unknown))}")
        if ours := given.keys() & set(OURS):
            raise ValueError(f"not a matter of choice: {', '.join(sorted(ours))}")
        if in_flight < 1:
            raise ValueError(f"in_flight: expected at least 1 record, got {in_flight}")
        self._options = {**DEFAULTS, **given, "bootstrap_servers": bootstrap_servers}
        self._topic = topic
        self._in_flight_max = in_flight
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._producer: Any = None
        # Added to by the producer's thread, read by the log's.
        self._delivered, self._failed = AtomicCounts(), AtomicCounts()
        self._taken = self._known_delivered = self._known_failed = 0
        self._why = ""
        self._vain = 0

    def write(self, lines: Sequence[LogLine]) -> WriteOutcome:
        taken, trouble = 0, ""
        room = self._in_flight_max - (self._taken - self._known_delivered - self._known_failed)
        try:
            for line in lines[:room]:
                self._send(line)
                taken += 1
        except (KafkaError, OSError, ValueError) as error:
            trouble = f"Kafka, topic {self._topic}: {error}"
        self._taken += taken
        return self._learnt(taken, trouble, is_full=bool(lines) and not room)

    def _send(self, line: LogLine) -> None:
        if self._producer is None:
            self._producer = KafkaProducer(**self._options)
            run_first_at_exit()  # before its own end: what waits must still be sent
        key = line.key.encode("utf-8", "replace") if line.key else None
        sent = self._producer.send(self._topic, line.text.removesuffix(b"\n"), key=key)
        sent.add_callback(self._was_delivered)
        sent.add_errback(self._was_lost)

    def _was_delivered(self, _metadata: object) -> None:
        self._delivered.add()

    def _was_lost(self, error: object) -> None:
        self._why = f"Kafka, topic {self._topic}: {error}"
        self._failed.add()

    def _learnt(self, taken: int, trouble: str, *, is_full: bool) -> WriteOutcome:
        delivered, failed = self._delivered.read(), self._failed.read()
        written, lost = delivered - self._known_delivered, failed - self._known_failed
        self._known_delivered, self._known_failed = delivered, failed
        if lost:
            trouble = trouble or self._why
        self._vain = self._vain + 1 if is_full and not written else 0
        if self._vain >= VAIN_MAX:
            trouble = (
                trouble or f"Kafka, topic {self._topic}: {self._in_flight_max} records wait for an answer"
            )
        return WriteOutcome(taken, written, lost, trouble)

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close(timeout=1)
            # What it has not sent is lost with it, and is not said to be waiting.
            self._producer = None

    def forked(self) -> None:
        if self._producer is not None:
            # The parent's: its sockets are shared, its thread is not here, and its mutexes may be held.
            # Closed in name alone, so that nothing of it is touched when the child ends.
            self._producer._closed = True
            ABANDONED.append(self._producer)
        self._begin_anew()


ABANDONED: list[Any] = []
