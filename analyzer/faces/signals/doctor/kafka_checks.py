"""Checks of Kafka: topics that can be read, and a consumer group of this database alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analyzer.config.settings import Settings
from analyzer.faces.signals.signal_kinds import LISTED_MAX, Observation, fine, raised
from analyzer.flush.followed_partitions import SILENT_MS, FollowedPartition
from analyzer.kernel.errors import ReleaseUnsupported


def kafka_topics(settings: Settings) -> Iterator[Observation]:
    """Yields whether the topics of the sources can be read."""
    topics = [source.topic for source in settings.sources if source.topic is not None]
    if not topics:
        return
    from analyzer.sources.kafka.probes.reachability import KafkaUnreachable, count_partitions

    servers = ", ".join(settings.kafka.bootstrap_servers)
    try:
        numbers = count_partitions(topics, settings.kafka.client())
    except KafkaUnreachable as away:
        yield Observation(
            "away",
            f"{servers}: {away}",
            "check bootstrap_servers and the login in [kafka], and the network in between",
            "kafka-away",
        )
        return
    except ReleaseUnsupported as refused:
        sentence, _, cure = str(refused).partition("; ")
        yield raised("kafka-unusable", "", sentence, cure)
        return
    for topic, partitions in numbers.items():
        if isinstance(partitions, str):
            yield raised(
                "topic-unreadable", topic, f"{servers}: {partitions}", "check the topic of the source"
            )
    if all(isinstance(partitions, int) for partitions in numbers.values()):
        counts = ", ".join(f"{topic} with {number} partitions" for topic, number in numbers.items())
        yield fine(f"{servers}: reached; {counts}")


def kafka_group(settings: Settings, partitions: Sequence[FollowedPartition]) -> Iterator[Observation]:
    """Yields members of the consumer group that count for another database than this one."""
    topics = {source.topic for source in settings.sources if source.topic is not None}
    if not topics or settings.kafka.assign == "all":
        return
    from analyzer.sources.kafka.group.members import group_members

    followed_here = {
        (part.topic, part.partition)
        for part in partitions
        if part.heard_s is not None and part.heard_s * 1000 <= SILENT_MS
    }
    group = settings.kafka.group_id
    for member in group_members({**settings.kafka.client(), "group_id": group}):
        elsewhere = sorted(
            partition for partition in member.partitions - followed_here if partition[0] in topics
        )
        if elsewhere:
            names = ", ".join(f"{topic}[{number}]" for topic, number in elsewhere[:LISTED_MAX])
            yield raised(
                "group-shared",
                member.client_id,
                f"{member.client_id} on {member.host} reads {names} in the group {group}, and no analyzer of "
                "this database does: it counts for another database, or has just begun",
                "run `gatelock doctor` once more; if this stays, give each database its own [kafka] group_id",
            )
