"""How far the damage in a partition reaches, asked of Kafka through connections of their own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from kafka import TopicPartition
from kafka.errors import KafkaError

from analyzer.core.kafka_format.damage import damage_end, galloping_search
from analyzer.kafka.client import FetchedPartition, KafkaClient, UnreadablePartition
from analyzer.kafka.connection_errors import ConnectionTrouble
from analyzer.kafka.options import Options

log = logging.getLogger(__name__)

FETCH_BYTES = 16 << 20  # what follows a damaged batch is to come along with it
LOOK_S = 1.0  # a broker answers sooner, also when it finds nothing


@dataclass(slots=True)
class DamageProbe:
    """Looks at one partition here and there."""

    at: TopicPartition
    options: Options
    raw: bool
    client: KafkaClient | None = None

    def extent(self, start: int) -> int:
        """Where reading can go on behind `start`. Raises KafkaError, Troubled."""
        try:
            end = self._open().ends([self.at])[self.at]
            return (
                damage_end(self._batches, start, end)
                if self.raw
                else galloping_search(self._first, start, end)
            )
        finally:
            self._close()

    def _batches(self, offset: int) -> bytes:
        found = self._look(offset)
        return (
            found.content if isinstance(found, FetchedPartition) and isinstance(found.content, bytes) else b""
        )

    def _first(self, offset: int) -> int | None:
        found = self._look(offset)
        if isinstance(found, UnreadablePartition):
            self._close()  # kafka-python hangs when it goes on
            return None
        records = [] if found is None or isinstance(found.content, bytes) else found.content
        return records[0].offset if records else None

    def _look(self, offset: int) -> FetchedPartition | UnreadablePartition | None:
        client = self._open()
        client.go_on(self.at, offset)
        until_s = time.monotonic() + LOOK_S
        while time.monotonic() < until_s:
            for found in client.poll(0.1):
                if isinstance(found, UnreadablePartition) or found.content:
                    return found
        return None

    def _open(self) -> KafkaClient:
        if self.client is None:
            options = {**self.options, "group_id": None, "max_partition_fetch_bytes": FETCH_BYTES}
            options |= {"fetch_min_bytes": 1, "max_poll_records": None if self.raw else 1}
            options = {name: value for name, value in options.items() if value is not None}
            self.client = KafkaClient([self.at.topic], options, raw=self.raw, uptime_s=time.monotonic)
            self.client.assign([self.at])
            self.client.hold([self.at])
        return self.client

    def _close(self) -> None:
        client, self.client = self.client, None
        if client is not None:
            client.close()


def measure_damage(
    at: TopicPartition, start: int, options: Options, raw: bool, tell: Callable[[int], None]
) -> None:
    """Find out in a thread where reading can go on behind `start`: it takes some dozens of questions at
    worst, and kafka-python may never come back from one. When it is not found out, nothing is told."""

    def run() -> None:
        try:
            end = DamageProbe(at, options, raw).extent(start)
        except (KafkaError, ConnectionTrouble) as failed:
            log.warning("%s[%d]: how far the damage reaches is not known: %r", *at, failed)
        else:
            if end > start:
                tell(end)

    threading.Thread(target=run, daemon=True, name=f"damage {at.topic}[{at.partition}]").start()
