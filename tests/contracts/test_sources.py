"""What every source keeps to, whatever it reads from."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest
from confluent_kafka import Producer

from analyzer.core.model import Gap, Partition, Position
from analyzer.errors import StoreAway
from analyzer.files import FollowedFile, ImportedFiles
from analyzer.kafka import KafkaRecords
from analyzer.kafka.internals.features import ALL_FEATURES
from analyzer.sources import CombinedSource, Source
from tests.support.kafka_features import RECORDS_ONLY
from tests.support.servers.kafka import Kafka
from tests.support.source_reader import MemoryPositionStore, SourceReader, values

PARTITIONS = 4
NOBODY = Partition("elsewhere", "t", 0, "s", "t")


class Rig(Protocol):
    """Something that can be written to and read from."""

    def write(self, lines: Sequence[bytes]) -> None: ...
    def source(self, store: MemoryPositionStore) -> Source: ...


@dataclass
class KafkaRig:
    kafka: Kafka
    raw: bool
    topic: str

    def write(self, lines: Sequence[bytes]) -> None:
        """Line by line to the partitions in turn, in small batches."""
        config = {"linger.ms": 5, "batch.num.messages": 7}
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap, **config})
        for number, line in enumerate(lines):
            producer.produce(self.topic, line, partition=number % PARTITIONS)
        producer.flush()

    def source(self, store: MemoryPositionStore) -> Source:
        little = {"max_partition_fetch_bytes": 300, "fetch_min_bytes": 1}  # so that it takes several turns
        if not self.raw:
            little["max_poll_records"] = 5
        options = {**self.kafka.client, "bootstrap_servers": self.kafka.bootstrap, **little}
        features = ALL_FEATURES if self.raw else RECORDS_ONLY
        return KafkaRecords({self.topic: "log"}, store, assign="all", features=features, options=options)


@dataclass
class FileRig:
    path: Path

    def write(self, lines: Sequence[bytes]) -> None:
        with self.path.open("ab") as file:
            file.writelines(line + b"\n" for line in lines)

    def source(self, store: MemoryPositionStore) -> Source:
        return FollowedFile(self.path, "log", store, line_bytes_max=200)


class OnceRig(FileRig):
    def source(self, store: MemoryPositionStore) -> Source:
        return ImportedFiles([self.path], "log", store, line_bytes_max=200)


class SeveralRig(FileRig):
    def source(self, store: MemoryPositionStore) -> Source:
        return CombinedSource(
            [FollowedFile(self.path.with_name("none"), "none", store), super().source(store)]
        )


@pytest.fixture(params=["raw", "plain", "followed", "once", "several"])
def rig(request: pytest.FixtureRequest, tmp_path: Path, small_chunks: None) -> Rig:
    match request.param:
        case "raw" | "plain" as kind:
            kafka: Kafka = request.getfixturevalue("kafka")
            return KafkaRig(kafka, kind == "raw", kafka.create_topic(partitions=PARTITIONS))
        case "followed":
            return FileRig(tmp_path / "access.log")
        case "once":
            return OnceRig(tmp_path / "access.log")
        case _:
            return SeveralRig(tmp_path / "access.log")


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few lines already take several turns."""
    monkeypatch.setattr("analyzer.files.line_reader.CHUNK_BYTES", 256)


@pytest.fixture
def opened() -> Iterator[Callable[[Source], Source]]:
    sources: list[Source] = []

    def opened(source: Source) -> Source:
        sources.append(source)
        return source

    yield opened
    for source in sources:
        source.close()


def lines(count: int, begin: int = 0) -> list[bytes]:
    return [b"line %06d" % number for number in range(begin, begin + count)]


def in_order(reader: SourceReader) -> list[bytes]:
    """All that was stored. The offsets of each partition rise, so that none of it is there twice."""
    for records in reader.kept.values():
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets)), offsets
    return sorted(line for series in values(reader.kept).values() for line in series if line is not None)


def read(reader: SourceReader, count: int) -> list[bytes]:
    """What is stored when `count` lines are."""
    reader.run_until(lambda: len(in_order(reader)) >= count)
    return in_order(reader)


def take_some(reader: SourceReader) -> None:
    assert any(reader.take() for _ in range(100))


def test_everything_is_given_once_and_in_order(rig: Rig, opened: Callable[[Source], Source]):
    rig.write(lines(500))
    reader = SourceReader(opened(rig.source(store := MemoryPositionStore())), store, {})
    assert read(reader, 500) == lines(500)
    assert reader.lost == []
    assert reader.source.problems().keys() <= {
        str(getattr(rig, "path", Path())).replace("access.log", "none")
    }


def test_it_goes_on_at_the_stored_position(rig: Rig, opened: Callable[[Source], Source]):
    store, kept = MemoryPositionStore(), {}
    rig.write(lines(100))
    first = SourceReader(rig.source(store), store, kept)
    assert read(first, 100) == lines(100)
    first.source.close()
    rig.write(lines(100, begin=100))
    second = SourceReader(opened(rig.source(store)), store, kept)
    assert read(second, 200) == lines(200)


