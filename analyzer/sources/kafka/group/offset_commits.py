"""Offsets committed in the consumer group: for lag monitors, never read back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kafka import TopicPartition
from kafka.errors import KafkaError

from analyzer.sources.kafka.client import KafkaClient, log_failed_commit

COMMIT_EVERY_S = 1.0


class OffsetCommits:
    """Commits stored offsets, at most one request at a time: an absent broker makes nothing pile up."""

    def __init__(self, uptime_s: Callable[[], float]) -> None:
        self._uptime_s = uptime_s
        self._next: dict[TopicPartition, int] = {}
        self._is_done: Callable[[], bool] = lambda: True
        self._sent_s = float("-inf")

    def note(self, stored: Mapping[TopicPartition, int]) -> None:
        self._next |= stored

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drops the offsets of partitions that other members commit from now on."""
        for tp in partitions:
            self._next.pop(tp, None)

    def forget_all(self) -> None:
        self._next.clear()

    def send(self, client: KafkaClient) -> None:
        """Commits without waiting, once a second at most."""
        if self._next and self._is_done() and self._uptime_s() - self._sent_s >= COMMIT_EVERY_S:
            try:
                self._is_done = client.commit_soon(self._next)
            except KafkaError as error:
                log_failed_commit(error)
            self._next, self._sent_s = {}, self._uptime_s()

    def send_last(self, client: KafkaClient) -> None:
        try:
            if self._next:
                client.commit(self._next)
        except KafkaError as error:
            log_failed_commit(error)
