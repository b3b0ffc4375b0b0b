"""Reachability of Kafka, and the number of partitions of some topics."""

from __future__ import annotations

from collections.abc import Collection

from kafka.errors import KafkaError

from analyzer.kernel.errors import AnalyzerError
from analyzer.sources.kafka.client import connect
from analyzer.sources.kafka.connection_errors import ConnectionTrouble, missing_permission
from analyzer.sources.kafka.metadata import request_metadata
from analyzer.sources.kafka.options import Options, probe_options

CLOSE_MS = 1_000


class KafkaUnreachable(AnalyzerError):
    """No broker can be used."""


def count_partitions(topics: Collection[str], options: Options) -> dict[str, int | str]:
    """Returns the number of partitions of each topic, or a sentence that says why it cannot be read.

    Raises KafkaUnreachable within some seconds, ReleaseUnsupported.
    """
    try:
        options = probe_options(options)
        opened = connect(options)  # its errors name the option to change
        opened.public.close(autocommit=False, timeout_ms=CLOSE_MS)
        _, present, forbidden, _ = request_metadata(options, topics)
    except (KafkaError, ConnectionTrouble, ValueError) as error:
        raise KafkaUnreachable(str(error)) from error

    def of(topic: str) -> int | str:
        if topic in present:
            return len(present[topic].partitions)
        if topic in forbidden:
            return missing_permission([topic], options)
        return f"the cluster does not have the topic {topic}: create it, or correct the name"

    return {topic: of(topic) for topic in topics}
