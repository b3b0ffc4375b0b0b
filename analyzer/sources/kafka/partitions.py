"""The partitions that are assigned to us: their positions, what was fetched of them, what stopped them.

Positions come from the store alone. Nothing here connects, waits, or decides when to read.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from kafka import TopicPartition
from kafka.errors import KafkaError

from analyzer.kernel.model import Gap, Lag, Partition, PartitionRevoked, Position, SourceItem
from analyzer.sources.kafka.client import KafkaClient
from analyzer.sources.kafka.fetched_batches import FetchedPartition, UnreadablePartition
from analyzer.sources.kafka.metadata import TopicMetadata
from analyzer.sources.kafka.topic_ids import TopicIds
from analyzer.sources.positions import PositionStore

log = logging.getLogger(__name__)

DAY_S = 86_400.0

# Finds the end of the damage at an offset, and reports it, perhaps later and from another thread.
MeasureDamage = Callable[[TopicPartition, int, Callable[[int], None]], None]


@dataclass(slots=True)
class PartitionState:
    """The progress in one partition."""

    part: Partition
    next: int  # the offset that is handed to the pipeline next
    fetched: int  # the offset that is fetched next
    stored: int
    last_ms: int  # timestamp of the last record that was handed on; before the first, when we began
    stopped: Gap | None = None
    caught_up_s: float | None = None  # uptime when we last had all records

    def lag(self, end: int, wall_s: float, uptime_s: float) -> Lag:
        """Returns how far we are behind `end`, the offset after the last record."""
        records = max(0, end - self.next)
        if not records and self.stopped is None:
            self.caught_up_s = uptime_s
            return Lag(0, 0.0)
        return Lag(records, self._behind_s(wall_s - self.last_ms / 1000, uptime_s))

    def set_gap_end(self, gap: Gap, end: int) -> None:
        """Notes that reading can continue at `end`, if `gap` still stops the partition. Any thread."""
        if self.stopped == gap:
            self.stopped = gap._replace(end=end, why=f"{gap.why}; it can be read again from {end}")

    def _behind_s(self, age_s: float, uptime_s: float) -> float:
        """Returns the age of the last record, corrected.

        Its timestamp is mostly that of its producer, whose clock may be wrong by years. But no record that we
        lack is older than the moment when we last had all.
        """
        if self.caught_up_s is None:
            return max(0.0, age_s)
        since_s = uptime_s - self.caught_up_s
        return age_s if 0.0 <= age_s <= since_s + DAY_S else since_s


class AssignedPartitions:
    """The partitions of one source, over one connection after another.

    `client` is the present connection, or None.
    """

    def __init__(
        self,
        sources: Mapping[str, str],
        positions: PositionStore,
        measure_damage: MeasureDamage,
        *,
        start: Literal["earliest", "latest"],
        wall_s: Callable[[], float],
        uptime_s: Callable[[], float],
    ) -> None:
        self._positions = positions
        self._measure_damage = measure_damage
        self._start = start
        self._wall_s = wall_s
        self._uptime_s = uptime_s
        self.client: KafkaClient | None = None
        self.topic_ids = TopicIds(sources, positions)
        self.without_position: set[TopicPartition] = set()  # assigned to us; their position is not known yet
        self._states: dict[TopicPartition, PartitionState] = {}
        self._revoked: deque[Partition] = deque()
        self._fetched: deque[tuple[PartitionState, FetchedPartition]] = deque()
        self._read_again: dict[Partition, int] = {}  # the damaged offsets that were fetched a second time

    # ---------------------------------------------------------------------------------- for the pipeline

    @property
    def has_items(self) -> bool:
        return bool(self._revoked or self._fetched)

    def items(self) -> Iterator[SourceItem]:
        """Yields what was fetched and not handed on, revoked partitions first."""
        while self._revoked:
            yield PartitionRevoked(self._revoked.popleft())
        while self._fetched:
            state, fetched = self._fetched.popleft()
            state.next = fetched.next
            state.last_ms = fetched.last_ms or state.last_ms
            yield fetched.of(state.part)

    def lags(self) -> dict[Partition, Lag]:
        wall_s, uptime_s = self._wall_s(), self._uptime_s()
        lags = {}
        for tp, state in list(self._states.items()):
            end = self.client.end(tp) if self.client is not None else state.next
            lags[state.part] = state.lag(end, wall_s, uptime_s)
        return lags

    def positions(self) -> dict[Partition, int]:
        # Of a stopped partition the counter may have refused a part of what it was given. One that was never
        # begun has no position.
        return {
            state.part: state.stored if state.stopped else state.next
            for state in list(self._states.values())
            if state.stopped is None or state.stopped.position is not None
        }

    def stopped(self) -> dict[Partition, Gap]:
        states = [s for s in list(self._states.values()) if s.part.topic not in self.topic_ids.refused]
        return {state.part: state.stopped for state in states if state.stopped} | self.topic_ids.gaps()

    @property
    def is_reading(self) -> bool:
        """Whether at least one partition is not stopped."""
        return any(not state.stopped for state in self._states.values())

    def keep(self, fetched: FetchedPartition | UnreadablePartition) -> None:
        """Queues what a poll returned, unless its partition is stopped or not ours any more."""
        state = self._states.get(fetched.tp)
        if state is None or state.stopped or fetched.tp.topic in self.topic_ids.refused:
            return
        if isinstance(fetched, UnreadablePartition):
            self.stop(state.part, fetched.gap)
            return
        if fetched.start != state.fetched:
            # Defensive, not observed: the client would have continued at another offset than the requested
            # one.
            log.error("%s: Kafka returned offset %d instead of %d", state.part, fetched.start, state.fetched)
            self._revoked.append(state.part)
            self.rewind([state.part])
            return
        state.fetched = fetched.next
        self._fetched.extend((state, piece) for piece in fetched.pieces())

    def acknowledge(self, stored: Mapping[Partition, int]) -> dict[TopicPartition, int]:
        """Notes the stored offsets; returns those of our partitions."""
        offsets = {tp: stored[state.part] for tp, state in self._states.items() if state.part in stored}
        for tp, offset in offsets.items():
            self._states[tp].stored = offset
        return offsets

    # ------------------------------------------------------------------------------ stopping, rewinding

    def stop(self, part: Partition, gap: Gap) -> None:
        tp = TopicPartition(part.topic, part.number)
        state = self._states.get(tp)
        if state is None or state.part != part:
            return
        # Damage in transit is gone after a second fetch.
        if gap.kind == "corrupt" and self._read_again.get(part) != gap.start:
            log.warning("%s: %s; reading it again", part, gap.why)
            self._read_again[part] = gap.start
            self._fetch_again(tp, state, gap.start)
            return
        log.error("%s: stopped, other partitions continue: %s", part, gap_sentence(gap))
        self._discard_fetched(state)
        self._hold_at(tp, state, gap)

    def rewind(self, parts: Collection[Partition] | None = None) -> None:
        again = {tp for tp, state in self._states.items() if parts is None or state.part in parts}
        for tp in again:
            self._drop(tp)
        if self.client is not None:
            self.client.pause(again)
            self.without_position |= again

    def _fetch_again(self, tp: TopicPartition, state: PartitionState, offset: int) -> None:
        """Fetches from `offset` once more; everything before it was counted."""
        if self.client is None:
            self._revoked.append(state.part)
            self.rewind([state.part])
            return
        state.next = offset
        self._discard_fetched(state)
        self.client.resume(tp, offset, state.part.topic_id)

    def _hold_at(self, tp: TopicPartition, state: PartitionState, gap: Gap) -> None:
        state.stopped = gap
        if self.client is not None:
            self.client.pause([tp])
        if gap.end is None and gap.kind in ("corrupt", "unsupported"):
            self._measure_damage(tp, gap.start, partial(state.set_gap_end, gap))

    def _drop(self, tp: TopicPartition) -> None:
        self._discard_fetched(self._states.pop(tp))

    def _discard_fetched(self, state: PartitionState) -> None:
        self._fetched = deque(item for item in self._fetched if item[0] is not state)
        state.fetched = state.next

    # ------------------------------------------------------------------------------------- rebalancing

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Takes these partitions over.

        May be called on the client's own thread, so it sends no request to Kafka and does not raise.
        """
        client = self.client
        if client is None:
            return
        client.pause(partitions)  # so that nothing is fetched from a wrong offset if the store fails
        self.without_position |= set(partitions)
        try:
            self._find_stored_positions(client)
        except Exception as error:  # noqa: BLE001 - the next `find_positions` repeats it, and raises
            log.warning("%d partitions wait for their stored positions: %s", len(partitions), error)

    def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """Gives these partitions up. May be called on the client's own thread."""
        for tp in partitions:
            self.without_position.discard(tp)
            if tp in self._states:
                self._revoked.append(self._states[tp].part)
                self._drop(tp)
            if self.client is not None:
                self.client.release(tp)

    def disconnected(self) -> None:
        """Gives all partitions up, with their connection."""
        self.revoked(list(self._states))
        self.without_position.clear()
        self.client = None

    def check_topic_ids(self, client: KafkaClient) -> None:
        """Stops the partitions of each topic that was deleted and created again."""
        self.topic_ids.update(client.cluster, client.topics())
        for state in self._states.values():
            if state.part.topic in self.topic_ids.refused and not state.stopped:
                self.stop(state.part, Gap("recreated", 0, None, self.topic_ids.refused[state.part.topic]))

    # --------------------------------------------------------------------------------------- positions

    def find_positions(self, client: KafkaClient) -> None:
        """Finds the position of each partition that has none, and fetches from there. Raises StoreAway."""
        if self.without_position:
            self._find_stored_positions(client)
        for topic in sorted({tp.topic for tp in self.topic_ids.parts(self.without_position).values()}):
            self._begin(client, topic)

    def _find_stored_positions(self, client: KafkaClient) -> None:
        """Continues the partitions whose position is stored. Raises StoreAway; sends no request to Kafka."""
        self.topic_ids.update(client.cluster, client.topics())
        parts = self.topic_ids.parts(self.without_position)
        stored = self._positions.positions(list(parts)) if parts else {}
        for part, position in stored.items():
            self._continue(client, parts[part], position)

    def _begin(self, client: KafkaClient, topic: str) -> None:
        """Begins partitions that were never counted. Raises StoreAway."""
        is_known = self.topic_ids.is_counted(topic)
        # All partitions of a new topic begin as configured. A partition that is added later begins at its
        # first record: what was written before it was noticed must be counted, too.
        new = {tp for tp in self.topic_ids.parts(self.without_position).values() if tp.topic == topic}
        if not new:
            return
        partitions = new if is_known else new | partitions_of_topic(topic, client.topics())
        from_end = self._start == "latest" and not is_known
        try:
            first = client.ends(partitions) if from_end else client.begins(partitions)
        except KafkaError as error:
            log.warning("%s waits for its offsets: %r", topic, error)
            return
        for tp in sorted(partitions):
            position = self._positions.begin(self.topic_ids.part(tp), first[tp])
            if tp in new:
                self._continue(client, tp, position)

    def _continue(self, client: KafkaClient, tp: TopicPartition, position: Position) -> None:
        self.without_position.discard(tp)
        offset, now_ms = position.next, int(self._wall_s() * 1000)
        part = self.topic_ids.part(tp)
        self._states[tp] = PartitionState(part, offset, offset, offset, now_ms)
        if position.gap is None:
            client.resume(tp, offset, part.topic_id, position.resume_token)
        else:
            log.warning("%s: still stopped: %s", part, gap_sentence(position.gap))
            self._hold_at(tp, self._states[tp], position.gap)


def gap_sentence(gap: Gap) -> str:
    """Returns what stopped a partition, and the command that says what to do."""
    if gap.kind == "too-many-rejected":
        return gap.why  # has the command already
    return f"{gap.why}; `gatelock upkeep sources list --gaps` says what to do"


def partitions_of_topic(name: str, topics: Mapping[str, TopicMetadata]) -> set[TopicPartition]:
    return {TopicPartition(name, number) for number in topics[name].partitions} if name in topics else set()
