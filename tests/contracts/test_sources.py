"""The contract of `Source`, for each implementation: Kafka, files, and several sources as one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest
from confluent_kafka import Producer

from analyzer.kernel.errors import StoreAway
from analyzer.kernel.model import Gap, Partition, Position
from analyzer.sources.files import FollowedFile, ImportedFiles
from analyzer.sources.kafka import KafkaRecords
from analyzer.sources.positions import CombinedSource, Source
from tests.support.servers.kafka import Kafka
from tests.support.source_reader import MemoryPositionStore, SourceReader, values

PARTITIONS = 4
UNASSIGNED = Partition("elsewhere", "t", 0, "s", "t")


class Log(Protocol):
    """A log that can be written to, and sources of it."""

    def write(self, lines: Sequence[bytes]) -> None: ...
    def source(self, store: MemoryPositionStore) -> Source: ...


@dataclass
class KafkaLog:
    """A Kafka topic."""

    kafka: Kafka
    topic: str

    def write(self, lines: Sequence[bytes]) -> None:
        """Writes lines to the partitions in turn, in small batches."""
        config = {"linger.ms": 5, "batch.num.messages": 7}
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap, **config})
        for number, line in enumerate(lines):
            producer.produce(self.topic, line, partition=number % PARTITIONS)
        producer.flush()

    def source(self, store: MemoryPositionStore) -> Source:
        small_fetches = {"max_partition_fetch_bytes": 300, "fetch_min_bytes": 1}
        options = {**self.kafka.client, "bootstrap_servers": self.kafka.bootstrap, **small_fetches}
        return KafkaRecords({self.topic: "log"}, store, assign="all", options=options)


@dataclass
class FollowedLog:
    """A file that is followed."""

    path: Path

    def write(self, lines: Sequence[bytes]) -> None:
        with self.path.open("ab") as file:
            file.writelines(line + b"\n" for line in lines)

    def source(self, store: MemoryPositionStore) -> Source:
        return FollowedFile(self.path, "log", store, line_bytes_max=200)


class ImportedLog(FollowedLog):
    """A file that is read once."""

    def source(self, store: MemoryPositionStore) -> Source:
        return ImportedFiles([self.path], "log", store, line_bytes_max=200)


class CombinedLog(FollowedLog):
    """A file that is followed, next to one that does not exist."""

    def source(self, store: MemoryPositionStore) -> Source:
        return CombinedSource(
            [FollowedFile(self.path.with_name("none"), "none", store), super().source(store)]
        )


@pytest.fixture(params=["kafka", "followed", "imported", "combined"])
def log(request: pytest.FixtureRequest, tmp_path: Path, small_chunks: None) -> Log:
    match request.param:
        case "kafka":
            kafka: Kafka = request.getfixturevalue("kafka")
            return KafkaLog(kafka, kafka.create_topic(partitions=PARTITIONS))
        case "followed":
            return FollowedLog(tmp_path / "access.log")
        case "imported":
            return ImportedLog(tmp_path / "access.log")
        case _:
            return CombinedLog(tmp_path / "access.log")


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a few lines take several calls of `take`."""
    monkeypatch.setattr("analyzer.sources.files.line_reader.CHUNK_BYTES", 256)


@pytest.fixture
def opened() -> Iterator[Callable[[Source], Source]]:
    """Closes the sources that it is called with after the test."""
    sources: list[Source] = []

    def remember(source: Source) -> Source:
        sources.append(source)
        return source

    yield remember
    for source in sources:
        source.close()


def lines(count: int, begin: int = 0) -> list[bytes]:
    return [b"line %06d" % number for number in range(begin, begin + count)]


def in_order(reader: SourceReader) -> list[bytes]:
    """Returns all stored lines; checks that each offset was stored once, in order."""
    for records in reader.kept.values():
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets)), offsets
    return sorted(line for series in values(reader.kept).values() for line in series if line is not None)


def read(reader: SourceReader, count: int) -> list[bytes]:
    """Reads until `count` lines are stored; returns all that is."""
    reader.run_until(lambda: len(in_order(reader)) >= count)
    return in_order(reader)


def take_some(reader: SourceReader) -> None:
    assert any(reader.take() for _ in range(100))


def test_every_record_comes_once_and_in_order(log: Log, opened: Callable[[Source], Source]):
    log.write(lines(500))
    reader = SourceReader(opened(log.source(store := MemoryPositionStore())), store, {})
    assert read(reader, 500) == lines(500)
    assert reader.lost == []
    assert reader.source.problems().keys() <= {
        str(getattr(log, "path", Path())).replace("access.log", "none")
    }


def test_a_source_continues_at_the_stored_position(log: Log, opened: Callable[[Source], Source]):
    store, kept = MemoryPositionStore(), {}
    log.write(lines(100))
    first = SourceReader(log.source(store), store, kept)
    assert read(first, 100) == lines(100)
    first.source.close()
    log.write(lines(100, begin=100))
    second = SourceReader(opened(log.source(store)), store, kept)
    assert read(second, 200) == lines(200)


def test_records_that_were_not_stored_come_again_in_the_next_source(
    log: Log, opened: Callable[[Source], Source]
):
    store, kept = MemoryPositionStore(), {}
    log.write(lines(200))
    first = SourceReader(log.source(store), store, kept)
    first.run_until(lambda: len(in_order(first)) > 0)
    take_some(first)
    first.source.close()
    assert read(SourceReader(opened(log.source(store)), store, kept), 200) == lines(200)


