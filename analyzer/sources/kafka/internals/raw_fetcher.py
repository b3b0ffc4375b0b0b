"""A fetcher that hands record batches on as Kafka stores them.

kafka-python makes one object of each record, which costs more than counting it. This subclass of its fetcher
yields one object for each fetch of a partition: the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError
from kafka.record import MemoryRecords

from analyzer.sources.batches.batch_header import NO_LEADER_EPOCH, batch_span
from analyzer.sources.batches.damage import without_damage_before
from analyzer.sources.kafka.fetched_batches import FetchedPartition
from analyzer.sources.kafka.internals.private_names import swap_class

TOPIC_IDS_FROM = 13  # the version of fetch requests that names topics by their ids
# After IDLE_ANSWERS answers in a row without records the broker is asked to keep the next ones back for
# longer, and to answer as soon as it has a record. Most of the cost of an idle analyzer were requests for
# all of its partitions.
IDLE_ANSWERS = 10
IDLE_WAIT_MS = 500


class RawRecords(Fetcher.PartitionRecords):  # type: ignore[misc]  # kafka-python has no types
    """The records of a fetch, as kafka-python sees them: one element, which is all batches."""

    newest_epoch: int | None = None  # of the partition's leaders, as far as the client knows

    def _maybe_skip_record(self, record: FetchedPartition) -> bool:
        return False

    def _unpack_records(
        self, tp: TopicPartition, records: MemoryRecords, key_deserializer: None, value_deserializer: None
    ) -> Iterator[FetchedPartition]:
        raw = without_damage_before(bytes(records._buffer), self.fetch_offset)  # mostly no copy
        span = batch_span(raw, self.fetch_offset)
        # The checksum does not cover the epoch. A broker answers a request with an unknown epoch as if the
        # log had been truncated.
        is_credible = self.newest_epoch is None or span.leader_epoch <= self.newest_epoch
        epoch = span.leader_epoch if is_credible else NO_LEADER_EPOCH
        aborted = [(entry.producer_id, entry.first_offset) for entry in self.aborted_transactions]
        # The next fetch requests this offset with the epoch, so that the broker notices a truncation of what
        # was read.
        self.next_fetch_offset = span.next
        self.bytes_read = span.size_bytes
        if span.size_bytes:
            self.leader_epoch = epoch
            batches = raw[: span.size_bytes]
            yield FetchedPartition(tp, self.fetch_offset, span.next, span.last_ms, batches, aborted, epoch)
        self.drain()


class RawFetcher(Fetcher):  # type: ignore[misc]  # kafka-python has no types
    """A fetcher that makes `poll()` return `FetchedPartition`s instead of records.

    Topics in `ids` are requested by id. kafka-python requests them by name, and a broker then continues at
    the old offset in a topic that was deleted and created again, before anything reports the change.
    """

    PartitionRecords = RawRecords
    answers = 0  # of brokers, so far
    ends: dict[TopicPartition, int]  # the offset after the last record that can be read
    damaged: set[TopicPartition]  # those that a broker refuses to serve, because it cannot read its own log
    ids: dict[str, UUID]
    empty_answers = 0  # in a row

    def _create_fetch_requests(self) -> Any:
        requests = super()._create_fetch_requests()
        for request, _ in requests.values():
            if self.empty_answers >= IDLE_ANSWERS and request.max_wait_ms < IDLE_WAIT_MS:
                request.max_wait_ms, request.min_bytes = IDLE_WAIT_MS, 1
            topics = [*request.topics, *request.forgotten_topics_data]
            if self.ids and all(topic.topic in self.ids for topic in topics):
                request._max_version = TOPIC_IDS_FROM
                for topic in topics:
                    topic.topic_id = self.ids[topic.topic]
        return requests

    def _handle_fetch_response(
        self, node_id: Any, fetch_offsets: Any, send_time: float, response: Any
    ) -> None:
        self.answers += 1
        has_records = any(part.records for topic in response.responses for part in topic.partitions)
        self.empty_answers = 0 if has_records else self.empty_answers + 1
        if response.API_VERSION >= TOPIC_IDS_FROM:
            names = {topic_id: name for name, topic_id in self.ids.items()}
            for topic in response.responses:
                topic.topic = names[topic.topic_id]
        super()._handle_fetch_response(node_id, fetch_offsets, send_time, response)

    def _parse_fetched_data(self, completed_fetch: Any) -> RawRecords | None:
        if completed_fetch.partition_data.error_code == CorruptRecordError.errno:
            self.damaged.add(completed_fetch.topic_partition)  # kafka-python would ask again forever
        records = super()._parse_fetched_data(completed_fetch)
        if records is not None:
            self.set_epochs(records)
            data = completed_fetch.partition_data
            stable = data.last_stable_offset  # nothing behind an open transaction can be read
            is_known = stable is not None and stable >= 0
            self.ends[completed_fetch.topic_partition] = stable if is_known else data.high_watermark
        return records  # type: ignore[no-any-return]  # kafka-python has no types

    def set_epochs(self, records: RawRecords) -> None:
        records.newest_epoch = self._manager.cluster.leader_epoch_for_partition(records.topic_partition)
        # kafka-python (3.0.12) forgets the epoch of a position over a fetch that brings nothing.
        assigned = self._subscriptions.assignment.get(records.topic_partition)
        if assigned is not None and assigned.position is not None:
            records.leader_epoch = assigned.position.leader_epoch


def install(consumer: KafkaConsumer) -> RawFetcher:
    """Returns the consumer's fetcher, which makes `poll()` return `FetchedPartition`s from now on."""
    fetcher = consumer._fetcher
    swap_class(fetcher, Fetcher, RawFetcher)
    fetcher.ends, fetcher.damaged, fetcher.ids = {}, set(), {}
    return fetcher  # type: ignore[no-any-return]  # kafka-python has no types
