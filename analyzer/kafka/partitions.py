"""The partitions that we were given: where each goes on, what was fetched of it, and what stopped it.

Positions come from the store alone. Nothing here connects, waits, or decides when to read.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Literal

from kafka import TopicPartition
from kafka.errors import KafkaError

from analyzer.core.model import Gap, Lag, Partition, PartitionRevoked, Position, SourceItem
from analyzer.kafka.client import FetchedPartition, KafkaClient, UnreadablePartition
from analyzer.kafka.metadata import TopicMetadata
from analyzer.kafka.partition_state import PartitionState, epoch_of, gap_sentence
from analyzer.kafka.topic_ids import TopicIds
from analyzer.sources import PositionStore

log = logging.getLogger(__name__)

Measure = Callable[[TopicPartition, int, Callable[[int], None]], None]


class AssignedPartitions:
    """What we hold of Kafka, behind one connection after another.

    `client` is the present one, or None. `measure` finds out where reading can go on behind damage, and
    tells it, perhaps later and from another thread.
    """

    def __init__(
        self,
        sources: Mapping[str, str],
        places: PositionStore,
        measure: Measure,
        *,
        start: Literal["earliest", "latest"],
        wall_s: Callable[[], float],
        uptime_s: Callable[[], float],
    ) -> None:
        self._places = places
        self._measure = measure
        self._start = start
        self._wall_s = wall_s
        self._uptime_s = uptime_s
        self.client: KafkaClient | None = None
        self.logs = TopicIds(sources, places)
        self.unplaced: set[TopicPartition] = set()  # assigned to us, but we do not know yet where to go on
        self._held: dict[TopicPartition, PartitionState] = {}
        self._lost: deque[Partition] = deque()
        self._fetched: deque[tuple[PartitionState, FetchedPartition]] = deque()
        self._read_again: dict[Partition, int] = {}  # from where, because it was damaged

    # ------------------------------------------------------------------------------------ what there is

    @property
    def waiting(self) -> bool:
        """Whether something was found that was not given yet."""
        return bool(self._lost or self._fetched)

    def given(self) -> Iterator[SourceItem]:
        """What was found, losses first."""
        while self._lost:
            yield PartitionRevoked(self._lost.popleft())
        while self._fetched:
            held, batch = self._fetched.popleft()
            held.next = batch.next
            held.seen_ms = batch.last_ms or held.seen_ms
            yield batch.of(held.part)

    def lags(self) -> dict[Partition, Lag]:
        wall_s, uptime_s = self._wall_s(), self._uptime_s()
        lags = {}
        for at, held in list(self._held.items()):
            end = self.client.end(at) if self.client is not None else held.next
            lags[held.part] = held.lag(end, wall_s, uptime_s)
        return lags

    def positions(self) -> dict[Partition, int]:
        # Of a stopped partition the counter may have refused a part of what it was given. One that was not
        # begun has no position.
        return {
            held.part: held.stored if held.stopped else held.next
            for held in list(self._held.values())
            if held.stopped is None or held.stopped.position is not None
        }

    def stopped(self) -> dict[Partition, Gap]:
        held = [each for each in list(self._held.values()) if each.part.topic not in self.logs.refused]
        return {each.part: each.stopped for each in held if each.stopped} | self.logs.gaps()

    @property
    def reading(self) -> bool:
        """Whether one of them is read, rather than stopped."""
        return any(not held.stopped for held in self._held.values())

    def keep(self, batch: FetchedPartition | UnreadablePartition) -> None:
        """Have what one poll brought given next, unless it is not wanted any more."""
        held = self._held.get(batch.at)
        if held is None or held.stopped or batch.at.topic in self.logs.refused:
            return
        if isinstance(batch, UnreadablePartition):
            self.stop(held.part, batch.gap)
            return
        if batch.start != held.fetched:
            # Never seen. It would be a client that reads from elsewhere than we said.
            log.error("%s: Kafka gave offset %d for %d", held.part, batch.start, held.fetched)
            self._lost.append(held.part)
            self.rewind([held.part])
            return
        held.fetched = batch.next
        self._fetched.append((held, batch))

    def acknowledge(self, stored: Mapping[Partition, int]) -> dict[TopicPartition, int]:
        """Note what is stored; the same by the client's names, of those that we hold."""
        known = {at: stored[held.part] for at, held in self._held.items() if held.part in stored}
        for at, offset in known.items():
            self._held[at].stored = offset
        return known

    # ------------------------------------------------------------------------------- stopping, going back

    def stop(self, part: Partition, gap: Gap) -> None:
        at = TopicPartition(part.topic, part.number)
        held = self._held.get(at)
        if held is None or held.part != part:
            return
        if gap.kind == "corrupt" and self._read_again.get(part) != gap.start:
            log.warning("%s: %s; reading it again", part, gap.why)
            self._read_again[part] = gap.start
            self._go_back(at, held, gap.start)
            return
        log.error("%s: stopped, the rest goes on: %s", part, gap_sentence(gap))
        self._forget_fetched(held)
        self._stand_before(at, held, gap)

    def rewind(self, parts: Collection[Partition] | None = None) -> None:
        again = {at for at, held in self._held.items() if parts is None or held.part in parts}
        for at in again:
            self._drop(at)
        if self.client is not None:
            self.client.hold(again)
            self.unplaced |= again

    def _go_back(self, at: TopicPartition, held: PartitionState, offset: int) -> None:
        """Fetch once more from `offset`, up to which everything was counted."""
        client = self.client
        if client is None or at in client.spoilt:
            self._lost.append(held.part)
            self.rewind([held.part])
            return
        held.next = offset
        self._forget_fetched(held)
        client.go_on(at, offset, held.part.topic_id)

    def _stand_before(self, at: TopicPartition, held: PartitionState, gap: Gap) -> None:
        held.stopped = gap
        if self.client is not None:
            self.client.hold([at])
        if gap.end is None and gap.kind in ("corrupt", "unsupported"):
            self._measure(at, gap.start, partial(held.measured, gap))

    def _drop(self, at: TopicPartition) -> None:
        held = self._held.pop(at)
        self._forget_fetched(held)

    def _forget_fetched(self, held: PartitionState) -> None:
        self._fetched = deque(each for each in self._fetched if each[0] is not held)
        held.fetched = held.next

    # -------------------------------------------------------------------------- partitions come and go

    def assigned(self, ours: Collection[TopicPartition]) -> None:
        """These are ours from now on. May be called on the client's own thread: asks nothing of Kafka, and
        does not raise."""
        client = self.client
        if client is None:
            return
        client.hold(ours)  # whatever happens now, nothing is fetched from the wrong place
        self.unplaced |= set(ours)
        try:
            self._place_stored(client)
        except Exception as failed:  # noqa: BLE001 - the next take() places them, and raises what is wrong
            log.warning("%d partitions wait for their stored positions: %s", len(ours), failed)

    def revoked(self, theirs: Iterable[TopicPartition]) -> None:
        """These are not ours any more. The same."""
        for at in theirs:
            self.unplaced.discard(at)
            if at in self._held:
                self._lost.append(self._held[at].part)
                self._drop(at)
            if self.client is not None:
                self.client.let_go(at)

    def let_go(self) -> None:
        """No connection, no partition."""
        self.revoked(list(self._held))
        self.unplaced.clear()
        self.client = None

    def look_at_topics(self, client: KafkaClient) -> None:
        """Stop a topic that is another one than it was."""
        self.logs.look(client.cluster, client.topics())
        for held in self._held.values():
            if held.part.topic in self.logs.refused and not held.stopped:
                why = self.logs.refused[held.part.topic]
                self.stop(held.part, Gap("recreated", 0, None, why))

    # ------------------------------------------------------------------------------------------- placing

    def place(self, client: KafkaClient) -> None:
        """Find out where each partition goes on that has no place yet. Raises StoreAway."""
        if self.unplaced:
            self._place_stored(client)
        for topic in sorted({at.topic for at in self.logs.parts(self.unplaced).values()}):
            self._begin(client, topic)

    def _place_stored(self, client: KafkaClient) -> None:
        """Go on with those whose position is stored. Raises StoreAway; asks nothing of Kafka."""
        self.logs.look(client.cluster, client.topics())
        parts = self.logs.parts(self.unplaced)
        stored = self._places.positions(list(parts)) if parts else {}
        for part, position in stored.items():
            self._go_on(client, parts[part], position)

    def _begin(self, client: KafkaClient, topic: str) -> None:
        """Begin partitions that nobody has counted yet. Raises StoreAway."""
        known = self.logs.counted_before(topic)
        # All partitions of a new topic begin as the configuration says. One that comes later begins at its
        # beginning: what was written to it before it was noticed is not to be left out.
        new = {at for at in self.logs.parts(self.unplaced).values() if at.topic == topic}
        if not new:
            return
        wanted = new if known else new | partitions_of_topic(topic, client.topics())
        latest = self._start == "latest" and not known
        try:
            first = client.ends(wanted) if latest else client.begins(wanted)
        except KafkaError as away:
            log.warning("%s waits for its offsets: %r", topic, away)
            return
        for at in sorted(wanted):
            position = self._places.begin(self.logs.part(at), first[at])
            if at in new:
                self._go_on(client, at, position)

    def _go_on(self, client: KafkaClient, at: TopicPartition, position: Position) -> None:
        self.unplaced.discard(at)
        next_offset, now_ms = position.next, int(self._wall_s() * 1000)
        part = self.logs.part(at)
        self._held[at] = PartitionState(part, next_offset, next_offset, next_offset, now_ms)
        if position.gap is None:
            client.go_on(at, next_offset, part.topic_id, epoch_of(position.resume_token))
        else:
            log.warning("%s: still stopped: %s", part, gap_sentence(position.gap))
            self._stand_before(at, self._held[at], position.gap)


def partitions_of_topic(name: str, topics: Mapping[str, TopicMetadata]) -> set[TopicPartition]:
    """Every partition of the topic `name`."""
    return {TopicPartition(name, number) for number in topics[name].partitions} if name in topics else set()
