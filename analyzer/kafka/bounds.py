"""Where the log of one partition begins and ends now."""

from __future__ import annotations

import time

from kafka import TopicPartition
from kafka.errors import KafkaError

from analyzer.core.model import Partition
from analyzer.kafka.causes import Troubled
from analyzer.kafka.client import Client, options_of
from analyzer.kafka.metadata import Options

WAIT_MS = 3_000


def bounds_of(part: Partition, options: Options) -> tuple[int, int] | str:
    """The first offset and the one after the last that can be read; or a sentence that says why not."""
    at = TopicPartition(part.topic, part.number)
    try:
        options = {"bootstrap_timeout_ms": WAIT_MS, **options}
        client = Client([part.topic], options_of(options), raw=False, uptime_s=time.monotonic)
    except (KafkaError, Troubled, ValueError) as failed:
        return str(failed)
    try:
        found = client.begins([at])[at], client.ends([at])[at]
        client.refresh()
        topic = client.topics().get(part.topic)  # known by now, if it is there
        if topic is None or topic.id != part.topic_id or client.cluster != part.cluster:
            return f"the log {part.topic_id} of {part.topic} is not there any more"
        return found
    except KafkaError as failed:
        return str(failed)
    finally:
        client.close()
