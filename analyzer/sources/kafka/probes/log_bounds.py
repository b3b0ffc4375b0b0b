"""The present bounds of partitions' logs: first offset and end, also where no analyzer counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from kafka import TopicPartition
from kafka.errors import KafkaError

from analyzer.kernel.errors import AnalyzerError, LogsUnknown
from analyzer.kernel.model import Partition
from analyzer.sources.kafka.client import KafkaClient
from analyzer.sources.kafka.connection_errors import ConnectionTrouble
from analyzer.sources.kafka.metadata import TopicMetadata, request_metadata
from analyzer.sources.kafka.options import Options, probe_options


class LogBounds(NamedTuple):
    first: int
    end: int  # the offset after the last record that can be read


class LogGone(AnalyzerError):
    """The topic does not exist any more, or another log has its name."""


def read_bounds(parts: Sequence[Partition], options: Options) -> dict[Partition, LogBounds] | str:
    """Returns the bounds of each log, or a sentence that says why Kafka does not answer. Raises LogGone."""
    partitions = {TopicPartition(part.topic, part.number): part for part in parts}
    try:
        options = probe_options(options)
        client = KafkaClient({part.topic for part in parts}, options)
    except (KafkaError, ConnectionTrouble, ValueError) as error:
        return str(error)
    try:
        first, ends = client.begins(partitions), client.ends(partitions)
        for part in parts:
            _check_log(client, part)  # after these requests the client has the topic's metadata
        return {part: LogBounds(first[tp], ends[tp]) for tp, part in partitions.items()}
    except KafkaError as error:
        return str(error)
    finally:
        client.close()


def _check_log(client: KafkaClient, part: Partition) -> None:
    topic = client.topics().get(part.topic)
    if topic is None or topic.id != part.topic_id or client.cluster != part.cluster:
        raise LogGone(
            f"{part}: the log {part.topic_id} does not exist any more; run an analyzer, then "
            "`gatelock upkeep sources list --gaps` shows the log in its place"
        )


def read_ends(
    sources: Mapping[str, str], followed: Sequence[Partition], options: Options
) -> dict[Partition, int | None]:
    """Returns the offset behind the last record of each log that can be read, aborted ones left out.

    These are the partitions of the topics in `sources`, which has the source of each, and of `followed` those
    that were in these topics; None for one whose log does not exist any more: its topic was deleted, perhaps
    created again. Files and partitions of other clusters are left out. Raises LogsUnknown.
    """
    try:
        options = probe_options(options)
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
