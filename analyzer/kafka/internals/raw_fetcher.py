"""Record batches as Kafka holds them, out of kafka-python's own fetcher.

The client makes one object per record, which costs more than counting it. This hook, set on one
consumer and nowhere else, hands the bytes of a fetch on whole. It rests on names that are private to
kafka-python: when one is missing or has another face, importing this module raises ImportError and
the source takes records the public way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple
from uuid import UUID

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError
from kafka.record import MemoryRecords

from analyzer.core.kafka_format.batch_header import HEADER_BYTES, read_header, span_of
from analyzer.core.kafka_format.damage import without_damage_before
from analyzer.kafka.internals.features import changed
from analyzer.kafka.partition_state import NO_EPOCH

FACES = {
    "_unpack_records": ["self", "tp", "records", "key_deserializer", "value_deserializer"],
    "_maybe_skip_record": ["self", "record"],
    "drain": ["self"],
}
FIELDS = ("fetch_offset", "next_fetch_offset", "bytes_read", "aborted_transactions", "leader_epoch")
CALLS = {
    "_create_fetch_requests": ["self"],
    "_handle_fetch_response": ["self", "node_id", "fetch_offsets", "send_time", "response"],
    "_parse_fetched_data": ["self", "completed_fetch"],
}


def check() -> None:
    """Raises ImportError when kafka-python is not built as this module needs it."""
    try:
        missing = [*changed(Fetcher, CALLS), *changed(Fetcher.PartitionRecords, FACES)]
        if not missing:
            records = Fetcher.PartitionRecords(0, None, MemoryRecords(b""))
            missing = [name for name in FIELDS if not hasattr(records, name)]
        if not hasattr(MemoryRecords(b""), "_buffer"):
            missing.append("_buffer")
    except (AttributeError, TypeError) as error:
        raise ImportError(f"kafka-python's fetcher has changed: {error}") from error
    if missing:
        raise ImportError(f"kafka-python's fetcher has changed: {', '.join(missing)}")


check()


class FetchedBatches(NamedTuple):
    """The record batches that one fetch brought of one partition."""

    start: int  # the offset that was asked for
    next: int
    raw: bytes
    aborted: list[tuple[int, int]]
    last_ms: int | None
    epoch: int  # of the leader that wrote the last of it, or NO_EPOCH

    @property
    def cut_short(self) -> bool:
        """Whether not even the first batch is whole, as Kafka promises that it is."""
        return len(self.raw) < HEADER_BYTES or read_header(self.raw).size_bytes > len(self.raw)


class RawRecords(Fetcher.PartitionRecords):  # type: ignore[misc]  # kafka-python has no types
    """Stands for a stretch of records and yields one thing: all of it."""

    newest_epoch: int | None = None  # of the partition's leaders, as far as the client knows

    def _maybe_skip_record(self, record: FetchedBatches) -> bool:
        return False

    def _unpack_records(
        self, tp: TopicPartition, records: MemoryRecords, key_deserializer: None, value_deserializer: None
    ) -> Iterator[FetchedBatches]:
        raw = without_damage_before(bytes(records._buffer), self.fetch_offset)  # mostly no copy
        walked = span_of(raw, self.fetch_offset)
        # No checksum covers it: of a leader that there never was the broker would know nothing, either.
        believed = self.newest_epoch is None or walked.leader_epoch <= self.newest_epoch
        epoch = walked.leader_epoch if believed else NO_EPOCH
        aborted = [(each.producer_id, each.first_offset) for each in self.aborted_transactions]
        # The client asks for this offset next. The epoch lets the broker see that what we have read
        # has since been cut away.
        self.next_fetch_offset = walked.next
        self.bytes_read = walked.size_bytes
        if walked.size_bytes:
            self.leader_epoch = epoch
            yield FetchedBatches(
                self.fetch_offset, walked.next, raw[: walked.size_bytes], aborted, walked.last_ms, epoch
            )
        self.drain()


TOPIC_IDS_FROM = 13  # the version of fetch requests that name topics by their ids


class RawFetcher(Fetcher):  # type: ignore[misc]  # kafka-python has no types
    """Fetches as its parent does; keeps the bytes, where partitions end, and that a broker answered.

    Topics in `ids` are asked for by id. By name, as kafka-python does, a broker would go on at our offset
    in a topic that was deleted and created again, before anything told us of it.
    """

    PartitionRecords = RawRecords
    answers = 0
    ends: dict[TopicPartition, int]
    damaged: set[TopicPartition]  # the broker itself cannot make sense of what it has there
    ids: dict[str, UUID]

    def _create_fetch_requests(self) -> Any:
        requests = super()._create_fetch_requests()
        for request, _ in requests.values():
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
        if response.API_VERSION >= TOPIC_IDS_FROM:
            names = {topic_id: name for name, topic_id in self.ids.items()}
            for topic in response.responses:
                topic.topic = names[topic.topic_id]
        super()._handle_fetch_response(node_id, fetch_offsets, send_time, response)

    def _parse_fetched_data(self, completed_fetch: Any) -> RawRecords | None:
        if completed_fetch.partition_data.error_code == CorruptRecordError.errno:
            self.damaged.add(completed_fetch.topic_partition)  # kafka-python would ask again, for ever
        records = super()._parse_fetched_data(completed_fetch)
        if records is not None:
            self._keep_epoch(records)
            data = completed_fetch.partition_data
            stable = data.last_stable_offset  # behind an open transaction nothing can be read
            known = stable is not None and stable >= 0
            self.ends[completed_fetch.topic_partition] = stable if known else data.high_watermark
        return records  # type: ignore[no-any-return]  # kafka-python has no types

    def _keep_epoch(self, records: RawRecords) -> None:
        cluster = getattr(getattr(self, "_manager", None), "cluster", None)
        if (epoch_of := getattr(cluster, "leader_epoch_for_partition", None)) is not None:
            records.newest_epoch = epoch_of(records.topic_partition)
        # kafka-python (3.0.12) forgets the epoch of a position over a fetch that brings nothing.
        assigned = getattr(getattr(self, "_subscriptions", None), "assignment", {}).get(
            records.topic_partition
        )
        if assigned is not None and assigned.position is not None:
            records.leader_epoch = assigned.position.leader_epoch


def raw_fetcher(consumer: KafkaConsumer) -> RawFetcher:
    """`consumer`'s own fetcher, which from now on makes `poll()` return `FetchedBatches`."""
    fetcher = consumer._fetcher
    if type(fetcher) is not Fetcher:
        raise TypeError(f"another fetcher than kafka-python's: {type(fetcher).__name__}")
    fetcher.__class__ = RawFetcher
    fetcher.ends, fetcher.damaged, fetcher.ids = {}, set(), {}
    return fetcher  # type: ignore[no-any-return]  # kafka-python has no types
