"""The delays and clocks of partitions, as their analyzers have stored them with their heartbeats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.counting.measured_delays import MeasuredDelays
from analyzer.flush.analyzers import LIVING_MS, all_known
from analyzer.kernel.model import parent_analyzer


class PartitionDelays(NamedTuple):
    """The delays and the clock of one partition; None where they are unknown, or its analyzer does not run.

    Attributes:
        shipping_p50_s: Half of the records of its source, that its analyzer read, were not longer on their
            way to Kafka.
        shipping_p99_s: 99 % of them were not.
        kafka_ahead_s: The newest time in Kafka minus the database's clock when it was stored.
        requests_ahead_s: The time of a request minus its time in Kafka, at its greatest.
    """

    shipping_p50_s: float | None = None
    shipping_p99_s: float | None = None
    kafka_ahead_s: float | None = None
    requests_ahead_s: float | None = None


def measured_by_owner(engine: sa.Engine) -> dict[str, MeasuredDelays]:
    """Returns what each living analyzer has measured in the last minutes, by its name. Raises StoreAway."""
    return {
        analyzer.name: analyzer.measured
        for analyzer in all_known(engine)
        if analyzer.measured is not None and analyzer.age_ms <= LIVING_MS
    }


def partition_delays(
    owner: str, source_name: str, partition: str, measured: Mapping[str, MeasuredDelays]
) -> PartitionDelays:
    """Returns what is known of a partition, such as `requests[3]`, that the process `owner` follows.

    `measured` is by the names of analyzers.
    """
    delays = measured.get(parent_analyzer(owner))
    if delays is None:
        return PartitionDelays()
    source, clock = delays.sources.get(source_name), delays.clocks.get(partition)
    return PartitionDelays(
        None if source is None else source.p50_ms / 1000,
        None if source is None else source.p99_ms / 1000,
        None if clock is None else clock.ahead_ms / 1000,
        None if clock is None or clock.least_ms is None else -clock.least_ms / 1000,
    )
