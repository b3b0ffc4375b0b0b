"""The typed facade of this package: the rest of `analyzer.sources.kafka` calls nothing else of it.

The modules that rest on private names are imported inside the functions that need them: a feature that is
off must not fail an import.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from typing import Any

from kafka import KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.errors import CorruptRecordError

from analyzer.sources.batches.batch_header import NO_LEADER_EPOCH
from analyzer.sources.kafka.internals.features import FeatureName
from analyzer.sources.kafka.internals.interfaces import BatchFetcher, ConnectionFailures
from analyzer.sources.kafka.metadata import TopicMetadata, topic_id_or_name
from analyzer.sources.kafka.options import Options

Features = AbstractSet[FeatureName]

BATCH_BYTES_MAX = 64 << 20  # of one decompressed batch, as in analyzer.plan.mapping
CONFIRM_MS_MAX = 2_000  # a broker that has just sent records answers sooner
TOPIC_IDS_SINCE = (2, 8)  # the release of Kafka
# kafka-python names the partition of a damaged batch in some of its messages.
PARTITION_IN_MESSAGE = re.compile(r"topic='(?P<topic>[^']+)', partition=(?P<number>\d+)\) at offset")


def open_consumer(options: Options, failures: ConnectionFailures, features: Features) -> KafkaConsumer:
    """Returns a consumer that has the metadata of the cluster. Raises KafkaError, ValueError.

    With "failure-reasons" its connections report to `failures`, and nothing is left of a consumer that
    failed; kafka-python alone leaves its thread and its sockets.
    """
    clients: list[Any] = []

    def new_client(**config: Any) -> Any:
        clients.append(_open_client(config, failures, features))
        return clients[-1]

    if features & {"failure-reasons", "large-reads"}:
        options = {**options, "kafka_client": new_client}
    try:
        consumer = KafkaConsumer(**options)
        consumer.bootstrap(timeout_ms=options["bootstrap_timeout_ms"])
    except BaseException:
        for client in clients:
            client.close()
        raise
    return consumer


def _open_client(config: dict[str, Any], failures: ConnectionFailures, features: Features) -> Any:
    """Returns a network client for a consumer."""
    from kafka.net.compat import KafkaNetClient

    client = KafkaNetClient(**config)
    if "failure-reasons" in features:
        from analyzer.sources.kafka.internals.connection_watch import watch_connections

        watch_connections(client, failures)
    if "large-reads" in features:
        from analyzer.sources.kafka.internals.large_reads import read_much_at_once

        read_much_at_once(client)
    return client


def bound_decompression(features: Features, bytes_max: int = BATCH_BYTES_MAX) -> bool:
    """Makes kafka-python raise BatchRefused for a batch that expands beyond `bytes_max`, in this process.

    Returns whether it does: nothing may be read as single records where it does not.
    """
    if "decompression-bound" not in features:
        return False
    from analyzer.sources.kafka.internals.decompression_bound import install

    return install(bytes_max)


class ConsumerInternals:
    """The private parts of one consumer. What belongs to a feature that is off is left out."""

    def __init__(self, consumer: Any, features: Features) -> None:
        self._consumer = consumer
        self._features = features

    def cached_metadata(self, topics: Collection[str]) -> CachedMetadata | None:
        return CachedMetadata(self._consumer, topics) if "cached-metadata" in self._features else None

    def fetch_whole_batches(self) -> BatchFetcher | None:
        """Makes `poll()` return `FetchedBatches` from now on; None where it can only return records."""
        if "whole-batches" not in self._features:
            return None
        from analyzer.sources.kafka.internals.raw_fetcher import install_raw_fetcher

        return install_raw_fetcher(self._consumer, keeps_epochs="leader-epochs" in self._features)

    def keep_join_outcomes(self) -> None:
        """Keeps the outcome of joining a group until the next poll, and notes when the member is fenced."""
        if "group-membership" in self._features:
            from analyzer.sources.kafka.internals.join_coordinator import keep_join_outcomes

            keep_join_outcomes(self._consumer)

    @property
    def is_fenced(self) -> bool:
        """Whether another process has joined the group with the same group_instance_id."""
        return "group-membership" in self._features and getattr(self._consumer._coordinator, "fenced", False)

    @property
    def forgets_paused(self) -> bool:
        """Whether a partition can be paused and later continued elsewhere on the same connection."""
        return "paused-records" in self._features

    def forget_paused(self, tp: TopicPartition) -> None:
        """Drops the records of `tp` that were being decoded when it was paused.

        kafka-python (3.0.12) puts them aside, may never come back to them, and fetches nothing more of the
        partition until it has.
        """
        if self.forgets_paused:
            self._consumer._fetcher._paused_partition_records.pop(tp, None)

    def seek(self, tp: TopicPartition, offset: int, leader_epoch: int = NO_LEADER_EPOCH) -> None:
        """Continues `tp` at `offset`. With the epoch of the record before it, the broker is asked whether
        that record is still in the log."""
        self._consumer.seek(tp, offset)
        if leader_epoch != NO_LEADER_EPOCH and "leader-epochs" in self._features:
            # The public method takes no epoch.
            self._consumer._subscription.seek(tp, OffsetAndMetadata(offset, "", leader_epoch))

    def damaged_partition(self, error: CorruptRecordError) -> TopicPartition | None:
        """Returns the partition that `error` names, or else the one that was being decoded."""
        if match := PARTITION_IN_MESSAGE.search(str(error)):
            return TopicPartition(match["topic"], int(match["number"]))
        if "damaged-partition" not in self._features:
            return None
        return getattr(self._consumer._fetcher._next_partition_records, "topic_partition", None)


class CachedMetadata:
    """Ids and partitions of `topics` from the metadata that a consumer keeps up to date by itself. A
    `ClusterMetadata`."""

    def __init__(self, consumer: Any, topics: Iterable[str]) -> None:
        self._consumer = consumer
        self._cluster = consumer._cluster
        self._has_ids = consumer.config["api_version"] >= TOPIC_IDS_SINCE
        self._topics = list(topics)
        for name in self._topics:
            self._cluster.add_topic(name)

    @property
    def cluster(self) -> str:
        return str(self._cluster.cluster_id)

    def topics(self) -> dict[str, TopicMetadata]:
        topics = {}
        for name in self._topics:
            numbers, topic_id = self._cluster.partitions_for_topic(name), self._cluster.topic_id(name)
            if numbers and (topic_id is not None or not self._has_ids):
                topics[name] = TopicMetadata(topic_id_or_name(topic_id, name), frozenset(numbers))
        return topics

    def forbidden(self) -> frozenset[str]:
        return frozenset(self._cluster.unauthorized_topics)

    def refresh(self) -> None:
        """Does nothing: the consumer refreshes its metadata by itself."""

    def confirm(self) -> None:
        # An answer that was under way may be older than the records.
        for _ in range(2 if self._cluster.metadata_refresh_in_progress else 1):
            refreshed = self._cluster.request_update()
            self._consumer._net.run(self._consumer._manager.wait_for, refreshed, CONFIRM_MS_MAX)

    def close(self) -> None:
        """Does nothing: the metadata belongs to the consumer."""