def test_a_rewind_repeats_the_records_that_were_not_stored(log: Log, opened: Callable[[Source], Source]):
    store = MemoryPositionStore()
    log.write(lines(300))
    reader = SourceReader(opened(log.source(store)), store, {})
    for turn in itertools.count():
        reader.take()
        if turn % 3 == 0:
            reader.start_over()
        else:
            reader.store()
        if len(in_order(reader)) >= 300 or turn > 500:
            break
    assert in_order(reader) == lines(300)


def test_a_rewind_ends_an_iterator_that_is_in_use(log: Log, opened: Callable[[Source], Source]):
    store = MemoryPositionStore()
    log.write(lines(300))
    reader = SourceReader(opened(log.source(store)), store, {})
    iterator = next(items for _ in range(100) if next(items := reader.source.take(0.05), None))
    reader.source.rewind()
    assert list(iterator) == []
    assert read(reader, 300) == lines(300)


def test_an_iterator_that_is_not_read_to_its_end_loses_nothing(log: Log, opened: Callable[[Source], Source]):
    class OneItemSource:
        """Drops each iterator after its first item."""

        def __init__(self, source: Source) -> None:
            self.source = source

        def take(self, timeout_s: float) -> Iterator[object]:
            yield from itertools.islice(self.source.take(timeout_s), 1)

        def __getattr__(self, name: str) -> object:
            return getattr(self.source, name)

    store = MemoryPositionStore()
    log.write(lines(200))
    assert read(SourceReader(OneItemSource(opened(log.source(store))), store, {}), 200) == lines(200)


def test_a_stopped_partition_has_no_records_until_it_is_rewound(log: Log, opened: Callable[[Source], Source]):
    store = MemoryPositionStore()
    log.write(lines(300))
    reader = SourceReader(opened(log.source(store)), store, {})
    reader.run_until(lambda: len(in_order(reader)) > 0)
    part = next(iter(reader.kept))
    kept = len(reader.kept[part])
    position = store.positions([part])[part].next
    gap = Gap("too-large", position, position + 3, "a batch expands beyond the bound")
    reader.source.stop(part, gap)
    for _ in range(20):
        reader.turn()
    assert len(reader.kept[part]) == kept
    assert reader.source.positions()[part] == position, "a heartbeat needs the stored position"
    assert reader.source.stopped() == {part: gap}
    assert any(why.startswith(gap.why) for why in reader.source.problems().values())
    reader.start_over()
    assert read(reader, 300) == lines(300)
    assert reader.source.stopped() == {}
    assert not any(why.startswith(gap.why) for why in reader.source.problems().values())


def test_a_source_continues_when_an_unreachable_database_is_back(
    log: Log, opened: Callable[[Source], Source]
):
    store = MemoryPositionStore(away=True)
    log.write(lines(100))
    reader = SourceReader(opened(log.source(store)), store, {})
    with pytest.raises(StoreAway):
        reader.run_until(lambda: False)
    store.away = False
    reader.run_until(lambda: len(in_order(reader)) >= 20)

    store.away = True
    for _ in range(10):
        try:
            reader.take()
            reader.store()
        except StoreAway:
            reader.start_over()
    store.away = False
    assert read(reader, 100) == lines(100)


def test_a_source_continues_where_another_analyzer_has_counted_to(
    log: Log, opened: Callable[[Source], Source]
):
    store, kept = MemoryPositionStore(), {}
    log.write(lines(200))
    late = SourceReader(opened(log.source(store)), store, kept)
    late.run_until(lambda: len(in_order(late)) > 0)
    take_some(late)
    other = SourceReader(opened(log.source(store)), store, kept)
    other.run_until(lambda: len(in_order(other)) >= 150)
    assert read(late, 200) == lines(200)


def test_a_source_that_has_caught_up_has_no_lag(log: Log, opened: Callable[[Source], Source]):
    store = MemoryPositionStore()
    log.write(lines(300))
    reader = SourceReader(opened(log.source(store)), store, {})
    reader.run_until(lambda: len(reader.kept) > 0)
    behind = reader.source.lags()
    assert any(lag.records > 0 for lag in behind.values())
    assert all(lag.seconds < 60 for lag in behind.values())
    assert read(reader, 300) == lines(300)
    for _ in range(3):
        positions, lags = reader.source.positions(), reader.source.lags()
        reader.turn()
    assert all(lag == (0, 0.0) for lag in lags.values())
    assert all(store.stored[part].next == offset for part, offset in positions.items())


def test_partitions_that_are_not_assigned_are_ignored(log: Log, opened: Callable[[Source], Source]):
    store = MemoryPositionStore()
    log.write(lines(100))
    reader = SourceReader(opened(log.source(store)), store, {})
    reader.run_until(lambda: len(in_order(reader)) > 0)
    reader.source.stop(UNASSIGNED, Gap("corrupt", 7, 8, "no"))
    reader.source.rewind([UNASSIGNED])
    reader.source.acknowledge({UNASSIGNED: 7})
    assert read(reader, 100) == lines(100)
    assert UNASSIGNED not in reader.source.positions()


def test_a_source_starts_at_the_stored_position(log: Log, opened: Callable[[Source], Source]):
    """Records before it are not returned again."""
    store, kept = MemoryPositionStore(), {}
    log.write(lines(40))
    first = SourceReader(log.source(store), store, kept)
    assert read(first, 40) == lines(40)
    first.source.close()
    assert all(isinstance(position, Position) and position.next > 0 for position in store.stored.values())
    second = SourceReader(opened(log.source(store)), store, {})
    for _ in range(10):
        assert second.turn() == 0
