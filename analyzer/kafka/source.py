"""Record sets out of Kafka, each partition from the position that the store holds for it.

Kafka tells who reads which partition, and nothing else: positions come from the store alone, sought
while the assignment is being made, and a zombie that still reads fails at the store's compare-and-set.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Literal

from kafka import ConsumerRebalanceListener, TopicPartition
from kafka.errors import GroupAuthorizationFailedError, InvalidSessionTimeoutError

from analyzer.core.model import Gap, Lag, Partition, SourceItem
from analyzer.errors import AnalyzerError
from analyzer.kafka.client import NO_RAW, FetchedPartition, KafkaClient, UnreadablePartition
from analyzer.kafka.connection_health import ConnectionHealth
from analyzer.kafka.group.membership import Membership
from analyzer.kafka.group.offset_commits import OffsetCommits
from analyzer.kafka.internals.decompression_bound import bound_decompression
from analyzer.kafka.options import Options, consumer_options
from analyzer.kafka.partition_state import gap_sentence
from analyzer.kafka.partitions import AssignedPartitions, partitions_of_topic
from analyzer.kafka.probes.damage_probe import measure_damage
from analyzer.sources import PositionStore

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
        places: PositionStore,
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
        self._group_id = group_id
        self._assign = assign
        self._session_ms = int(session_timeout_s * 1000)
        self._options = {**consumer_options(options or {}), "group_id": group_id or None}
        self._raw = not NO_RAW if raw is None else raw
        if not self._raw:
            bound_decompression()  # what kafka-python unpacks itself
        self._uptime_s = uptime_s
        self._sleep = sleep

        self._client: KafkaClient | None = None
        self._partitions = AssignedPartitions(
            self._sources, places, self._measure, start=start, wall_s=wall_s, uptime_s=uptime_s
        )
        self._watch = ConnectionHealth(uptime_s, self._options, self._sources)
        self._membership = Membership(self._options, self._watch)
        self._advice = OffsetCommits(uptime_s)
        self.polling_since: float | None = None  # uptime; for whoever watches that this does not hang

    # ---------------------------------------------------------------------------------- for the pipeline

    def take(self, timeout_s: float) -> Iterator[SourceItem]:
        """At most one poll; yields what it brought. See `Source`. Trouble with Kafka is not raised but
        told by `problems()`: the connection is made anew, and what was read is read again."""
        if not self._partitions.waiting:
            self._read(timeout_s)
        yield from self._partitions.given()

    def lags(self) -> dict[Partition, Lag]:
        return self._partitions.lags()

    def positions(self) -> dict[Partition, int]:
        return self._partitions.positions()

    def problems(self) -> dict[str, str]:
        found = self._partitions.logs.problems()
        found |= {str(part): gap_sentence(gap) for part, gap in self.stopped().items()}
        if cause := self._watch.cause(self._client, self.polling_since):
            found[self._watch.name(cause)] = self._watch.sentence(cause)
        return found

    def rewind(self, parts: Collection[Partition] | None = None) -> None:
        logs = self._partitions.logs
        if renewed := {part.topic for part in logs.gaps().keys() & {*(parts or ())}}:
            logs.renew(renewed)
            self._disconnect()  # this connection asks for the old log
        else:
            self._partitions.rewind(parts)

    def stopped(self) -> dict[Partition, Gap]:
        return self._partitions.stopped()

    def stop(self, part: Partition, gap: Gap) -> None:
        self._partitions.stop(part, gap)

    def acknowledge(self, stored: Mapping[Partition, int]) -> None:
        self._advice.note(self._partitions.acknowledge(stored))

    def close(self) -> None:
        client, self._client = self._client, None
        self._partitions.client = None
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
        if client.spoilt & self._partitions.unplaced:
            self._give_up(
                ConnectionSpoilt("a damaged batch is to be read again, which takes another connection")
            )
            return
        self._look_at_topics(client)
        self._partitions.place(client)  # raises StoreAway: then nothing is read either
        if self._group_id:
            self._advice.send(client)
        began_s = self.polling_since = self._uptime_s()
        try:
            found = self._poll(client, timeout_s)
        except Exception as failed:  # noqa: BLE001 - whatever it is: kafka-python may hang in the next poll
            self._give_up(failed)
        else:
            self._partitions.logs.look(client.cluster, client.topics())
            for each in found:
                self._partitions.keep(each)
            self._look_at_connection(client, self._uptime_s() - began_s)
        finally:
            self.polling_since = None

    def _look_at_topics(self, client: KafkaClient) -> None:
        """Stop a topic that is another one than it was; read partitions that are new."""
        client.refresh()
        self._partitions.look_at_topics(client)
        if self._assign == "all":
            topics = client.topics()
            every = {at for name in topics for at in partitions_of_topic(name, topics)}
            if more := every - client.assignment():
                client.assign(more)
                self.assigned(more)

    def _poll(self, client: KafkaClient, timeout_s: float) -> list[FetchedPartition | UnreadablePartition]:
        if self._assign == "group" and not client.topics():
            # Joined before it knows of any partition, a group's leader gives none to anybody.
            self._sleep(min(timeout_s, METADATA_WAIT_S))
            return []
        return client.poll(timeout_s)

    def _measure(self, at: TopicPartition, start: int, tell: Callable[[int], None]) -> None:
        measure_damage(at, start, self._options, self._raw, tell)

    # --------------------------------------------------------------------------------- connecting, again

    def _open(self) -> KafkaClient | None:
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
            client = KafkaClient(self._sources, options, raw=self._raw, uptime_s=self._uptime_s)
        except Exception as failed:  # noqa: BLE001 - wrong certificates, names, ports: many kinds, one cure
            self._give_up(failed)
            return None
        if self._assign == "group":
            client.subscribe(RebalanceListener(self))
        self._client = self._partitions.client = client
        self._watch.opened()
        return client

    def _give_up(self, failed: Exception) -> None:
        """Throw the connection away; what was read is read again. The next one is made after a while, or at
        once where it asks for something else."""
        self._watch.failed(failed, at_once=self._will_ask_otherwise(failed))
        self._watch.tell(self._watch.trouble)
        self._disconnect()

    def _will_ask_otherwise(self, failed: Exception) -> bool:
        """Whether this was refused for something that we can be without, from now on."""
        if isinstance(failed, InvalidSessionTimeoutError) and self._session_ms < SESSION_MS_MAX:
            self._session_ms *= 2  # this broker allows no shorter one
            return True
        if isinstance(failed, GroupAuthorizationFailedError) and self._assign == "all":
            log.warning("lag monitors are not told how far we are: no right to the group %s", self._group_id)
            self._group_id, self._options["group_id"] = "", None
            return True
        return False

    def _disconnect(self) -> None:
        self._advice.forget_all()
        self._partitions.let_go()
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _look_at_connection(self, client: KafkaClient, waited_s: float) -> None:
        busy = bool(client.assignment()) or not client.topics()
        self._watch.waited(waited_s, client.answers, reading=self._partitions.reading, idle=not busy)
        self._watch.tell(self._watch.cause(client, None))
        if self._assign == "group" and (failed := self._membership.look(client, self._session_ms / 1000)):
            self._give_up(failed)

    # -------------------------------------------------------------------------- partitions come and go

    def assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """On the client's own thread, while `take()` waits in `poll()`. Must not raise, nor ask Kafka."""
        self._partitions.assigned(set(assigned))

    def revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """On the client's own thread, too."""
        theirs = list(revoked)
        self._advice.forget(theirs)
        self._partitions.revoked(theirs)


class ConnectionSpoilt(AnalyzerError):
    """This connection cannot be used for what comes next."""


class RebalanceListener(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
    """Passes on what the group's coordinator says. Lost or revoked is the same to us: the store decides."""

    def __init__(self, reader: KafkaRecords) -> None:
        self._reader = reader

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._reader.assigned(assigned)

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self._reader.revoked(revoked)

    def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        self._reader.revoked(lost)
