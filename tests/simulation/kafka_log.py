"""A topic of Kafka in memory: batches as bytes, transactions, retention, and a consumer group.

`SimulatedClient` has the part of `sources.kafka.client.KafkaClient` that `AssignedPartitions` uses, so the
positions, gaps and rebalances of a simulation are those of the product.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kafka import TopicPartition

from analyzer.kernel.model import Gap, Lag, Partition, SourceItem
from analyzer.sources.kafka.client import out_of_range_gap
from analyzer.sources.kafka.fetched_batches import FetchedPartition, UnreadablePartition
from analyzer.sources.kafka.metadata import TopicMetadata
from analyzer.sources.kafka.partitions import AssignedPartitions
from analyzer.sources.kafka.source import REVOCATION_WAIT_S
from analyzer.sources.positions import PositionStore
from tests.simulation.scheduler import Scheduler
from tests.support import recordsets

TOPIC, CLUSTER, TOPIC_ID, SOURCE = "access-log", "cluster", "name:access-log", "log"
SESSION_S = 6.0  # a member that has not polled since then loses its partitions
BATCHES_PER_FETCH = 4


class Logged(NamedTuple):
    """A record in the log, and what it must add to the counts; None where it must be rejected.

    `corrected` is what it adds when it is retried with a corrected mapping; None where it cannot be read.
    """

    value: bytes | None
    expected: Expected | None
    corrected: Expected | None = None


class Expected(NamedTuple):
    """One request, as it must be counted."""

    at_s: int
    caller: str
    resource: str
    size: int
    is_denied: bool  # by what its record says
    policy: str = ""  # that denied it, as its record says
    address: str = ""
    weight: int = 1  # requests that the record stands for
    id: str = ""  # of the event; "": the record has none


class Batch(NamedTuple):
    """Consecutive offsets of a partition; those of a control batch and of aborted ones hold nothing."""

    base: int
    next: int
    raw: bytes
    records: Sequence[Logged]
    kafka_ms: int = 0
    producer: int = -1
    is_aborted: bool = False


@dataclass
class PartitionLog:
    """One partition."""

    number: int
    start: int = 0
    batches: list[Batch] = field(default_factory=list)  # from the beginning, deleted ones included
    open_from: int | None = None  # first offset of a transaction that is neither committed nor aborted
    open_producer: int = -1

    @property
    def part(self) -> Partition:
        return Partition(CLUSTER, TOPIC_ID, self.number, SOURCE, TOPIC)

    @property
    def end(self) -> int:
        return self.batches[-1].next if self.batches else 0

    @property
    def stable_end(self) -> int:
        """The offset after the last record that a reader of committed records gets."""
        return self.end if self.open_from is None else self.open_from

    def append(self, records: Sequence[Logged], kafka_ms: int, producer: int = -1) -> None:
        attributes = 0 if producer < 0 else recordsets.TRANSACTIONAL
        values = [record.value for record in records]
        raw = recordsets.batch(values, self.end, attributes=attributes, producer=producer, first_ms=kafka_ms)
        self.batches.append(Batch(self.end, self.end + len(records), raw, records, kafka_ms, producer))

    def begin_transaction(self, producer: int) -> None:
        self.open_from, self.open_producer = self.end, producer

    def end_transaction(self, producer: int, *, commits: bool) -> None:
        """Writes the marker, unless it is written; the records of an aborted transaction are never read."""
        if self.open_from is None or self.open_producer != producer:
            return
        if not commits:
            self.batches = [
                batch._replace(is_aborted=True, records=()) if batch.producer == producer else batch
                for batch in self.batches
            ]
        kind = recordsets.COMMIT if commits else recordsets.ABORT
        marker = recordsets.control(self.end, producer, kind)
        self.batches.append(Batch(self.end, self.end + 1, marker, (), 0))
        self.open_from = None

    def delete_to(self, offset: int) -> None:
        """Deletes whole batches before `offset`, as retention does."""
        self.start = max((batch.base for batch in self.batches if batch.base <= offset), default=0)

    def records(self, begin: int, end: int) -> Iterator[tuple[int, int, Logged]]:
        """Yields offsets, Kafka times and records in [begin, end) that are committed, deleted ones too."""
        for batch in self.batches:
            for at, record in enumerate(batch.records, batch.base):
                if begin <= at < end:
                    yield at, batch.kafka_ms, record

    def fetch(self, offset: int) -> tuple[int, int, bytes, list[tuple[int, int]]]:
        """Returns the next offset, the last Kafka time, whole batches, and the aborted transactions."""
        readable = [b for b in self.batches if b.next > offset and b.next <= self.stable_end]
        taken = readable[:BATCHES_PER_FETCH]
        first_of_producer: dict[int, int] = {}
        for batch in self.batches:
            if batch.is_aborted:
                first_of_producer.setdefault(batch.producer, batch.base)
        last = taken[-1].next if taken else offset
        aborted = [(producer, first) for producer, first in first_of_producer.items() if first < last]
        last_ms = max((batch.kafka_ms for batch in taken), default=0)
        return last, last_ms, b"".join(batch.raw for batch in taken), aborted


class Topic:
    """All partitions, and the group that reads them."""

    def __init__(self, partitions: int, scheduler: Scheduler) -> None:
        self.logs = {TopicPartition(TOPIC, number): PartitionLog(number) for number in range(partitions)}
        self.group = Group(list(self.logs), scheduler)


@dataclass
class Member:
    """A consumer in the group."""

    name: str
    polled_s: float
    holds: set[TopicPartition] = field(default_factory=set)  # by its own knowledge


class Group:
    """The group's coordinator: assigns partitions in turn, and gives one away when its owner released it.

    Owners release when they poll. One that does not poll for SESSION_S loses its partitions without knowing.
    """

    def __init__(self, partitions: Sequence[TopicPartition], scheduler: Scheduler) -> None:
        self._partitions = partitions
        self._scheduler = scheduler
        self._members: dict[str, Member] = {}
        self._owners: dict[TopicPartition, str] = {}
        self.shift = 0  # moves partitions between members

    def join(self, name: str) -> None:
        """Adds a member, which holds nothing: a process that was killed has forgotten what it held."""
        self._release(name)
        self._members[name] = Member(name, self._scheduler.now_s)

    def leave(self, name: str) -> None:
        self._members.pop(name, None)
        self._release(name)

    def poll(self, name: str) -> tuple[set[TopicPartition], set[TopicPartition]]:
        """Returns the partitions that the member loses and those that it gets."""
        self._expire()
        if name not in self._members:
            self.join(name)
        member = self._members[name]
        member.polled_s = self._scheduler.now_s
        wanted = {tp for tp, owner in self._targets().items() if owner == name}
        lost = {tp for tp in member.holds if tp not in wanted or self._owners.get(tp) != name}
        for tp in lost:
            if self._owners.get(tp) == name:
                del self._owners[tp]
        got = {tp for tp in wanted - member.holds if tp not in self._owners}
        self._owners |= dict.fromkeys(got, name)
        member.holds = (member.holds - lost) | got
        return lost, got

    def move(self, *, by_force: bool) -> bool:
        """Moves all partitions, each when its owner has released it; by force before it knows.

        Returns whether an owner loses any.
        """
        self.shift += 1
        has_effect = bool(self._owners) and (by_force or len(self._members) > 1)
        if by_force:
            self._owners.clear()
        return has_effect

    def _expire(self) -> None:
        # A member that was paused keeps its `holds`: it finds out when it polls again.
        for name, member in self._members.items():
            if member.polled_s < self._scheduler.now_s - SESSION_S:
                self._release(name)

    def _release(self, name: str) -> None:
        self._owners = {tp: owner for tp, owner in self._owners.items() if owner != name}

    def _targets(self) -> dict[TopicPartition, str]:
        alive = sorted(
            name
            for name, member in self._members.items()
            if member.polled_s >= self._scheduler.now_s - SESSION_S
        )
        return {tp: alive[(at + self.shift) % len(alive)] for at, tp in enumerate(self._partitions)}


class SimulatedClient:
    """A connection of one member."""

    def __init__(self, topic: Topic, member: str) -> None:
        self.cluster = CLUSTER
        self._topic = topic
        self._member = member
        self._next: dict[TopicPartition, int] = {}
        topic.group.join(member)

    def topics(self) -> dict[str, TopicMetadata]:
        return {TOPIC: TopicMetadata(TOPIC_ID, frozenset(log.number for log in self._topic.logs.values()))}

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self._next.pop(tp, None)

    def resume(self, tp: TopicPartition, offset: int, _topic_id: str = "", _resume_token: str = "") -> None:
        self._next[tp] = offset

    def release(self, tp: TopicPartition) -> None:
        self._next.pop(tp, None)

    def end(self, tp: TopicPartition) -> int:
        return self._topic.logs[tp].stable_end

    def begins(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self._topic.logs[tp].start for tp in partitions}

    def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.end(tp) for tp in partitions}

    def poll(self) -> list[FetchedPartition | UnreadablePartition]:
        """Returns what is there."""
        return [found for tp in sorted(self._next) if (found := self._fetch(tp)) is not None]

    def _fetch(self, tp: TopicPartition) -> FetchedPartition | UnreadablePartition | None:
        log, offset = self._topic.logs[tp], self._next[tp]
        if not log.start <= offset <= log.end:
            return UnreadablePartition(tp, out_of_range_gap(offset, log.start, log.end))
        last, last_ms, raw, aborted = log.fetch(offset)
        if last == offset:
            return None
        self._next[tp] = last
        return FetchedPartition(tp, offset, last, last_ms, raw, aborted)


class SimulatedSource:
    """A `Source` like `KafkaRecords`, over a simulated connection."""

    def __init__(
        self,
        topic: Topic,
        positions: PositionStore,
        member: str,
        wall_s: Callable[[], float],
        uptime_s: Callable[[], float],
    ) -> None:
        self._topic = topic
        self._positions = positions
        self._member = member
        self._client = SimulatedClient(topic, member)
        self.partitions = AssignedPartitions(
            {TOPIC: SOURCE}, positions, lambda *_: None, start="earliest", wall_s=wall_s, uptime_s=uptime_s
        )
        self.partitions.client = self._client

    def take(self, timeout_s: float) -> Iterator[SourceItem]:
        if not self.partitions.has_items:
            self.partitions.find_positions(self._client)
            self._rebalance()
            for fetched in self._client.poll():
                self.partitions.keep(fetched)
        yield from self.partitions.items()

    def _rebalance(self) -> None:
        lost, got = self._topic.group.poll(self._member)
        if lost:
            self._positions.wait_for_flush(REVOCATION_WAIT_S)
            self.partitions.revoked(sorted(lost))
        if got:
            self.partitions.assigned(got)

    def has_records(self) -> bool:
        """Whether a fetch would return records now."""
        return any(self._topic.logs[tp].stable_end > at for tp, at in self._client._next.items())

    def lags(self) -> dict[Partition, Lag]:
        return self.partitions.lags()

    def positions(self) -> dict[Partition, int]:
        return self.partitions.positions()

    def problems(self) -> dict[str, str]:
        return {}

    def rewind(self, parts: Collection[Partition] | None = None) -> None:
        self.partitions.rewind(parts)

    def stop(self, part: Partition, gap: Gap) -> None:
        self.partitions.stop(part, gap)

    def stopped(self) -> dict[Partition, Gap]:
        return self.partitions.stopped()

    def acknowledge(self, stored: Mapping[Partition, int]) -> None:
        self.partitions.acknowledge(stored)

    def close(self) -> None:
        self._topic.group.leave(self._member)