def test_what_was_taken_and_not_stored_comes_again_to_the_next_one(
    rig: Rig, opened: Callable[[Source], Source]
):
    store, kept = MemoryPositionStore(), {}
    rig.write(lines(200))
    dies = SourceReader(rig.source(store), store, kept)
    dies.run_until(lambda: len(in_order(dies)) > 0)
    take_some(dies)
    dies.source.close()
    assert read(SourceReader(opened(rig.source(store)), store, kept), 200) == lines(200)


def test_rewinding_repeats_exactly_what_was_not_stored(rig: Rig, opened: Callable[[Source], Source]):
    store = MemoryPositionStore()
    rig.write(lines(300))
    reader = SourceReader(opened(rig.source(store)), store, {})
    for turn in itertools.count():
        reader.take()
        if turn % 3 == 0:
            reader.start_over()
        else:
            reader.store()
        if len(in_order(reader)) >= 300 or turn > 500:
            break
    assert in_order(reader) == lines(300)


def test_rewinding_between_two_items_leaves_nothing_stale(rig: Rig, opened: Callable[[Source], Source]):
    store = MemoryPositionStore()
    rig.write(lines(300))
    reader = SourceReader(opened(rig.source(store)), store, {})
    iterator = next(each for _ in range(100) if next(each := reader.source.take(0.05), None))
    reader.source.rewind()
    assert list(iterator) == []
    assert read(reader, 300) == lines(300)


def test_an_iterator_that_is_dropped_half_way_loses_nothing(rig: Rig, opened: Callable[[Source], Source]):
    class OneByOne:
        def __init__(self, source: Source) -> None:
            self.source = source

        def take(self, timeout_s: float) -> Iterator[object]:
            yield from itertools.islice(self.source.take(timeout_s), 1)

        def __getattr__(self, name: str) -> object:
            return getattr(self.source, name)

    store = MemoryPositionStore()
    rig.write(lines(200))
    assert read(SourceReader(OneByOne(opened(rig.source(store))), store, {}), 200) == lines(200)


def test_a_stopped_partition_gives_nothing_until_it_is_rewound(rig: Rig, opened: Callable[[Source], Source]):
    store = MemoryPositionStore()
    rig.write(lines(300))
    reader = SourceReader(opened(rig.source(store)), store, {})
    reader.run_until(lambda: len(in_order(reader)) > 0)
    part = next(iter(reader.kept))
    kept = len(reader.kept[part])
    position = store.positions([part])[part].next
    gap = Gap("too-large", position, position + 3, "a batch expands beyond the bound")
    reader.source.stop(part, gap)
    for _ in range(20):
        reader.turn()
    assert len(reader.kept[part]) == kept
    assert reader.source.positions()[part] == position, "heartbeats need what is stored"
    assert reader.source.stopped() == {part: gap}
    assert any(why.startswith(gap.why) for why in reader.source.problems().values())
    reader.start_over()
    assert read(reader, 300) == lines(300)
    assert reader.source.stopped() == {}
    assert not any(why.startswith(gap.why) for why in reader.source.problems().values())


def test_it_waits_for_a_database_that_is_away_and_goes_on_by_itself(
    rig: Rig, opened: Callable[[Source], Source]
):
    store = MemoryPositionStore(away=True)
    rig.write(lines(100))
    reader = SourceReader(opened(rig.source(store)), store, {})
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


def test_after_somebody_else_counted_on_it_goes_on_from_there(rig: Rig, opened: Callable[[Source], Source]):
    store, kept = MemoryPositionStore(), {}
    rig.write(lines(200))
    zombie = SourceReader(opened(rig.source(store)), store, kept)
    zombie.run_until(lambda: len(in_order(zombie)) > 0)
    take_some(zombie)
    other = SourceReader(opened(rig.source(store)), store, kept)
    other.run_until(lambda: len(in_order(other)) >= 150)
    assert read(zombie, 200) == lines(200)


def test_caught_up_means_no_lag(rig: Rig, opened: Callable[[Source], Source]):
    store = MemoryPositionStore()
    rig.write(lines(300))
    reader = SourceReader(opened(rig.source(store)), store, {})
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


def test_partitions_that_are_not_held_are_ignored(rig: Rig, opened: Callable[[Source], Source]):
    store = MemoryPositionStore()
    rig.write(lines(100))
    reader = SourceReader(opened(rig.source(store)), store, {})
    reader.run_until(lambda: len(in_order(reader)) > 0)
    reader.source.stop(NOBODY, Gap("corrupt", 7, 8, "no"))
    reader.source.rewind([NOBODY])
    reader.source.acknowledge({NOBODY: 7})
    assert read(reader, 100) == lines(100)
    assert NOBODY not in reader.source.positions()


def test_begun_at_a_place_it_starts_there(rig: Rig, opened: Callable[[Source], Source]):
    """The position may be one that the store was given by hand; nothing before it is given."""
    store, kept = MemoryPositionStore(), {}
    rig.write(lines(40))
    first = SourceReader(rig.source(store), store, kept)
    assert read(first, 40) == lines(40)
    first.source.close()
    assert all(isinstance(position, Position) and position.next > 0 for position in store.stored.values())
    again = SourceReader(opened(rig.source(store)), store, {})
    for _ in range(10):
        assert again.turn() == 0
