"""The present bounds of partitions' logs: first offset and end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kafka import TopicPartition
from kafka.errors import KafkaError

from analyzer.kernel.errors import AnalyzerError
from analyzer.kernel.model import Partition
from analyzer.sources.kafka.client import KafkaClient
from analyzer.sources.kafka.connection_errors import ConnectionTrouble
from analyzer.sources.kafka.options import Options, consumer_options

CONNECT_MS = 3_000


class LogBounds(NamedTuple):
    first: int
    end: int  # the offset after the last record that can be read


class LogGone(AnalyzerError):
    """The topic does not exist any more, or another log has its name."""


def read_bounds(parts: Sequence[Partition], options: Options) -> dict[Partition, LogBounds] | str:
    """Returns the bounds of each log, or a sentence that says why Kafka does not answer. Raises LogGone."""
    partitions = {TopicPartition(part.topic, part.number): part for part in parts}
    try:
        options = consumer_options({"bootstrap_timeout_ms": CONNECT_MS, **options})
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
            "`gatelock upkeep gaps list` shows the log in its place"
        )
