"""Finds out over separate connections how far the damage in a partition reaches."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial

from kafka import TopicPartition
from kafka.errors import KafkaError

from analyzer.sources.batches.damage import damage_end
from analyzer.sources.kafka.client import KafkaClient
from analyzer.sources.kafka.connection_errors import ConnectionTrouble
from analyzer.sources.kafka.fetched_batches import UnreadablePartition
from analyzer.sources.kafka.options import Options

log = logging.getLogger(__name__)

FETCH_BYTES = 16 << 20  # so that a fetch brings what follows the damaged batch
FETCH_S_MAX = 1.0  # a broker answers sooner, also when it finds nothing


def find_damage_end(tp: TopicPartition, start: int, options: Options) -> int:
    """Returns the first offset after `start` that can be read. Raises KafkaError, ConnectionTrouble."""
    options = {**options, "group_id": None, "max_partition_fetch_bytes": FETCH_BYTES, "fetch_min_bytes": 1}
    with closing(KafkaClient([tp.topic], options)) as client:
        client.assign([tp])
        client.pause([tp])
        return damage_end(partial(_fetch, client, tp), start, client.ends([tp])[tp])


def _fetch(client: KafkaClient, tp: TopicPartition, offset: int) -> bytes:
    """Returns the batches from `offset` on; nothing where a broker cannot serve any."""
    client.resume(tp, offset)
    until_s = time.monotonic() + FETCH_S_MAX
    while time.monotonic() < until_s:
        for fetched in client.poll(0.1):
            if isinstance(fetched, UnreadablePartition):
                return b""
            if fetched.raw:
                return fetched.raw
    return b""


def measure_damage(tp: TopicPartition, start: int, options: Options, report: Callable[[int], None]) -> None:
    """Calls `report` with the first offset after `start` that can be read, or not at all if that fails.

    Works in a thread: it takes some dozens of requests at worst, and kafka-python may hang in one.
    """

    def run() -> None:
        try:
            end = find_damage_end(tp, start, options)
        except (KafkaError, ConnectionTrouble) as error:
            log.warning("%s[%d]: the end of the damage could not be found: %r", *tp, error)
        else:
            if end > start:
                report(end)

    threading.Thread(target=run, daemon=True, name=f"damage {tp.topic}[{tp.partition}]").start()
