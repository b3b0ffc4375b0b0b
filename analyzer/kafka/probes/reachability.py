"""Whether Kafka can be reached, and what it has of some topics."""

from __future__ import annotations

import time
from collections.abc import Collection

from kafka.errors import KafkaError

from analyzer.errors import AnalyzerError
from analyzer.kafka.connect import connect
from analyzer.kafka.connection_errors import ConnectionTrouble, missing_right
from analyzer.kafka.metadata import AdminMetadata
from analyzer.kafka.options import Options, consumer_options

CONNECT_MS = 3_000
CLOSE_MS = 1_000


class KafkaUnreachable(AnalyzerError):
    """No broker lets us in."""


def partitions_of(topics: Collection[str], options: Options) -> dict[str, int | str]:
    """How many partitions each topic has, or a sentence that says why it cannot be read. Raises KafkaAway,
    within some seconds."""
    try:
        options = consumer_options({"bootstrap_timeout_ms": CONNECT_MS, **options})
        consumer, _ = connect(options)  # says best why it does not come about
        consumer.close(autocommit=False, timeout_ms=CLOSE_MS)
        found = AdminMetadata(options, topics, time.monotonic)
    except (KafkaError, ConnectionTrouble, ValueError) as failed:
        raise KafkaUnreachable(str(failed)) from failed
    there, forbidden = found.topics(), found.forbidden()
    found.close()
    return {
        topic: len(there[topic].partitions)
        if topic in there
        else missing_right([topic], options)
        if topic in forbidden
        else f"there is no topic {topic}"
        for topic in topics
    }
