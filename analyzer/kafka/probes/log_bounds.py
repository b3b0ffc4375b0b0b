"""Where the logs of partitions begin and end now."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from kafka import TopicPartition
from kafka.errors import KafkaError

from analyzer.core.model import Partition
from analyzer.errors import AnalyzerError
from analyzer.kafka.client import KafkaClient
from analyzer.kafka.connection_errors import ConnectionTrouble
from analyzer.kafka.options import Options, consumer_options

CONNECT_MS = 3_000


class LogBounds(NamedTuple):
    first: int
    end: int  # the offset after the last record that can be read


class LogGone(AnalyzerError):
    """Another log stands under its name, or none."""


def bounds_of(parts: Sequence[Partition], options: Options) -> dict[Partition, LogBounds] | str:
    """The bounds of each; or a sentence that says why Kafka does not tell them. Raises LogIsGone."""
    at = {TopicPartition(part.topic, part.number): part for part in parts}
    try:
        options = {"bootstrap_timeout_ms": CONNECT_MS, **options}
        topics = {part.topic for part in parts}
        client = KafkaClient(topics, consumer_options(options), raw=False, uptime_s=time.monotonic)
    except (KafkaError, ConnectionTrouble, ValueError) as failed:
        return str(failed)
    try:
        first, ends = client.begins(at), client.ends(at)
        client.refresh()
        for part in parts:
            _look(client, part)  # known by now, if it is there
        return {part: LogBounds(first[each], ends[each]) for each, part in at.items()}
    except KafkaError as failed:
        return str(failed)
    finally:
        client.close()


def _look(client: KafkaClient, part: Partition) -> None:
    topic = client.topics().get(part.topic)
    if topic is None or topic.id != part.topic_id or client.cluster != part.cluster:
        raise LogGone(
            f"{part}: the log {part.topic_id} is not there any more; once an analyzer has looked, "
            "`gatelock gaps list` says what stands in its place"
        )
