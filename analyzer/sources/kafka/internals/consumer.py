"""The typed facade of this package: a consumer, with what is changed of it.

What stands behind it rests on private names at its import: import this module after
`require_supported_release`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from kafka import KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.net.compat import KafkaNetClient

from analyzer.sources.batches.batch_header import NO_LEADER_EPOCH
from analyzer.sources.kafka.internals import join_coordinator, raw_fetcher
from analyzer.sources.kafka.internals.broker_connections import change_connections
from analyzer.sources.kafka.internals.interfaces import ConnectionFailures
from analyzer.sources.kafka.metadata import TopicMetadata, topic_id_or_name
from analyzer.sources.kafka.options import Options

TOPIC_IDS_SINCE = (2, 8)  # the release of Kafka


def open_consumer(options: Options, failures: ConnectionFailures) -> OpenConsumer:
    """Returns a consumer that has the metadata of the cluster. Raises KafkaError, ValueError.

    Its connections report to `failures`. Nothing is left of a consumer that failed; kafka-python alone
    leaves its thread and its sockets.
    """
    clients: list[KafkaNetClient] = []

    def new_client(**config: Any) -> KafkaNetClient:
        clients.append(KafkaNetClient(**config))
        change_connections(clients[-1], failures)
        return clients[-1]

    try:
        consumer = KafkaConsumer(**{**options, "kafka_client": new_client})
        consumer.bootstrap(timeout_ms=options["bootstrap_timeout_ms"])
    except BaseException:
        for client in clients:
            client.close()
        raise
    return OpenConsumer(consumer)


class OpenConsumer:
    """A consumer that is connected.

    Attributes:
        public: It, for what its public names do. Its polls return records until `fetch_whole_batches`.
    """

    def __init__(self, public: KafkaConsumer) -> None:
        self.public = public

    def cached_metadata(self, topics: Collection[str]) -> CachedMetadata:
        return CachedMetadata(self.public, topics)

    def fetch_whole_batches(self) -> raw_fetcher.RawFetcher:
        """Makes `poll()` return `FetchedBatches` from now on."""
        return raw_fetcher.install(self.public)

    def keep_join_outcomes(self) -> None:
        """Keeps the outcome of joining a group until the next poll, and notes when the member is fenced."""
        join_coordinator.install(self.public)

    @property
    def is_fenced(self) -> bool:
        """Whether another process has joined the group with the same group_instance_id."""
        return getattr(self.public._coordinator, "fenced", False)

    def forget_paused(self, tp: TopicPartition) -> None:
        """Drops what was fetched of `tp` and not returned when it was paused.

        kafka-python (3.0.12) puts it aside, may never come back to it, and fetches nothing more of the
        partition until it has.
        """
        self.public._fetcher._paused_partition_records.pop(tp, None)

    def seek(self, tp: TopicPartition, offset: int, leader_epoch: int = NO_LEADER_EPOCH) -> None:
        """Continues `tp` at `offset`. With the epoch of the record before it, the broker is asked whether
        that record is still in the log."""
        self.public.seek(tp, offset)
        if leader_epoch != NO_LEADER_EPOCH:
            # The public method takes no epoch.
            self.public._subscription.seek(tp, OffsetAndMetadata(offset, "", leader_epoch))


class CachedMetadata:
    """Ids and partitions of `topics` from the metadata that a consumer keeps up to date by itself.

    Any thread may call it; it sends no request.
    """

    def __init__(self, consumer: KafkaConsumer, topics: Collection[str]) -> None:
        self._cluster = consumer._cluster
        self._has_ids = consumer.config["api_version"] >= TOPIC_IDS_SINCE
        self._topics = topics
        for name in topics:
            self._cluster.add_topic(name)

    @property
    def cluster(self) -> str:
        """The cluster's id."""
        return str(self._cluster.cluster_id)

    def topics(self) -> dict[str, TopicMetadata]:
        """Returns our topics by name, without those that the cluster does not have."""
        topics = {}
        for name in self._topics:
            numbers, topic_id = self._cluster.partitions_for_topic(name), self._cluster.topic_id(name)
            if numbers and (topic_id is not None or not self._has_ids):
                topics[name] = TopicMetadata(topic_id_or_name(topic_id, name), frozenset(numbers))
        return topics

    def forbidden(self) -> frozenset[str]:
        """Returns the topics that we have no right to read."""
        return frozenset(self._cluster.unauthorized_topics)
