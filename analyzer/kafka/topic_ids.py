"""Which log a topic's name stands for. A topic that was deleted and created again is another log."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from kafka import TopicPartition

from analyzer.core.model import Gap, Partition
from analyzer.kafka.metadata import TopicMetadata
from analyzer.sources import LogId, PositionStore

log = logging.getLogger(__name__)


class TopicIds:
    """Knows each topic's log as it was when it was first seen, and refuses any other.

    Offsets of one log mean nothing in another, but kafka-python goes on at them without a word.
    """

    def __init__(self, sources: Mapping[str, str], places: PositionStore) -> None:
        self._sources = sources
        self._places = places
        self._first: dict[str, LogId] = {}
        self._now: dict[str, tuple[LogId, Collection[int]]] = {}  # with the numbers of its partitions
        self.refused: dict[str, str] = {}  # by topic, with the reason

    def look(self, cluster: str, topics: Mapping[str, TopicMetadata]) -> None:
        """Note what the cluster says now. No I/O, any thread."""
        for name, topic in topics.items():
            now = LogId(cluster, topic.id)
            was = self._first.setdefault(name, now)
            before, _ = self._now.get(name, (was, ()))
            self._now[name] = now, topic.partitions
            if was != now and (name not in self.refused or before != now):
                self._refuse(name, was, now)

    def counted_before(self, topic: str) -> bool:
        """Whether this log is in the store. One that is there under the same name and is another is refused.
        Raises StoreAway."""
        known = self._places.logs(self._sources[topic], topic)
        if known and self._first[topic] not in known:
            self._refuse(topic, min(known), self._first[topic])
        return bool(known)

    def parts(self, places: Iterable[TopicPartition]) -> dict[Partition, TopicPartition]:
        """Those that may be read, by their lasting names."""
        return {
            self.part(at): at for at in places if at.topic in self._first and at.topic not in self.refused
        }

    def part(self, at: TopicPartition) -> Partition:
        known = self._first[at.topic]
        return Partition(known.cluster, known.topic_id, at.partition, self._sources[at.topic], at.topic)

    def gaps(self) -> dict[Partition, Gap]:
        """Every partition of the logs that stand where others stood: where to begin is for people to say."""
        found = {}
        for topic, why in list(self.refused.items()):
            (cluster, topic_id), numbers = self._now[topic]
            for number in sorted(numbers):
                part = Partition(cluster, topic_id, number, self._sources[topic], topic)
                found[part] = Gap("recreated", 0, None, why)
        return found

    def renew(self, topics: Iterable[str]) -> None:
        """These logs may be read from now on: somebody said so of one of their partitions at least."""
        for topic in topics:
            self._first[topic], _ = self._now[topic]
            self.refused.pop(topic, None)

    def problems(self) -> dict[str, str]:
        return {self._sources[topic]: why for topic, why in list(self.refused.items())}

    def _refuse(self, topic: str, was: LogId, now: LogId) -> None:
        if was.cluster == now.cluster:
            why = (
                f"topic {topic} was deleted and created again: its id was {was.topic_id}, now {now.topic_id}"
            )
        else:
            why = (
                f"topic {topic} was in another cluster: it was in {was.cluster}, and is in {now.cluster} now"
            )
        log.error("%s; nothing of it is counted; `gatelock gaps list` says what to do", why)
        self.refused[topic] = why
