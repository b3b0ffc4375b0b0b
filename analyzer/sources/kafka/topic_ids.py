"""Maps the name of a topic to one log: a topic that was deleted and created again is another log."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from kafka import TopicPartition

from analyzer.kernel.model import Gap, Partition
from analyzer.sources.kafka.metadata import TopicMetadata
from analyzer.sources.positions import LogId, PositionStore

log = logging.getLogger(__name__)


class TopicIds:
    """The log of each topic when it was first seen; any other log under its name is refused.

    Offsets of one log mean nothing in another, but kafka-python continues at them silently.
    """

    def __init__(self, sources: Mapping[str, str], positions: PositionStore) -> None:
        self._sources = sources
        self._positions = positions
        self._first: dict[str, LogId] = {}
        self._now: dict[str, tuple[LogId, Collection[int]]] = {}  # with the numbers of its partitions
        self.refused: dict[str, str] = {}  # by topic, with the reason

    def update(self, cluster: str, topics: Mapping[str, TopicMetadata]) -> None:
        """Compares the latest metadata with the first. No I/O; any thread may call it."""
        for name, topic in topics.items():
            now = LogId(cluster, topic.id)
            first = self._first.setdefault(name, now)
            previous, _ = self._now.get(name, (first, ()))
            self._now[name] = now, topic.partitions
            if first != now and (name not in self.refused or previous != now):
                self._refuse(name, first, now)

    def is_counted(self, topic: str) -> bool:
        """Whether the store has a log under this name; refuses the topic if it is another one.

        Raises StoreAway.
        """
        stored = self._positions.logs(self._sources[topic], topic)
        if stored and self._first[topic] not in stored:
            self._refuse(topic, min(stored), self._first[topic])
        return bool(stored)

    def parts(self, partitions: Iterable[TopicPartition]) -> dict[Partition, TopicPartition]:
        """Returns those of `partitions` that may be read, with their ids."""
        return {
            self.part(tp): tp for tp in partitions if tp.topic in self._first and tp.topic not in self.refused
        }

    def part(self, tp: TopicPartition) -> Partition:
        first = self._first[tp.topic]
        return Partition(first.cluster, first.topic_id, tp.partition, self._sources[tp.topic], tp.topic)

    def gaps(self) -> dict[Partition, Gap]:
        """Returns all partitions of the refused logs: an operator must say where they begin."""
        gaps = {}
        for topic, reason in list(self.refused.items()):
            (cluster, topic_id), numbers = self._now[topic]
            for number in sorted(numbers):
                part = Partition(cluster, topic_id, number, self._sources[topic], topic)
                gaps[part] = Gap("recreated", 0, None, reason)
        return gaps

    def accept(self, topics: Iterable[str]) -> None:
        """Lets the present logs of these topics be read: an operator has accepted a gap of each."""
        for topic in topics:
            self._first[topic], _ = self._now[topic]
            self.refused.pop(topic, None)

    def problems(self) -> dict[str, str]:
        return {self._sources[topic]: reason for topic, reason in list(self.refused.items())}

    def _refuse(self, topic: str, first: LogId, now: LogId) -> None:
        if first.cluster == now.cluster:
            ids = f"its id was {first.topic_id}, now {now.topic_id}"
            reason = f"topic {topic} was deleted and created again: {ids}"
        else:
            reason = (
                f"topic {topic} was in another cluster: it was in {first.cluster}, now it is in {now.cluster}"
            )
        log.error(
            "%s; nothing of it is counted; `gatelock upkeep sources list --gaps` says what to do", reason
        )
        self.refused[topic] = reason
