"""Lag in seconds: by the timestamps of records where these are plausible, never 56 years for one of 1970."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer

from analyzer.kernel.model import Lag, Partition
from analyzer.sources.kafka.partitions import DAY_S, PartitionState
from tests.support.kafka_log import lines, open_source, read_and_check
from tests.support.source_reader import MemoryPositionStore, SourceReader

PART = Partition("cluster", "topic-id", 0, "log", "access-log")
NOW_S = 1_795_216_000.0
IN_1970_MS = 86_400_000


def state(last_s: float, next_offset: int = 100) -> PartitionState:
    return PartitionState(PART, next_offset, next_offset, 0, int(last_s * 1000))


def test_a_backlog_is_as_old_as_the_record_that_was_read_last() -> None:
    assert state(NOW_S - 7200).lag(150, NOW_S, 10.0) == Lag(50, 7200.0)


def test_the_lag_is_zero_without_a_backlog() -> None:
    assert state(NOW_S - 7200).lag(100, NOW_S, 10.0) == Lag(0, 0.0)


@pytest.mark.parametrize("last_s", [IN_1970_MS / 1000, NOW_S - 2 * DAY_S, NOW_S + 3600])
def test_a_new_record_is_not_older_than_the_last_time_without_a_backlog(last_s: float) -> None:
    """The last record is two days old, or its producer's clock is wrong."""
    partition = state(last_s)
    partition.lag(100, NOW_S, 10.0)
    assert partition.lag(101, NOW_S + 3, 13.0) == Lag(1, 3.0)


def test_plausible_timestamps_count_also_after_a_time_without_a_backlog() -> None:
    partition = state(NOW_S)
    partition.lag(100, NOW_S, 10.0)
    partition.next, partition.last_ms = (
        120,
        int(NOW_S * 1000) - 60_000,
    )  # a fetch that waited for a minute in between
    assert partition.lag(150, NOW_S, 11.0) == Lag(30, 60.0)


def test_records_of_1970_leave_no_lag_of_56_years(real_kafka: Any) -> None:
    # Without retention, or the broker would delete them while they are read.
    topic = real_kafka.create_topic(partitions=1, configs={"retention.ms": -1})
    producer = Producer({"bootstrap.servers": real_kafka.bootstrap, "linger.ms": 0, "batch.num.messages": 5})

    def write(values: list[bytes]) -> None:
        for line in values:
            producer.produce(topic, line, partition=0, timestamp=IN_1970_MS)
        assert producer.flush(30) == 0

    positions = MemoryPositionStore()
    options = {"max_partition_fetch_bytes": 400}
    reader = SourceReader(open_source(real_kafka, positions, topic, options=options), positions, {})
    write(lines(100))
    read_and_check([reader], lines(100))
    reader.source.lags()
    write(lines(100, begin=100))
    taken = reader.source.take(5.0)
    while next(taken, None) is None:
        taken = reader.source.take(5.0)
    (lag,) = reader.source.lags().values()  # a part of what was fetched was handed on
    assert lag.records > 0
    assert lag.seconds < 60
    reader.start_over()
    read_and_check([reader], lines(200))
    assert list(reader.source.lags().values()) == [Lag(0, 0.0)]
    reader.source.close()
