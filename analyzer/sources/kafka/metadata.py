"""Ids and partitions of topics, as the cluster reports them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

from kafka import KafkaAdminClient
from kafka.errors import KafkaError, TopicAuthorizationFailedError, UnknownTopicOrPartitionError

from analyzer.sources.kafka.options import Options, admin_options

log = logging.getLogger(__name__)

NAME_PREFIX = "name:"
REQUEST_MS_MAX = 2_000


class TopicMetadata(NamedTuple):
    id: str
    partitions: frozenset[int]


class ClusterMetadata(Protocol):
    """The latest metadata of our topics. Only `refresh` and `confirm` send requests; any thread may call the
    others."""

    @property
    def cluster(self) -> str:
        """The cluster's id."""

    def topics(self) -> dict[str, TopicMetadata]:
        """Returns our topics by name, without those that the cluster does not have."""

    def forbidden(self) -> frozenset[str]:
        """Returns the topics that we have no right to read."""

    def refresh(self) -> None:
        """Requests the metadata again if that is due and does not happen by itself.

        Not to be called on the consumer's own thread.
        """

    def confirm(self) -> None:
        """Requests the metadata again, because records have arrived for a topic that was requested by name.

        Raises KafkaError.
        """

    def close(self) -> None: ...


class AdminMetadata:
    """A `ClusterMetadata` over a separate connection, by public names of kafka-python alone."""

    def __init__(self, options: Options, topics: Collection[str], uptime_s: Callable[[], float]) -> None:
        """Connects. Raises KafkaError."""
        self._topics = list(topics)
        self._uptime_s = uptime_s
        self._max_age_s = options["metadata_max_age_ms"] / 1000
        self._options = {**admin_options(options), "request_timeout_ms": REQUEST_MS_MAX}
        self._found: dict[str, TopicMetadata] = {}
        self._forbidden: frozenset[str] = frozenset()
        self.absent: frozenset[str] = frozenset()  # topics that the cluster says it does not have
        self._admin: KafkaAdminClient | None = None
        self.cluster = ""
        self._request()

    def topics(self) -> dict[str, TopicMetadata]:
        return self._found

    def forbidden(self) -> frozenset[str]:
        return self._forbidden

    def refresh(self) -> None:
        if self._uptime_s() - self._requested_s >= self._max_age_s:
            try:
                self._request()
            except KafkaError as error:
                log.debug("the topics' metadata could not be refreshed: %s", error)

    def confirm(self) -> None:
        self._request()

    def close(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    def _request(self) -> None:
        self._requested_s = self._uptime_s()
        if self._admin is None:
            self._admin = KafkaAdminClient(**self._options)
        try:
            self.cluster = str(self._admin.describe_cluster()["cluster_id"])
            described = self._admin.describe_topics(self._topics)
        except BaseException:
            self.close()  # in any state: the next request takes a new one
            raise
        self._found = {
            topic["name"]: TopicMetadata(
                topic_id_or_name(topic.get("topic_id"), topic["name"]),
                frozenset(partition["partition_index"] for partition in topic["partitions"]),
            )
            for topic in described
            if topic["partitions"]
        }
        self._forbidden, self.absent = (
            frozenset(topic["name"] for topic in described if topic["error_code"] == error.errno)
            for error in (TopicAuthorizationFailedError, UnknownTopicOrPartitionError)
        )


def topic_id_or_name(topic_id: object, name: str) -> str:
    """Returns a topic's id as text; its prefixed name where it has no id, which is before Kafka 2.8.

    >>> topic_id_or_name(None, "access-log")
    'name:access-log'
    """
    text = str(topic_id or "")
    return text if text.strip("0-") else f"{NAME_PREFIX}{name}"
