"""Record sets from Kafka, each partition from the position that the store holds for it.

Kafka decides which member of a group reads which partition, and nothing else. Positions come from the store:
they are set during the rebalance itself, before the first fetch. A member that has lost a partition and does
not know it yet fails at the store's compare-and-set.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Literal

from kafka import ConsumerRebalanceListener, TopicPartition
from kafka.errors import GroupAuthorizationFailedError, InvalidSessionTimeoutError

from analyzer.kernel.errors import ReleaseUnsupported
from analyzer.kernel.model import Gap, Lag, Partition, SourceItem
from analyzer.sources.kafka.client import KafkaClient
from analyzer.sources.kafka.connection_health import ConnectionHealth
from analyzer.sources.kafka.fetched_batches import FetchedPartition, UnreadablePartition
from analyzer.sources.kafka.group.dead_members import remove_dead_members_soon
from analyzer.sources.kafka.group.membership import Membership
from analyzer.sources.kafka.group.offset_commits import OffsetCommits
from analyzer.sources.kafka.internals.private_names import require_supported_release
from analyzer.sources.kafka.options import Options, consumer_options
from analyzer.sources.kafka.partitions import AssignedPartitions, gap_sentence, partitions_of_topic
from analyzer.sources.kafka.probes.damage_probe import measure_damage
from analyzer.sources.positions import PositionStore

log = logging.getLogger(__name__)

SESSION_MS_MAX = 120_000
METADATA_WAIT_S = 0.05
REVOCATION_WAIT_S = 2.0  # the group waits as long for our partitions, and no heartbeat may be missed


class KafkaRecords:
    """A `Source` of the records of some topics of one cluster.

    `topics` maps each topic to the name of its source. With `assign="group"` the members of `group_id` share
    the partitions; with "all" this source reads all of them, and `group_id` is only where it commits offsets
    for lag monitors. `start` is where topics begin that were never counted. `options` are kafka-python's.
    """

    def __init__(
        self,
        topics: Mapping[str, str],
        positions: PositionStore,
        *,
        group_id: str = "",
        assign: Literal["group", "all"] = "group",
        start: Literal["earliest", "latest"] = "earliest",
        session_timeout_s: float = 6.0,
        options: Options | None = None,
        wall_s: Callable[[], float] = time.time,
        uptime_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Does not connect. Raises ValueError for options that do not exist or must not be set, and
        ReleaseUnsupported."""
        require_supported_release()
        if assign == "group" and not group_id:
            raise ValueError('assign = "group" needs a group_id; set one, or assign = "all"')
        self._sources = dict(topics)
        self._group_id = group_id
        self._assign = assign
        self._session_ms = int(session_timeout_s * 1000)
        self._options = {**consumer_options(options or {}), "group_id": group_id or None}
        self._uptime_s = uptime_s
        self._sleep = sleep

        self._positions = positions
        self._client: KafkaClient | None = None
        self._partitions = AssignedPartitions(
            self._sources, positions, self._measure_damage, start=start, wall_s=wall_s, uptime_s=uptime_s
        )
        self._health = ConnectionHealth(uptime_s, self._options, self._sources)
        self._membership = Membership(self._options, self._health)
        self._commits = OffsetCommits(uptime_s)
        self.polling_since: float | None = None  # uptime, for a watchdog

    # ---------------------------------------------------------------------------------- for the pipeline

    def take(self, timeout_s: float) -> Iterator[SourceItem]:
        """Yields what at most one poll returns. See `Source.take`.

        Trouble with Kafka is not raised but reported by `problems()`: the source reconnects, and reads again
        what was not stored.
        """
        if not self._partitions.has_items:
            self._read(timeout_s)
        yield from self._partitions.items()

    def lags(self) -> dict[Partition, Lag]:
        return self._partitions.lags()

    def positions(self) -> dict[Partition, int]:
        return self._partitions.positions()

    def problems(self) -> dict[str, str]:
        problems = self._partitions.topic_ids.problems()
        problems |= {str(part): gap_sentence(gap) for part, gap in self.stopped().items()}
        if cause := self._health.cause(self._client, self.polling_since):
            problems[self._health.name(cause)] = self._health.sentence(cause)
        return problems

    def rewind(self, parts: Collection[Partition] | None = None) -> None:
        topic_ids = self._partitions.topic_ids
        if accepted := {part.topic for part in topic_ids.gaps().keys() & {*(parts or ())}}:
            topic_ids.accept(accepted)
            self._disconnect()  # this connection requests the old log by its id
        else:
            self._partitions.rewind(parts)

    def stopped(self) -> dict[Partition, Gap]:
        return self._partitions.stopped()

    def stop(self, part: Partition, gap: Gap) -> None:
        self._partitions.stop(part, gap)

    def acknowledge(self, stored: Mapping[Partition, int]) -> None:
        self._commits.note(self._partitions.acknowledge(stored))

    def close(self) -> None:
        client, self._client = self._client, None
        self._partitions.client = None
        if client is not None:
            if self._group_id and not self._health.trouble:
                self._commits.send_last(client)
            client.close()

    # ------------------------------------------------------------------------------------------- reading

    def _read(self, timeout_s: float) -> None:
        client = self._client or self._connect()
        if client is None:
            self._sleep(min(timeout_s, self._health.wait_s))
            return
        self._check_topics(client)
        self._partitions.find_positions(client)  # raises StoreAway: then nothing is read either
        if self._group_id:
            self._commits.send(client)
        began_s = self.polling_since = self._uptime_s()
        try:
            batches = self._poll(client, timeout_s)
        except Exception as error:  # noqa: BLE001 - after any error kafka-python may hang in the next poll
            self._give_up(error)
        else:
            self._partitions.topic_ids.update(client.cluster, client.topics())
            for fetched in batches:
                self._partitions.keep(fetched)
            self._check_connection(client, self._uptime_s() - began_s)
        finally:
            self.polling_since = None

    def _check_topics(self, client: KafkaClient) -> None:
        """Stops topics that were created again; with assign="all", takes new partitions over."""
        self._partitions.check_topic_ids(client)
        if self._assign == "all":
            topics = client.topics()
            partitions = {tp for name in topics for tp in partitions_of_topic(name, topics)}
            if more := partitions - client.assignment():
                client.assign(more)
                self.assigned(more)

    def _poll(self, client: KafkaClient, timeout_s: float) -> list[FetchedPartition | UnreadablePartition]:
        if self._assign == "group" and not client.topics():
            # A group leader that joins before it knows any partition assigns none to any member.
            self._sleep(min(timeout_s, METADATA_WAIT_S))
            return []
        return client.poll(timeout_s)

    def _measure_damage(self, tp: TopicPartition, start: int, report: Callable[[int], None]) -> None:
        measure_damage(tp, start, self._options, report)

    # ---------------------------------------------------------------------------------------- connecting

    def _connect(self) -> KafkaClient | None:
        if self._health.wait_s:
            return None
        if obstacle := self._membership.reason_not_to_join():
            self._give_up(obstacle)
            return None
        options = {**self._options}
        if self._assign == "group":
            options["session_timeout_ms"] = self._session_ms
            options["heartbeat_interval_ms"] = min(
                self._session_ms // 6, options.get("heartbeat_interval_ms", self._session_ms)
            )
        try:
            client = KafkaClient(self._sources, options)
        except ReleaseUnsupported:
            raise
        except Exception as error:  # noqa: BLE001 - certificates, names, ports: many types, one reaction
            self._give_up(error)
            return None
        if self._assign == "group":
            remove_dead_members_soon(options)
            client.subscribe(RebalanceListener(self))
        self._client = self._partitions.client = client
        self._health.opened()
        return client

    def _give_up(self, error: Exception) -> None:
        """Discards the connection. Records that were read and not stored are read again over the next one.

        That is opened after a back-off, or at once if it uses other options.
        """
        self._health.failed(error, at_once=self._drop_refused_option(error))
        self._health.report(self._health.trouble)
        self._disconnect()

    def _drop_refused_option(self, error: Exception) -> bool:
        """Changes an option that the broker refuses, if it is optional; returns whether it was changed."""
        if isinstance(error, InvalidSessionTimeoutError) and self._session_ms < SESSION_MS_MAX:
            self._session_ms *= 2  # the broker allows no shorter one
            return True
        if isinstance(error, GroupAuthorizationFailedError) and self._assign == "all":
            log.warning(
                "no offsets are committed for lag monitors: grant READ on the group %s", self._group_id
            )
            self._group_id, self._options["group_id"] = "", None
            return True
        return False

    def _disconnect(self) -> None:
        self._commits.forget_all()
        self._partitions.disconnected()
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _check_connection(self, client: KafkaClient, waited_s: float) -> None:
        is_idle = not client.assignment() and bool(client.topics())
        self._health.waited(waited_s, client.answers, is_reading=self._partitions.is_reading, is_idle=is_idle)
        self._health.report(self._health.cause(client, None))
        if self._assign == "group" and (error := self._membership.check(client, self._session_ms / 1000)):
            self._give_up(error)

    # --------------------------------------------------------------------------------------- rebalancing

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Called on the client's own thread, while `take()` waits in `poll()`: must neither raise nor send
        requests to Kafka."""
        added = set(partitions)
        self._partitions.assigned(added)
        if added:
            log.info("reading %s", partition_names(added))

    def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """Called on the client's own thread, as `assigned` is."""
        # What is in flight of them is stored before the next analyzer reads their positions. If that takes
        # longer, one of the two fails at the compare-and-set.
        self._positions.wait_for_flush(REVOCATION_WAIT_S)
        removed = list(partitions)
        self._commits.forget(removed)
        self._partitions.revoked(removed)
        if removed:
            log.info("no longer reading %s", partition_names(removed))


def partition_names(partitions: Iterable[TopicPartition]) -> str:
    """The partitions by name, in order: "access-log[0], access-log[2]"."""
    return ", ".join(f"{topic}[{number}]" for topic, number in sorted(partitions))


class RebalanceListener(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
    """Passes rebalances on. Lost partitions count as revoked: the store decides what may be stored."""

    def __init__(self, source: KafkaRecords) -> None:
        self._source = source

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._source.assigned(assigned)

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self._source.revoked(revoked)

    def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        self._source.revoked(lost)
