"""Record sets out of Kafka, each partition from the position that the store holds for it.

Kafka tells who reads which partition, and nothing else: positions come from the store alone, sought
while the assignment is being made, and a zombie that still reads fails at the store's compare-and-set.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Literal

from kafka import ConsumerRebalanceListener, TopicPartition
from kafka.errors import GroupAuthorizationFailedError, InvalidSessionTimeoutError, KafkaError

from analyzer.core.model import Gap, Lag, Lost, Partition, Position, Taken
from analyzer.errors import AnalyzerError
from analyzer.kafka.bounded import bound
from analyzer.kafka.client import NO_RAW, Advice, Batch, Client, Unreadable, options_of
from analyzer.kafka.damage import measure
from analyzer.kafka.held import Held
from analyzer.kafka.logs import Logs
from analyzer.kafka.membership import Membership
from analyzer.kafka.metadata import Options, Topic
from analyzer.kafka.watch import Watch
from analyzer.sources import Places

log = logging.getLogger(__name__)

SESSION_MS_MAX = 120_000
METADATA_WAIT_S = 0.05


class KafkaRecords:
    """The records of some topics of one cluster. A `Source`.

    `topics` names the source of each topic. `assign="group"` shares the partitions with every other
    member of `group_id`; `"all"` reads all of them, and `group_id` only tells lag monitors how far.
    Topics that were never counted begin at `start`. `options` are kafka-python's. `raw=None` takes
    record sets where this kafka-python gives them, and records otherwise.
    """

    def __init__(
        self,
        topics: Mapping[str, str],
        places: Places,
        *,
        group_id: str = "",
        assign: Literal["group", "all"] = "group",
        start: Literal["earliest", "latest"] = "earliest",
        session_timeout_s: float = 6.0,
        options: Options | None = None,
        raw: bool | None = None,
        wall_s: Callable[[], float] = time.time,
        uptime_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Raises ValueError for options that do not exist or cannot be had; connects to nobody yet."""
        if assign == "group" and not group_id:
            raise ValueError('assign = "group" needs a group_id')
        if raw and NO_RAW:
            raise ValueError(NO_RAW)
        self._sources = dict(topics)
        self._places = places
        self._group_id = group_id
        self._assign = assign
        self._start = start
        self._session_ms = int(session_timeout_s * 1000)
        self._options = {**options_of(options or {}), "group_id": group_id or None}
        self._raw = not NO_RAW if raw is None else raw
        if not self._raw:
            bound()  # what kafka-python unpacks itself
        self._wall_s = wall_s
        self._uptime_s = uptime_s
        self._sleep = sleep

        self._client: Client | None = None
        self._held: dict[TopicPartition, Held] = {}
        self._unplaced: set[TopicPartition] = set()  # assigned to us, but we do not know yet where to go on
        self._lost: deque[Partition] = deque()
        self._fetched: deque[tuple[Held, Batch]] = deque()
        self._read_again: dict[Partition, int] = {}  # from where, because it was damaged
        self._logs = Logs(self._sources, places)
        self._watch = Watch(uptime_s, self._options, self._sources)
        self._membership = Membership(self._options, self._watch)
        self._advice = Advice(uptime_s)
        self.polling_since: float | None = None  # uptime; for whoever watches that this does not hang

    # ---------------------------------------------------------------------------------- for the pipeline

    def take(self, timeout_s: float) -> Iterator[Taken]:
        """At most one poll; yields what it brought. See `Source`. Trouble with Kafka is not raised but
        told by `problems()`: the connection is made anew, and what was read is read again."""
        if not self._lost and not self._fetched:
            self._read(timeout_s)
        while self._lost:
            yield Lost(self._lost.popleft())
        while self._fetched:
            held, batch = self._fetched.popleft()
            held.next = batch.next
            held.seen_ms = batch.last_ms or held.seen_ms
            yield batch.of(held.part)

    def lags(self) -> dict[Partition, Lag]:
        wall_s, uptime_s = self._wall_s(), self._uptime_s()
        lags = {}
        for at, held in list(self._held.items()):
            end = self._client.end(at) if self._client is not None else held.next
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

    def problems(self) -> dict[str, str]:
        found = self._logs.problems()
        found |= {str(part): gap.why for part, gap in self.stopped().items()}
        if cause := self._watch.cause(self._client, self.polling_since):
            found[self._watch.name(cause)] = self._watch.sentence(cause)
        return found

    def rewind(self, parts: Collection[Partition] | None = None) -> None:
        if renewed := {part.topic for part in parts or () if part in self._logs.gaps()}:
            self._logs.renew(renewed)
            self._disconnect()  # this connection asks for the old log
            return
        again = {at for at, held in self._held.items() if parts is None or held.part in parts}
        for at in again:
            self._drop(at)
        if self._client is not None:
            self._client.hold(again)
            self._unplaced |= again

    def stopped(self) -> dict[Partition, Gap]:
        held = [each for each in list(self._held.values()) if each.part.topic not in self._logs.refused]
        return {each.part: each.stopped for each in held if each.stopped} | self._logs.gaps()

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
        log.error("%s: stopped: %s", part, gap.why)
        self._forget_fetched(held)
        self._stand_before(at, held, gap)

    def _go_back(self, at: TopicPartition, held: Held, offset: int) -> None:
        """Fetch once more from `offset`, up to which everything was counted."""
        client = self._client
        if client is None or at in client.spoilt:
            self._lost.append(held.part)
            self.rewind([held.part])
            return
        held.next = offset
        self._forget_fetched(held)
        client.go_on(at, offset, held.part.topic_id)

    def _stand_before(self, at: TopicPartition, held: Held, gap: Gap) -> None:
        held.stopped = gap
        if self._client is not None:
            self._client.hold([at])
        if gap.end is None and gap.kind in ("corrupt", "unsupported"):
            measure(at, gap.start, self._options, self._raw, partial(held.measured, gap))

    def acknowledge(self, stored: Mapping[Partition, int]) -> None:
        for at, held in self._held.items():
            if held.part in stored:
                held.stored = stored[held.part]
                self._advice.note({at: held.stored})

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            if self._group_id and not self._watch.trouble:
                self._advice.send_last(client)
            client.close()

    # ------------------------------------------------------------------------------------------- reading

    def _read(self, timeout_s: float) -> None:
        client = self._client or self._open()
        if client is None:
            self._sleep(min(timeout_s, self._watch.wait_s))
            return
        if client.spoilt & self._unplaced:
            self._give_up(Spoilt("a damaged batch is to be read again, which takes another connection"))
            return
        self._look_at_topics(client)
        self._place(client)  # raises StoreAway: then nothing is read either
        if self._group_id:
            self._advice.send(client)
        began_s = self.polling_since = self._uptime_s()
        try:
            found = self._poll(client, timeout_s)
        except Exception as failed:  # noqa: BLE001 - whatever it is: kafka-python may hang in the next poll
            self._give_up(failed)
        else:
            self._logs.look(client.cluster, client.topics())
            for each in found:
                self._keep(each)
            self._look_at_connection(client, self._uptime_s() - began_s)
        finally:
            self.polling_since = None

    def _poll(self, client: Client, timeout_s: float) -> list[Batch | Unreadable]:
        if self._assign == "group" and not client.topics():
            # Joined before it knows of any partition, a group's leader gives none to anybody.
            self._sleep(min(timeout_s, METADATA_WAIT_S))
            return []
        return client.poll(timeout_s)

    def _keep(self, batch: Batch | Unreadable) -> None:
        held = self._held.get(batch.at)
        if held is None or held.stopped or batch.at.topic in self._logs.refused:
            return
        if isinstance(batch, Unreadable):
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

    def _drop(self, at: TopicPartition) -> None:
        held = self._held.pop(at)
        self._forget_fetched(held)

    def _forget_fetched(self, held: Held) -> None:
        self._fetched = deque(each for each in self._fetched if each[0] is not held)
        held.fetched = held.next

    # --------------------------------------------------------------------------------- connecting, again

    def _open(self) -> Client | None:
        if self._watch.wait_s:
            return None
        if in_the_way := self._membership.in_the_way():
            self._give_up(in_the_way)
            return None
        options = {**self._options}
        if self._assign == "group":
            options["session_timeout_ms"] = self._session_ms
            options["heartbeat_interval_ms"] = min(
                self._session_ms // 6, options.get("heartbeat_interval_ms", self._session_ms)
            )
        try:
            client = Client(self._sources, options, raw=self._raw, uptime_s=self._uptime_s)
        except Exception as failed:  # noqa: BLE001 - wrong certificates, names, ports: many kinds, one cure
            self._give_up(failed)
            return None
        if self._assign == "group":
            client.subscribe(Listener(self))
        self._client = client
        self._watch.opened()
        return client

    def _give_up(self, failed: Exception) -> None:
        """Throw the connection away and make another one after a while; what was read is read again."""
        refused = isinstance(failed, InvalidSessionTimeoutError) and self._session_ms < SESSION_MS_MAX
        if refused:
            self._session_ms *= 2  # this broker allows no shorter one
        if isinstance(failed, GroupAuthorizationFailedError) and self._assign == "all":
            log.warning("lag monitors are not told how far we are: no right to the group %s", self._group_id)
            self._group_id, self._options["group_id"], refused = "", None, True
        self._watch.failed(failed, at_once=refused)
        if refused:
            self._watch.trouble = None
        self._watch.tell(self._watch.trouble)
        self._disconnect()

    def _disconnect(self) -> None:
        self.revoked(list(self._held))
        self._unplaced.clear()
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _look_at_connection(self, client: Client, waited_s: float) -> None:
        reading = any(not held.stopped for held in self._held.values())
        busy = bool(client.assignment()) or not client.topics()
        self._watch.waited(waited_s, client.answers, reading=reading, idle=not busy)
        self._watch.tell(self._watch.cause(client, None))
        if self._assign == "group" and (failed := self._membership.look(client, self._session_ms / 1000)):
            self._give_up(failed)

    # -------------------------------------------------------------------------- partitions come and go

    def assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """On the client's own thread, while `take()` waits in `poll()`. Must not raise, nor ask Kafka."""
        client = self._client
        if client is None:
            return
        ours = set(assigned)
        client.hold(ours)  # whatever happens now, nothing is fetched from the wrong place
        self._unplaced |= ours
        try:
            self._place_stored(client)
        except Exception as failed:  # noqa: BLE001 - the next take() places them, and raises what is wrong
            log.warning("%d partitions wait for their stored positions: %s", len(ours), failed)

    def revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """On the client's own thread, too."""
        for at in revoked:
            self._unplaced.discard(at)
            self._advice.forget([at])
            if at in self._held:
                self._lost.append(self._held[at].part)
                self._drop(at)
            if self._client is not None:
                self._client.let_go(at)

    def _look_at_topics(self, client: Client) -> None:
        """Stop a topic that is another one than it was; read partitions that are new."""
        client.refresh()
        topics = client.topics()
        self._logs.look(client.cluster, topics)
        for held in self._held.values():
            if held.part.topic in self._logs.refused and not held.stopped:
                why = self._logs.refused[held.part.topic]
                self.stop(held.part, Gap("recreated", 0, None, why))
        if self._assign == "all":
            every = {at for name in topics for at in partitions(name, topics)}
            if more := every - client.assignment():
                client.assign(more)
                self.assigned(more)

    # ------------------------------------------------------------------------------------------- placing

    def _place(self, client: Client) -> None:
        """Find out where each partition goes on that has no place yet. Raises StoreAway."""
        if self._unplaced:
            self._place_stored(client)
        for topic in sorted({at.topic for at in self._logs.parts(self._unplaced).values()}):
            self._begin(client, topic)

    def _place_stored(self, client: Client) -> None:
        """Go on with those whose position is stored. Raises StoreAway; asks nothing of Kafka."""
        self._logs.look(client.cluster, client.topics())
        parts = self._logs.parts(self._unplaced)
        stored = self._places.positions(list(parts)) if parts else {}
        for part, position in stored.items():
            self._go_on(client, parts[part], position)

    def _begin(self, client: Client, topic: str) -> None:
        """Begin partitions that nobody has counted yet. Raises StoreAway."""
        known = self._logs.counted_before(topic)
        # All partitions of a new topic begin as the configuration says. One that comes later begins at its
        # beginning: what was written to it before it was noticed is not to be left out.
        new = {at for at in self._logs.parts(self._unplaced).values() if at.topic == topic}
        if not new:
            return
        wanted = new if known else new | partitions(topic, client.topics())
        latest = self._start == "latest" and not known
        try:
            first = client.ends(wanted) if latest else client.begins(wanted)
        except KafkaError as away:
            log.warning("%s waits for its offsets: %r", topic, away)
            return
        for at in sorted(wanted):
            position = self._places.begin(self._logs.part(at), first[at])
            if at in new:
                self._go_on(client, at, position)

    def _go_on(self, client: Client, at: TopicPartition, position: Position) -> None:
        self._unplaced.discard(at)
        next_offset, now_ms = position.next, int(self._wall_s() * 1000)
        part = self._logs.part(at)
        self._held[at] = Held(part, next_offset, next_offset, next_offset, now_ms)
        if position.gap is None:
            client.go_on(at, next_offset, part.topic_id)
        else:
            log.warning("%s: still stopped: %s", part, position.gap.why)
            self._stand_before(at, self._held[at], position.gap)


def partitions(name: str, topics: Mapping[str, Topic]) -> set[TopicPartition]:
    return {TopicPartition(name, number) for number in topics[name].partitions} if name in topics else set()


class Spoilt(AnalyzerError):
    """This connection cannot be used for what comes next."""


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
    """Passes on what the group's coordinator says. Lost or revoked is the same to us: the store decides."""

    def __init__(self, reader: KafkaRecords) -> None:
        self._reader = reader

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._reader.assigned(assigned)

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self._reader.revoked(revoked)

    def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        self._reader.revoked(lost)
