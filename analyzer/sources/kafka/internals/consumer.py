"""The typed facade of this package: a consumer, with what is changed of it.

What stands behind it rests on private names at its import: import this module after
`require_supported_release`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from kafka import KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.errors import FencedInstanceIdError
from kafka.net.compat import KafkaNetClient

from analyzer.sources.batches.batch_header import NO_LEADER_EPOCH
from analyzer.sources.kafka.connection_errors import ConnectionFailures
from analyzer.sources.kafka.internals import raw_fetcher
from analyzer.sources.kafka.internals.broker_connections import change_connections
from analyzer.sources.kafka.internals.private_names import swap_class
from analyzer.sources.kafka.metadata import TopicMetadata, topic_id_or_name
from analyzer.sources.kafka.options import Options

TOPIC_IDS_SINCE = (2, 8)  # the release of Kafka
CHECK_JOIN_EVERY_S = 0.01


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
        """Makes `poll()` return `FetchedPartition`s from now on."""
        return raw_fetcher.install(self.public)

    def keep_join_outcomes(self) -> None:
        """Keeps the outcome of joining a group until the next poll, and notes when the member is fenced."""
        swap_class(self.public._coordinator, ConsumerCoordinator, JoinKeepingCoordinator)

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


class JoinKeepingCoordinator(ConsumerCoordinator):  # type: ignore[misc]  # kafka-python has no types
    """A group coordinator that keeps the outcome of a join.

    kafka-python (3.0.12) discards the outcome of a join that arrives between two polls, and joins again. When
    the group's leader does that, all members have to join again, so a group whose members poll for a tenth of
    a second and flush in between may never settle. And a leader that joins again because the metadata of its
    topics arrived late forgets that it is joining: it never requests the outcome, and silently stays without
    a partition. This subclass holds the outcome back until a poll waits for it, and remembers that it is
    joining.

    When another process joins with the same group.instance.id, the answer to the next heartbeat says so.
    kafka-python then stops its heartbeats and continues to read. This subclass notes it in `fenced`.
    """

    fenced = False  # whether another process has taken our group.instance.id
    is_awaited = False  # whether a poll waits for the outcome; read and written by one thread

    def need_rejoin(self) -> bool:
        return bool(self.rejoining or super().need_rejoin())

    async def ensure_active_group_async(self, timeout_ms: float | None = None) -> bool:
        self.is_awaited = True
        try:
            return bool(await super().ensure_active_group_async(timeout_ms=timeout_ms))
        finally:
            self.is_awaited = False

    async def _do_join_and_sync_async(self) -> bytes:
        assignment: bytes = await super()._do_join_and_sync_async()
        while not self.is_awaited:
            await self._net.sleep(CHECK_JOIN_EVERY_S)
        return assignment

    async def _send_heartbeat_request(self) -> None:
        try:
            await super()._send_heartbeat_request()
        except FencedInstanceIdError:
            self.fenced = True
            raise


class CachedMetadata:
    """Ids and partitions of `topics` from the metadata that a consumer keeps up to date by itself.

    Any thread may call it; it sends no request.
    """

    def __init__(self, consumer: KafkaConsumer, topics: Collection[str]) -> None:
        self._cluster = consumer._cluster
        self.has_ids = consumer.config["api_version"] >= TOPIC_IDS_SINCE
        self.names = topics
        for name in topics:
            self._cluster.add_topic(name)

    @property
    def cluster(self) -> str:
        """The cluster's id."""
        return str(self._cluster.cluster_id)

    def topics(self) -> dict[str, TopicMetadata]:
        """Returns our topics by name, without those that the cluster does not have."""
        topics = {}
        for name in self.names:
            numbers, topic_id = self._cluster.partitions_for_topic(name), self._cluster.topic_id(name)
            if numbers and (topic_id is not None or not self.has_ids):
                topics[name] = TopicMetadata(topic_id_or_name(topic_id, name), frozenset(numbers))
        return topics

    def forbidden(self) -> frozenset[str]:
        """Returns the topics that we have no right to read."""
        return frozenset(self._cluster.unauthorized_topics)
