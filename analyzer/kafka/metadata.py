"""What a Kafka cluster says of topics and groups: ids, partitions, who reads them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from typing import Any, NamedTuple, Protocol

from kafka import KafkaAdminClient, KafkaConsumer
from kafka.errors import KafkaError, TopicAuthorizationFailedError

from analyzer.kafka.options import Options, admin_options

log = logging.getLogger(__name__)

NAME_PREFIX = "name:"
CONFIRM_MS_MAX = 2_000  # a broker that has just sent records answers sooner


class TopicMetadata(NamedTuple):
    id: str
    partitions: frozenset[int]


class ClusterMetadata(Protocol):
    @property
    def cluster(self) -> str:
        """The cluster's id."""

    def topics(self) -> dict[str, TopicMetadata]:
        """Our topics as of the last look; those that the cluster lacks are left out. Any thread."""

    def forbidden(self) -> frozenset[str]:
        """Those that we may not read, as of the last look. Any thread."""

    def refresh(self) -> None:
        """Look again, if that is due and does not happen by itself. Not from the client's own thread."""

    def confirm(self) -> None:
        """Look again, for records have come that were asked for by their topics' names. Raises KafkaError."""

    def close(self) -> None: ...


def metadata_of(
    consumer: KafkaConsumer, options: Options, topics: Collection[str], uptime_s: Callable[[], float]
) -> ClusterMetadata:
    """Raises KafkaError."""
    cluster = getattr(consumer, "_cluster", None)
    known = all(hasattr(cluster, name) for name in ClientMetadata.NAMES)
    if known and all(hasattr(consumer, name) for name in ("_net", "_manager")):
        return ClientMetadata(consumer, topics)
    return AdminMetadata(options, topics, uptime_s)


class ClientMetadata:
    """Ids and partitions from the consumer's own metadata, which it keeps fresh. Private to kafka-python."""

    NAMES = (
        *("add_topic", "cluster_id", "topic_id", "partitions_for_topic", "unauthorized_topics"),
        *("request_update", "metadata_refresh_in_progress"),
    )

    def __init__(self, consumer: Any, topics: Collection[str]) -> None:
        self._consumer = consumer
        self._cluster = consumer._cluster
        self._ids_told = consumer.config["api_version"] >= (2, 8)
        self._topics = topics
        for name in topics:
            self._cluster.add_topic(name)

    @property
    def cluster(self) -> str:
        return str(self._cluster.cluster_id)

    def topics(self) -> dict[str, TopicMetadata]:
        found = {}
        for name in self._topics:
            numbers, topic_id = self._cluster.partitions_for_topic(name), self._cluster.topic_id(name)
            if numbers and (topic_id is not None or not self._ids_told):
                found[name] = TopicMetadata(id_or_name(topic_id, name), frozenset(numbers))
        return found

    def forbidden(self) -> frozenset[str]:
        return frozenset(self._cluster.unauthorized_topics)

    def refresh(self) -> None:
        """Nothing to do: the client refreshes by itself."""

    def confirm(self) -> None:
        # An answer that was on its way may be older than the records.
        for _ in range(2 if self._cluster.metadata_refresh_in_progress else 1):
            asked = self._cluster.request_update()
            self._consumer._net.run(self._consumer._manager.wait_for, asked, CONFIRM_MS_MAX)

    def close(self) -> None:
        """Nothing to do: it is the client's."""


class AdminMetadata:
    """The same by kafka-python's public names, from a connection of its own."""

    def __init__(self, options: Options, topics: Collection[str], uptime_s: Callable[[], float]) -> None:
        self._topics = list(topics)
        self._uptime_s = uptime_s
        self._every_s = options["metadata_max_age_ms"] / 1000
        self._options = {**admin_options(options), "request_timeout_ms": CONFIRM_MS_MAX}
        self._found: dict[str, TopicMetadata] = {}
        self._forbidden: frozenset[str] = frozenset()
        self._admin: KafkaAdminClient | None = None
        self.cluster = ""
        self._look()

    def topics(self) -> dict[str, TopicMetadata]:
        return self._found

    def forbidden(self) -> frozenset[str]:
        return self._forbidden

    def refresh(self) -> None:
        if self._uptime_s() - self._looked_s >= self._every_s:
            try:
                self._look()
            except KafkaError as away:
                log.debug("the topics' ids could not be looked at: %s", away)

    def confirm(self) -> None:
        self._look()

    def close(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    def _look(self) -> None:
        self._looked_s = self._uptime_s()
        if self._admin is None:
            self._admin = KafkaAdminClient(**self._options)
        try:
            self.cluster = str(self._admin.describe_cluster()["cluster_id"])
            described = self._admin.describe_topics(self._topics)
        except BaseException:
            self.close()  # in whatever state it is
            raise
        self._found = {
            each["name"]: TopicMetadata(
                id_or_name(each.get("topic_id"), each["name"]),
                frozenset(part["partition_index"] for part in each["partitions"]),
            )
            for each in described
            if each["partitions"]
        }
        self._forbidden = frozenset(
            each["name"] for each in described if each["error_code"] == TopicAuthorizationFailedError.errno
        )


def id_or_name(topic_id: object, name: str) -> str:
    """A topic's id as text. Before Kafka 2.8 there was none, and the name has to do."""
    text = str(topic_id or "")
    return text if text.strip("0-") else f"{NAME_PREFIX}{name}"


def leaves_partitions_unread(options: Options, topics: Mapping[str, TopicMetadata]) -> bool:
    """Whether the consumer group is settled, and leaves a partition unread. Raises KafkaError."""
    group = _group(options)
    if group["group_state"] in ("PreparingRebalance", "CompletingRebalance"):
        return False
    read = {
        (of["topic"], number)
        for member in group["members"]
        for of in member["member_assignment"]["assigned_partitions"]
        for number in of["partitions"]
    }
    return not {(name, number) for name, topic in topics.items() for number in topic.partitions} <= read


def is_instance_id_in_use(options: Options) -> bool:
    """Whether the group has a member under our own lasting name (group.instance.id). Raises KafkaError."""
    ours = options.get("group_instance_id")
    return any(member.get("group_instance_id") == ours for member in _group(options)["members"])


def _group(options: Options) -> Mapping[str, Any]:
    with closing(KafkaAdminClient(**admin_options(options))) as admin:
        group: Mapping[str, Any] = admin.describe_groups([options["group_id"]])[options["group_id"]]
    return group
