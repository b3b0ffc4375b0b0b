"""How far we are, told to Kafka: for whoever watches a group's lag there. It is never read back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kafka import TopicPartition
from kafka.errors import KafkaError

from analyzer.kafka.client import KafkaClient, log_failed_commit

COMMIT_EVERY_S = 1.0


class OffsetCommits:
    """How far we are, told to Kafka now and then: nobody but lag monitors reads it."""

    def __init__(self, uptime_s: Callable[[], float]) -> None:
        self._uptime_s = uptime_s
        self._next: dict[TopicPartition, int] = {}
        self._done: Callable[[], bool] = lambda: True
        self._sent_s = float("-inf")

    def note(self, stored: Mapping[TopicPartition, int]) -> None:
        self._next |= stored

    def forget(self, at: Iterable[TopicPartition]) -> None:
        """These are somebody else's to tell of."""
        for each in at:
            self._next.pop(each, None)

    def forget_all(self) -> None:
        self._next.clear()

    def send(self, client: KafkaClient) -> None:
        """At most one commit on its way, and one a second: an absent broker piles nothing up."""
        if self._next and self._done() and self._uptime_s() - self._sent_s >= COMMIT_EVERY_S:
            try:
                self._done = client.commit_soon(self._next)
            except KafkaError as failed:
                log_failed_commit(failed)
            self._next, self._sent_s = {}, self._uptime_s()

    def send_last(self, client: KafkaClient) -> None:
        try:
            if self._next:
                client.commit(self._next)
        except KafkaError as failed:
            log_failed_commit(failed)
