"""Finds out over separate connections how far the damage in a partition reaches."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from kafka import TopicPartition
from kafka.errors import KafkaError

from analyzer.sources.batches.damage import damage_end
from analyzer.sources.kafka.client import FetchedPartition, KafkaClient, UnreadablePartition
from analyzer.sources.kafka.connection_errors import ConnectionTrouble
from analyzer.sources.kafka.options import Options

log = logging.getLogger(__name__)

FETCH_BYTES = 16 << 20  # so that a fetch brings what follows the damaged batch
FETCH_S_MAX = 1.0  # a broker answers sooner, also when it finds nothing


@dataclass(slots=True)
class DamageProbe:
    """Fetches from chosen offsets of one partition."""

    tp: TopicPartition
    options: Options
    client: KafkaClient | None = None

    def find_end(self, start: int) -> int:
        """Returns the first offset after `start` that can be read. Raises KafkaError, ConnectionTrouble."""
        try:
            end = self._connected().ends([self.tp])[self.tp]
            return damage_end(self._batches, start, end)
        finally:
            self._close()

    def _batches(self, offset: int) -> bytes:
        fetched = self._fetch(offset)
        return fetched.raw if isinstance(fetched, FetchedPartition) else b""

    def _fetch(self, offset: int) -> FetchedPartition | UnreadablePartition | None:
        client = self._connected()
        client.resume(self.tp, offset)
        until_s = time.monotonic() + FETCH_S_MAX
        while time.monotonic() < until_s:
            for fetched in client.poll(0.1):
                if isinstance(fetched, UnreadablePartition) or fetched.raw:
                    return fetched
        return None

    def _connected(self) -> KafkaClient:
        if self.client is None:
            options = {**self.options, "group_id": None, "max_partition_fetch_bytes": FETCH_BYTES}
            options |= {"fetch_min_bytes": 1}
            self.client = KafkaClient([self.tp.topic], options)
            self.client.assign([self.tp])
            self.client.pause([self.tp])
        return self.client

    def _close(self) -> None:
        client, self.client = self.client, None
        if client is not None:
            client.close()


def measure_damage(tp: TopicPartition, start: int, options: Options, report: Callable[[int], None]) -> None:
    """Calls `report` with the first offset after `start` that can be read, or not at all if that fails.

    Works in a thread: it takes some dozens of requests at worst, and kafka-python may hang in one.
    """

    def run() -> None:
        try:
            end = DamageProbe(tp, options).find_end(start)
        except (KafkaError, ConnectionTrouble) as error:
            log.warning("%s[%d]: the end of the damage could not be found: %r", *tp, error)
        else:
            if end > start:
                report(end)

    threading.Thread(target=run, daemon=True, name=f"damage {tp.topic}[{tp.partition}]").start()
