"""Ids and partitions of topics, as the cluster reports them."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from typing import NamedTuple

from kafka import KafkaAdminClient
from kafka.errors import TopicAuthorizationFailedError, UnknownTopicOrPartitionError

from analyzer.sources.kafka.options import Options, admin_options

NAME_PREFIX = "name:"
REQUEST_MS_MAX = 2_000


class TopicMetadata(NamedTuple):
    id: str
    partitions: frozenset[int]


class ClusterMetadata(NamedTuple):
    """Some topics of a cluster.

    Attributes:
        cluster: Its id.
        topics: By name, those that it has.
        forbidden: Those that we have no right to read.
        absent: Those that the cluster says it does not have.
    """

    cluster: str
    topics: dict[str, TopicMetadata]
    forbidden: frozenset[str]
    absent: frozenset[str]


def request_metadata(options: Options, topics: Collection[str]) -> ClusterMetadata:
    """Requests the metadata of `topics` over a separate connection. Raises KafkaError."""
    with closing(
        KafkaAdminClient(**{**admin_options(options), "request_timeout_ms": REQUEST_MS_MAX})
    ) as admin:
        cluster = str(admin.describe_cluster()["cluster_id"])
        described = admin.describe_topics(list(topics))
    present = {
        topic["name"]: TopicMetadata(
            topic_id_or_name(topic.get("topic_id"), topic["name"]),
            frozenset(partition["partition_index"] for partition in topic["partitions"]),
        )
        for topic in described
        if topic["partitions"]
    }
    forbidden, absent = (
        frozenset(topic["name"] for topic in described if topic["error_code"] == error.errno)
        for error in (TopicAuthorizationFailedError, UnknownTopicOrPartitionError)
    )
    return ClusterMetadata(cluster, present, forbidden, absent)


def topic_id_or_name(topic_id: object, name: str) -> str:
    """Returns a topic's id as text; its prefixed name where it has no id, which is before Kafka 2.8.

    >>> topic_id_or_name(None, "access-log")
    'name:access-log'
    """
    text = str(topic_id or "")
    return text if text.strip("0-") else f"{NAME_PREFIX}{name}"
