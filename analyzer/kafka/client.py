"""One connection to Kafka: kafka-python's consumer, with what is needed of it in one typed place.

Knows nothing of stored positions. After any error from `poll()` throw it away and make another:
kafka-python may hang for ever in the poll after a failed one.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple
from uuid import UUID

from kafka import ConsumerRebalanceListener, OffsetAndMetadata, TopicPartition
from kafka.errors import (
    CorruptRecordError,
    KafkaError,
    KafkaTimeoutError,
    LogTruncationError,
    OffsetOutOfRangeError,
)

from analyzer.core.model import Gap, GapKind, Partition, Record, Records, RecordSet
from analyzer.kafka.connect import connect
from analyzer.kafka.group.dead_members import remove_dead_members_soon
from analyzer.kafka.internals.decompression_bound import BatchTooLarge
from analyzer.kafka.internals.patient_coordinator import join_patiently
from analyzer.kafka.metadata import NAME_PREFIX, TopicMetadata, leaves_partitions_unread, metadata_of
from analyzer.kafka.options import Options
from analyzer.kafka.partition_state import NO_EPOCH, resume_token_of

try:
    from analyzer.kafka.internals.raw_fetcher import FetchedBatches, RawFetcher, raw_fetcher
except ImportError as changed:  # pragma: no cover - depends on the release of kafka-python
    NO_RAW = str(changed)
else:
    NO_RAW = ""

log = logging.getLogger(__name__)

# Where kafka-python says which batch is damaged, if it does.
PARTITION_IN_MESSAGE = re.compile(r"topic='(?P<topic>[^']+)', partition=(?P<number>\d+)\) at offset")

RAW_SETS_MAX = 64  # of one poll: 64 MiB at the default size of a fetch
PLAIN_RECORDS_MAX = 10_000
REQUEST_S_MAX = 2.0
PROBE_EVERY_S = 4.0  # whether a broker answers, where fetches do not tell


class FetchedPartition(NamedTuple):
    """What one poll brought of one partition."""

    at: TopicPartition
    start: int
    next: int
    last_ms: int | None
    content: bytes | list[Record]
    aborted: Iterable[tuple[int, int]] = ()
    epoch: int = NO_EPOCH  # of the leader that wrote the last of it

    def of(self, part: Partition) -> RecordSet | Records:
        if isinstance(self.content, bytes):
            return RecordSet(part, self.start, self.content, tuple(self.aborted), resume_token_of(self.epoch))
        return Records(part, self.start, self.next, self.content)


class UnreadablePartition(NamedTuple):
    """A partition that cannot be read on from where we are. `hold` it, or every poll says so again."""

    at: TopicPartition
    gap: Gap


def out_of_range_gap(offset: int, first: int, end: int) -> Gap:
    """What it means that Kafka has no record at `offset`, and not that it has none yet."""
    if offset < first:
        return Gap("retention", offset, first, f"[{offset}, {first}) was deleted before it was counted")
    if offset > end:
        return past_end_gap(offset, end, f"offset {offset} is past the end of the log, which is {end}")
    return past_end_gap(offset, offset, "the log was cut off and written anew; where, is not known")


def past_end_gap(offset: int, at: int, why: str) -> Gap:
    return Gap("past-end", at, offset, why)


def truncation_gap(offset: int, at: int) -> Gap:
    """The log was cut off behind us, and others have written to it since."""
    what = f"[{at}, {offset}) was counted and is gone: the log was cut off there"
    return past_end_gap(offset, at, f"{what}, and what stands in it from {at} on is something else")


class KafkaClient:
    """A consumer of `topics`. What it fetched of a partition begins where `go_on` said."""

    def __init__(
        self, topics: Collection[str], options: Options, *, raw: bool, uptime_s: Callable[[], float]
    ) -> None:
        """Connects. Raises Troubled when no broker lets us in in time, ValueError for options that cannot
        work."""
        self._topics = sorted(topics)
        self._options = options
        self._uptime_s = uptime_s
        self._consumer, self.failures = connect(options)
        self._closing = ExitStack()
        self._closing.callback(self._consumer.close, autocommit=False, timeout_ms=int(REQUEST_S_MAX * 1000))
        try:
            self._metadata = metadata_of(self._consumer, options, self._topics, uptime_s)
            self._closing.callback(self._metadata.close)
            self._raw: RawFetcher | None = raw_fetcher(self._consumer) if raw else None
        except BaseException:
            self.close()
            raise
        self._sets_max = options.get("max_poll_records") or (RAW_SETS_MAX if raw else PLAIN_RECORDS_MAX)
        self._at: dict[TopicPartition, int] = {}  # the offset of what comes next, of those that go on
        self._ends: dict[TopicPartition, int] = {}
        self._answers = 0
        self._failed: KafkaError | None = None
        self._probed_s = float("-inf")
        # Partitions with a damaged batch: once kafka-python has looked at it, it hangs when it goes on there.
        self.spoilt: set[TopicPartition] = set()

    @property
    def cluster(self) -> str:
        return self._metadata.cluster

    def topics(self) -> dict[str, TopicMetadata]:
        """What the cluster says of our topics, as of the last refresh; those that it lacks are left out."""
        return self._metadata.topics()

    def refresh(self) -> None:
        """Have `topics()` look again where it cannot see by itself. Not from the client's own thread."""
        self._metadata.refresh()

    @property
    def answers(self) -> int:
        """Rises when a broker answers."""
        return self._answers + (self._raw.answers if self._raw is not None else 0)

    def known(self) -> Collection[str]:
        return self._metadata.topics().keys()

    def forbidden(self) -> Collection[str]:
        return self._metadata.forbidden()

    @property
    def fenced(self) -> bool:
        """Whether another member has come into our group under our name, which kafka-python does not tell."""
        return bool(getattr(getattr(self._consumer, "_coordinator", None), "fenced", False))

    def subscribe(self, listener: ConsumerRebalanceListener) -> None:
        if not join_patiently(self._consumer):
            log.info("this kafka-python joins groups in its own way")
        remove_dead_members_soon(self._options)
        self._consumer.subscribe(self._topics, listener=listener)

    def assign(self, more: Collection[TopicPartition]) -> None:
        self._consumer.assign(sorted({*self.assignment(), *more}))

    def assignment(self) -> set[TopicPartition]:
        return set(self._consumer.assignment())

    def hold(self, at: Iterable[TopicPartition]) -> None:
        """Fetch nothing of these until `go_on`. Any thread may call it, and nothing is asked of Kafka."""
        for each in at:
            self._at.pop(each, None)
            if each in self._consumer.assignment():
                self._consumer.pause(each)
                # Somewhere, so that the client does not look for a committed offset, and fails.
                self._consumer.seek(each, 0)

    def go_on(self, at: TopicPartition, offset: int, topic_id: str = "", epoch: int = NO_EPOCH) -> None:
        """Fetch from `offset`; what was fetched from elsewhere is thrown away. With its id the topic is asked
        for by that, where it can be: another one of the same name will not answer. With the epoch of the
        records before `offset` the broker is asked whether they are still there."""
        if self._raw is not None and topic_id and not topic_id.startswith(NAME_PREFIX):
            self._raw.ids[at.topic] = UUID(topic_id)
        # What kafka-python (3.0.12) had begun to unpack when a partition was paused it sets aside, may never
        # look at again, and fetches nothing more until it has.
        getattr(self._consumer._fetcher, "_paused_partition_records", {}).pop(at, None)
        self._consumer.seek(at, offset)
        subscribed = getattr(self._consumer, "_subscription", None)
        if epoch != NO_EPOCH and subscribed is not None and hasattr(subscribed, "seek"):
            subscribed.seek(at, OffsetAndMetadata(offset, "", epoch))  # the public one takes no epoch
        self._consumer.resume(at)
        self._at[at] = offset

    def let_go(self, at: TopicPartition) -> None:
        """This partition is no longer assigned to us."""
        self._at.pop(at, None)

    def poll(self, timeout_s: float) -> list[FetchedPartition | UnreadablePartition]:
        """What was fetched, waiting at most so long. Raises anything; calls the listener."""
        try:
            return self._poll(timeout_s)
        except OffsetOutOfRangeError as gone:  # again and again, until these are held
            return [*self._out_of_range(gone.args[0])]
        except LogTruncationError as cut:
            return [self._diverged(at, end) for at, end in cut.divergent_offsets.items() if at in self._at]
        except CorruptRecordError as damaged:
            if (at := self._damaged(str(damaged))) is None:
                raise
            self.spoilt.add(at)
            why = f"{damaged}, at offset {self._at.get(at)} or behind it"
            kind: GapKind = "too-large" if isinstance(damaged, BatchTooLarge) else "corrupt"
            return [UnreadablePartition(at, Gap(kind, self._at.get(at, 0), None, why))]

    def _damaged(self, why: str) -> TopicPartition | None:
        """Which partition this is about: it says so, or it is the one that kafka-python was unpacking."""
        if found := PARTITION_IN_MESSAGE.search(why):
            return TopicPartition(found["topic"], int(found["number"]))
        unpacking = getattr(self._consumer._fetcher, "_next_partition_records", None)
        return getattr(unpacking, "topic_partition", None)

    def _poll(self, timeout_s: float) -> list[FetchedPartition | UnreadablePartition]:
        if failed := self._failed:
            self._failed = None
            raise failed
        fetched = self._consumer.poll(timeout_ms=int(timeout_s * 1000), max_records=self._sets_max)
        if self._raw is not None:
            sets = [self._whole(at, each) for at, found in fetched.items() for each in found]
            return [*sets, *self._unserved(self._raw)]
        if fetched:
            self._answers += 1
            self._metadata.confirm()
        batches: list[FetchedPartition | UnreadablePartition] = [
            self._plain(at, records) for at, records in fetched.items()
        ]
        batches += self._passed_over(fetched)
        self._ends |= {at: self._consumer.highwater(at) or 0 for at in self._at}
        self._probe()
        return batches

    def _out_of_range(self, offsets: Mapping[TopicPartition, int]) -> list[UnreadablePartition]:
        """Kafka has no record at these offsets. Raises KafkaError."""
        first, end = self.begins(offsets), self.ends(offsets)
        self._ends |= end
        return [
            UnreadablePartition(at, out_of_range_gap(offset, first[at], end[at]))
            for at, offset in offsets.items()
        ]

    def _diverged(self, at: TopicPartition, common: OffsetAndMetadata | None) -> UnreadablePartition:
        """Of the records before our place those from `common` on are not in the log any more."""
        if common is None:  # the broker has never heard of their leader
            [found] = self._out_of_range({at: self._at[at]})
            return found
        return UnreadablePartition(at, truncation_gap(self._at[at], common.offset))

    def _whole(self, at: TopicPartition, fetched: FetchedBatches) -> FetchedPartition | UnreadablePartition:
        if fetched.cut_short:
            why = f"a batch is damaged: the length of the one at offset {fetched.start} cannot be"
            return UnreadablePartition(at, Gap("corrupt", fetched.start, None, why))
        self._at[at] = fetched.next
        return FetchedPartition(
            at, *fetched[:2], fetched.last_ms, fetched.raw, fetched.aborted, fetched.epoch
        )

    def _unserved(self, fetcher: RawFetcher) -> list[UnreadablePartition]:
        """What a broker refused to serve because it is damaged, as far as we still want it."""
        damaged, fetcher.damaged = fetcher.damaged, set()
        why = "the broker says that its log is damaged at offset {} or before"
        return [
            UnreadablePartition(at, Gap("corrupt", self._at[at], None, why.format(self._at[at])))
            for at in sorted(damaged & self._at.keys())
        ]

    def _plain(self, at: TopicPartition, records: Iterable[Any]) -> FetchedPartition:
        items = [
            Record(each.offset, each.timestamp if each.timestamp >= 0 else None, each.value)
            for each in records
        ]
        start, self._at[at] = self._at[at], items[-1].offset + 1
        return FetchedPartition(at, start, self._at[at], items[-1].kafka_ms, items)

    def _passed_over(self, fetched: Collection[TopicPartition]) -> list[FetchedPartition]:
        """Partitions of which nothing was shown to us, but whose position moved: over aborted records,
        say. Without these the lag behind them would never end."""
        batches = []
        try:
            for at in self._at.keys() - fetched:
                start, self._at[at] = self._at[at], self._consumer.position(at)
                if self._at[at] > start:
                    batches.append(FetchedPartition(at, start, self._at[at], None, []))
        except KafkaError as failed:
            self._failed = failed  # raised by the next poll: what this one brought is not to be lost
        return batches

    def _probe(self) -> None:
        if self._at and self._uptime_s() - self._probed_s >= PROBE_EVERY_S:
            self._probed_s = self._uptime_s()
            try:
                self.ends(self._at)
                self._answers += 1
            except KafkaTimeoutError:
                log.debug("no broker answers")

    def end(self, at: TopicPartition) -> int:
        """Where the partition ended when Kafka last said so; never before what was read of it."""
        fetched = 0 if self._raw is None else self._raw.ends.get(at, 0)
        return max(fetched, self._ends.get(at, 0), self._at.get(at, 0))

    def begins(self, at: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that is there. Raises KafkaError."""
        return dict(self._consumer.beginning_offsets(list(at), timeout_ms=int(REQUEST_S_MAX * 1000)))

    def ends(self, at: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset after the last record that can be read. Raises KafkaError."""
        return dict(self._consumer.end_offsets(list(at), timeout_ms=int(REQUEST_S_MAX * 1000)))

    def commit_soon(self, offsets: Mapping[TopicPartition, int]) -> Callable[[], bool]:
        """Tell Kafka how far we are; returns what says whether it is done, one way or the other."""
        sent = self._consumer.commit_async(offset_metadata(offsets), callback=_answered)
        return lambda: bool(sent.is_done)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The same, waiting for it. Raises KafkaError."""
        self._consumer.commit(offset_metadata(offsets), timeout_ms=int(REQUEST_S_MAX * 1000))

    def unread(self) -> bool:
        """Whether the group is settled and leaves one of our partitions unread. Raises KafkaError."""
        return leaves_partitions_unread(self._options, self.topics())

    def close(self) -> None:
        try:
            self._closing.close()
        except Exception as failed:  # noqa: BLE001 - it is being thrown away, in whatever state it is
            log.debug("closing the Kafka client: %r", failed)


def offset_metadata(offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {at: OffsetAndMetadata(offset, "", -1) for at, offset in offsets.items()}


def log_failed_commit(failed: Exception) -> None:
    log.debug("Kafka was not told how far we are: %r", failed)


def _answered(_offsets: object, answer: object) -> None:
    if isinstance(answer, Exception):
        log_failed_commit(answer)
