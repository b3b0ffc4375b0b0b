"""A reader of sources for tests: a store of positions in memory, and a pipeline that keeps records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from analyzer.kernel.errors import PartitionLost, StoreAway
from analyzer.kernel.model import Partition, PartitionRevoked, Position, Record, Records, RecordSet
from analyzer.sources.positions import LogId, Source
from tests.support.batches import records_of


@dataclass
class MemoryPositionStore:
    """Implements `PositionStore`, with a compare-and-set of positions; with `away` it is unreachable."""

    stored: dict[Partition, Position] = field(default_factory=dict)
    finished: set[Partition] = field(default_factory=set)
    away: bool = False
    waited_s: list[float] = field(default_factory=list)  # the time-outs of `wait_for_flush`

    def positions(self, parts: Collection[Partition]) -> Mapping[Partition, Position]:
        self._reach()
        named = {part[:3]: position for part, position in self.stored.items()}
        return {part: named[part[:3]] for part in parts if part[:3] in named}

    def begin(self, part: Partition, offset: int, resume_token: str = "") -> Position:
        self._reach()
        if part not in self.positions([part]):
            self.stored[part] = Position(offset, resume_token)
        return self.positions([part])[part]

    def finish(self, parts: Collection[Partition]) -> None:
        self._reach()
        self.finished.update(parts)

    def wait_for_flush(self, timeout_s: float) -> None:
        """Returns at once: `move` is the whole flush."""
        self.waited_s.append(timeout_s)

    def logs(self, source: str, topic: str) -> Collection[LogId]:
        self._reach()
        return {LogId(p.cluster, p.topic_id) for p in self.stored if (p.source, p.topic) == (source, topic)}

    def move(self, part: Partition, start: int, to: Position) -> None:
        self._reach()
        key = next((known for known in self.stored if known[:3] == part[:3]), None)
        if key is None or self.stored[key].next != start:
            raise PartitionLost(part, start)
        self.stored[key] = to

    def _reach(self) -> None:
        if self.away:
            raise StoreAway("the database is away")


@dataclass
class TakenRecords:
    """Records of one partition that were taken and are not stored."""

    start: int
    next: int
    resume_token: str
    records: list[Record]


@dataclass
class SourceReader:
    """Takes records from a source and stores them with the position, as the pipeline does with counts."""

    source: Source
    position_store: MemoryPositionStore
    kept: dict[Partition, list[Record]]  # all that was stored, perhaps by several readers
    taken: dict[Partition, TakenRecords] = field(default_factory=dict)
    lost: list[Partition] = field(default_factory=list)

    def take(self, timeout_s: float = 0.05) -> int:
        """Takes what the source has; returns the number of records."""
        count = 0
        for item in self.source.take(timeout_s):
            if isinstance(item, PartitionRevoked):
                self.taken.pop(item.part, None)
                self.lost.append(item.part)
                continue
            next_offset, records = contents(item)
            unstored = self.taken.setdefault(item.part, TakenRecords(item.start, item.start, "", []))
            assert item.start == unstored.next, f"{item.part}: {item.start} after {unstored.next}"
            unstored.next, unstored.resume_token = next_offset, item.resume_token
            unstored.records += records
            count += len(records)
        return count

    def store(self) -> None:
        """Stores what was taken. Raises PartitionLost and StoreAway; then call `start_over`."""
        for part, unstored in sorted(self.taken.items()):
            self.position_store.move(part, unstored.start, Position(unstored.next, unstored.resume_token))
            self.kept.setdefault(part, []).extend(unstored.records)
        stored = {part: unstored.next for part, unstored in self.taken.items()}
        self.taken.clear()
        self.source.acknowledge(stored)

    def start_over(self) -> None:
        self.taken.clear()
        self.source.rewind()

    def turn(self) -> int:
        """Takes and stores once; returns the number of records."""
        count = self.take()
        try:
            self.store()
        except PartitionLost:
            self.start_over()
        return count

    def run_until(self, enough: Callable[[], bool], turns: int = 600) -> None:
        for _ in range(turns):
            if enough():
                return
            self.turn()
        raise AssertionError(f"not enough after {turns} turns: {values(self.kept)}")


def contents(taken: RecordSet | Records) -> tuple[int, list[Record]]:
    """Returns the next offset and the records at or after `start`."""
    if isinstance(taken, RecordSet):
        return records_of(taken.raw, taken.start, taken.aborted)
    return taken.next, [record for record in taken.items if record.offset >= taken.start]


def values(kept: Mapping[Partition, list[Record]]) -> dict[str, list[bytes | None]]:
    return {str(part): [record.value for record in records] for part, records in kept.items()}
