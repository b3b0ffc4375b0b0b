"""Writes records to a topic, each acknowledged by all replicas."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError

from analyzer.kernel.errors import TopicNotWritten
from analyzer.sources.kafka.options import Options

ANSWER_S = 10.0


class TopicWriter:
    """Writes to one topic. Threads must not share it.

    Args:
        topic: Its name. It must exist, unless the broker creates topics.
        options: Of kafka-python's clients.
    """

    def __init__(self, topic: str, options: Options) -> None:
        self._topic = topic
        self._options = options
        self._producer: Any = None

    def write(self, key: bytes, value: bytes, headers: Sequence[tuple[str, bytes]]) -> str:
        """Returns where a record is, once it is acknowledged. Raises TopicNotWritten."""
        try:
            if self._producer is None:
                self._producer = KafkaProducer(**_producer_options(self._options))
            written = self._producer.send(self._topic, key=key, value=value, headers=list(headers)).get(
                ANSWER_S
            )
        except (KafkaError, ValueError, AssertionError) as error:
            self.close()
            why = re.sub(r"\s+", " ", str(error)) or type(error).__name__
            raise TopicNotWritten(f"the topic {self._topic}: {why}") from error
        return f"partition {written.partition}, offset {written.offset}"

    def close(self) -> None:
        """Closes the connections; `write` opens them again."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(Exception):
                producer.close(timeout=1.0)


def _producer_options(options: Options) -> dict[str, Any]:
    known = KafkaProducer.DEFAULT_CONFIG.keys()
    answer_ms = int(ANSWER_S * 1000)
    own = {name: value for name, value in options.items() if name in known}
    limits = {
        "max_block_ms": answer_ms,
        "delivery_timeout_ms": answer_ms,
        "request_timeout_ms": answer_ms // 2,
        "bootstrap_timeout_ms": answer_ms // 2,
    }
    limits = {name: value for name, value in limits.items() if name in known}
    return {**limits, **own, "acks": "all", "enable_idempotence": True}
