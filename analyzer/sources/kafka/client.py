"""A typed connection to Kafka: the part of kafka-python's consumer that the source needs.

It knows no stored positions. After any error from `poll()` throw it away and make another: kafka-python may
hang forever in the poll after a failed one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from kafka import ConsumerRebalanceListener, OffsetAndMetadata, TopicPartition
from kafka.errors import KafkaError, LogTruncationError, OffsetOutOfRangeError

from analyzer.kernel.model import Gap
from analyzer.sources.kafka.connection_errors import ConnectionFailures, ConnectionTrouble, failure_cause
from analyzer.sources.kafka.fetched_batches import FetchedPartition, UnreadablePartition, token_epoch
from analyzer.sources.kafka.internals.private_names import require_supported_release
from analyzer.sources.kafka.metadata import NAME_PREFIX, TopicMetadata
from analyzer.sources.kafka.options import Options

if TYPE_CHECKING:
    from analyzer.sources.kafka.internals.consumer import OpenConsumer

log = logging.getLogger(__name__)

SETS_MAX = 64  # of one poll: 64 MiB at the default size of a fetch
REQUEST_S_MAX = 2.0


def connect(options: Options, failures: ConnectionFailures | None = None) -> OpenConsumer:
    """Returns a consumer that has the metadata of the cluster; its connections report to `failures`.

    Raises ConnectionTrouble when no broker can be used, ValueError for options that cannot work,
    ReleaseUnsupported.
    """
    require_supported_release()
    # Without the private names that were just compared, its import would fail.
    from analyzer.sources.kafka.internals.consumer import open_consumer

    failures = failures or ConnectionFailures()
    try:
        return open_consumer(options, failures)
    except KafkaError as error:
        raise ConnectionTrouble(failure_cause(failures.last or [error], options)) from error


def out_of_range_gap(offset: int, first: int, end: int) -> Gap:
    """Returns the gap of an offset at which Kafka has no record; `first` and `end` are those of the log."""
    if offset < first:
        return Gap("retention", offset, first, f"[{offset}, {first}) was deleted before it was counted")
    if offset > end:
        return past_end_gap(offset, end, f"offset {offset} is past the end of the log, which is {end}")
    return past_end_gap(offset, offset, "the log was cut off and written again, at an unknown offset")


def past_end_gap(offset: int, cut_at: int, reason: str) -> Gap:
    return Gap("past-end", cut_at, offset, reason)


def truncation_gap(offset: int, cut_at: int) -> Gap:
    """Returns the gap of a log that was cut off before our position, and has other records there now."""
    lost = f"[{cut_at}, {offset}) was counted and is gone"
    return past_end_gap(
        offset, cut_at, f"{lost}: the log was cut off at {cut_at} and written again from there"
    )


class KafkaClient:
    """A consumer of `topics`.

    What it fetches of a partition begins at the offset that `resume` was called with.
    """

    def __init__(self, topics: Collection[str], options: Options) -> None:
        """Connects. Raises ConnectionTrouble when no broker can be used in time, ValueError for options that
        cannot work, ReleaseUnsupported."""
        self._topics = sorted(topics)
        self.failures = ConnectionFailures()
        self._opened = connect(options, self.failures)
        self._consumer = self._opened.public
        try:
            self._metadata = self._opened.cached_metadata(self._topics)
            self._fetcher = self._opened.fetch_whole_batches()
        except BaseException:
            self.close()
            raise
        self._sets_max = options.get("max_poll_records") or SETS_MAX
        self._next: dict[TopicPartition, int] = {}  # the next offset of each partition that is fetched
        self._ends: dict[TopicPartition, int] = {}

    @property
    def cluster(self) -> str:
        return self._metadata.cluster

    def topics(self) -> dict[str, TopicMetadata]:
        """Returns the latest metadata of our topics, without those that the cluster does not have."""
        return self._metadata.topics()

    @property
    def answers(self) -> int:
        """Number of answers from brokers over this connection so far."""
        return self._fetcher.answers

    def known(self) -> Collection[str]:
        return self._metadata.topics().keys()

    def forbidden(self) -> Collection[str]:
        return self._metadata.forbidden()

    @property
    def is_fenced(self) -> bool:
        """Whether another process has joined our group with our group_instance_id."""
        return self._opened.is_fenced

    def subscribe(self, listener: ConsumerRebalanceListener) -> None:
        """Joins the group."""
        self._opened.keep_join_outcomes()
        self._consumer.subscribe(self._topics, listener=listener)

    def assign(self, more: Collection[TopicPartition]) -> None:
        self._consumer.assign(sorted({*self.assignment(), *more}))

    def assignment(self) -> set[TopicPartition]:
        return set(self._consumer.assignment())

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetches nothing of these partitions until `resume`. Any thread may call it; it sends no request."""
        for tp in partitions:
            self._next.pop(tp, None)
            if tp in self._consumer.assignment():
                self._consumer.pause(tp)
                # Any position, or the client looks for a committed offset and fails.
                self._consumer.seek(tp, 0)

    def resume(self, tp: TopicPartition, offset: int, topic_id: str = "", resume_token: str = "") -> None:
        """Fetches `tp` from `offset`; what was fetched from elsewhere is discarded.

        With its id the topic is requested by id where that is possible, and another topic of that name will
        not answer. With the resume token the broker is asked whether the record before `offset` is still in
        the log.
        """
        if topic_id and not topic_id.startswith(NAME_PREFIX):
            self._fetcher.ids[tp.topic] = UUID(topic_id)
        self._opened.forget_paused(tp)
        self._opened.seek(tp, offset, token_epoch(resume_token))
        self._consumer.resume(tp)
        self._next[tp] = offset

    def release(self, tp: TopicPartition) -> None:
        """Forgets a partition that is no longer assigned to us."""
        self._next.pop(tp, None)

    def poll(self, timeout_s: float) -> list[FetchedPartition | UnreadablePartition]:
        """Returns what was fetched, waiting at most `timeout_s`.

        Calls the listener; may raise any exception.
        """
        try:
            fetched = self._consumer.poll(timeout_ms=int(timeout_s * 1000), max_records=self._sets_max)
        except OffsetOutOfRangeError as error:  # from each poll, until these partitions are paused
            return [*self._out_of_range(error.args[0])]
        except LogTruncationError as error:
            divergent = error.divergent_offsets.items()
            return [self._truncated(tp, common) for tp, common in divergent if tp in self._next]
        complete = [self._complete(batches) for fetches in fetched.values() for batches in fetches]
        return [*complete, *self._unserved()]

    def _out_of_range(self, offsets: Mapping[TopicPartition, int]) -> list[UnreadablePartition]:
        """Returns the gaps at offsets where Kafka has no record. Raises KafkaError."""
        first, end = self.begins(offsets), self.ends(offsets)
        self._ends |= end
        return [
            UnreadablePartition(tp, out_of_range_gap(offset, first[tp], end[tp]))
            for tp, offset in offsets.items()
        ]

    def _truncated(self, tp: TopicPartition, common: OffsetAndMetadata | None) -> UnreadablePartition:
        """Returns the gap of a log of which the records from `common` up to our position are gone."""
        if common is None:  # the broker does not know the epoch of the record before our position
            [unreadable] = self._out_of_range({tp: self._next[tp]})
            return unreadable
        return UnreadablePartition(tp, truncation_gap(self._next[tp], common.offset))

    def _complete(self, fetched: FetchedPartition) -> FetchedPartition | UnreadablePartition:
        if fetched.is_cut_short:
            reason = f"a batch is damaged: the length of the one at offset {fetched.start} is impossible"
            return UnreadablePartition(fetched.tp, Gap("corrupt", fetched.start, None, reason))
        self._next[fetched.tp] = fetched.next
        return fetched

    def _unserved(self) -> list[UnreadablePartition]:
        """Returns the partitions that a broker refused to serve because its log is damaged."""
        damaged, self._fetcher.damaged = self._fetcher.damaged, set()
        reason = "the broker reports that its log is damaged at or before offset {}"
        return [
            UnreadablePartition(tp, Gap("corrupt", self._next[tp], None, reason.format(self._next[tp])))
            for tp in sorted(damaged & self._next.keys())
        ]

    def end(self, tp: TopicPartition) -> int:
        """Returns the end of the partition as last reported, at least the offset that was read up to."""
        return max(self._fetcher.ends.get(tp, 0), self._ends.get(tp, 0), self._next.get(tp, 0))

    def begins(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Requests the first offset of each log. Raises KafkaError."""
        return dict(self._consumer.beginning_offsets(list(partitions), timeout_ms=int(REQUEST_S_MAX * 1000)))

    def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Requests the offset after the last record that can be read. Raises KafkaError."""
        return dict(self._consumer.end_offsets(list(partitions), timeout_ms=int(REQUEST_S_MAX * 1000)))

    def commit_soon(self, offsets: Mapping[TopicPartition, int]) -> Callable[[], bool]:
        """Commits the offsets in the group; returns a function that says whether that has ended."""
        sent = self._consumer.commit_async(offset_metadata(offsets), callback=_committed)
        return lambda: bool(sent.is_done)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits the offsets and waits for the answer. Raises KafkaError."""
        self._consumer.commit(offset_metadata(offsets), timeout_ms=int(REQUEST_S_MAX * 1000))

    def close(self) -> None:
        try:
            self._consumer.close(autocommit=False, timeout_ms=int(REQUEST_S_MAX * 1000))
        except Exception as error:  # noqa: BLE001 - the client is discarded in any case
            log.debug("closing the Kafka client: %r", error)


def offset_metadata(offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {tp: OffsetAndMetadata(offset, "", -1) for tp, offset in offsets.items()}


def log_failed_commit(error: Exception) -> None:
    log.debug("the offsets could not be committed in the group: %r", error)


def _committed(_offsets: object, answer: object) -> None:
    if isinstance(answer, Exception):
        log_failed_commit(answer)
