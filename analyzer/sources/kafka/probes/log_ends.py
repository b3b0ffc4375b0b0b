"""The present ends of all logs of some topics, those included that no analyzer has begun to count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing

from kafka import TopicPartition
from kafka.errors import KafkaError

from analyzer.kernel.errors import LogsUnknown
from analyzer.kernel.model import Partition
from analyzer.sources.kafka.client import KafkaClient
from analyzer.sources.kafka.connection_errors import ConnectionTrouble
from analyzer.sources.kafka.metadata import TopicMetadata, request_metadata
from analyzer.sources.kafka.options import Options, consumer_options
from analyzer.sources.kafka.probes.log_bounds import CONNECT_MS


def read_ends(
    sources: Mapping[str, str], followed: Sequence[Partition], options: Options
) -> dict[Partition, int | None]:
    """Returns the offset behind the last record of each log that can be read, aborted ones left out.

    These are the partitions of the topics in `sources`, which has the source of each, and of `followed` those
    that were in these topics; None for one whose log does not exist any more: its topic was deleted, perhaps
    created again. Files and partitions of other clusters are left out. Raises LogsUnknown.
    """
    try:
        options = consumer_options({"bootstrap_timeout_ms": CONNECT_MS, **options})
        cluster, present, _, absent = request_metadata(options, sources)
        if unknown := sources.keys() - present.keys() - absent:
            raise LogsUnknown(f"Kafka says nothing about {', '.join(sorted(unknown))}")
        current = {
            Partition(cluster, present[topic].id, number, source, topic)
            for topic, source in sources.items()
            if topic in present
            for number in present[topic].partitions
        }
        followed_parts = {part for part in followed if part.cluster == cluster and part.topic in sources}
        keys = {(part.topic_id, part.number) for part in followed_parts}
        parts = followed_parts | {part for part in current if (part.topic_id, part.number) not in keys}
        living = sorted(part for part in parts if _exists(part, present))
        return dict.fromkeys(parts) | _ends(living, options)
    except (KafkaError, ConnectionTrouble, ValueError) as error:
        raise LogsUnknown(f"Kafka was asked for the ends of its logs: {error}") from error


def _ends(parts: Sequence[Partition], options: Options) -> dict[Partition, int | None]:
    if not parts:
        return {}
    with closing(KafkaClient({part.topic for part in parts}, options)) as client:
        ends = client.ends([TopicPartition(part.topic, part.number) for part in parts])
    return {part: ends[TopicPartition(part.topic, part.number)] for part in parts}


def _exists(part: Partition, present: Mapping[str, TopicMetadata]) -> bool:
    topic = present.get(part.topic)
    return topic is not None and topic.id == part.topic_id and part.number in topic.partitions
