"""The outcome of a poll for a partition: its record batches, or the reason why it cannot be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kafka import TopicPartition

from analyzer.kernel.model import Gap, Partition, RecordSet
from analyzer.sources.batches.batch_header import (
    HEADER_BYTES,
    NO_LEADER_EPOCH,
    batch_span,
    read_header,
    split_batches,
)

# Between two pieces the loop may flush, or stop. One takes an eighth of a second of CPU time at most, unless
# it is a single batch.
PIECE_RECORDS = 2_000


class FetchedPartition(NamedTuple):
    """The record batches that one fetch brought of one partition."""

    tp: TopicPartition
    start: int  # the offset that was requested
    next: int
    last_ms: int | None
    raw: bytes
    aborted: Sequence[tuple[int, int]] = ()  # (producer id, first offset) of aborted transactions
    leader_epoch: int = NO_LEADER_EPOCH  # of the last batch

    @property
    def is_cut_short(self) -> bool:
        """Whether not even the first batch is complete, which Kafka promises."""
        return len(self.raw) < HEADER_BYTES or read_header(self.raw).size_bytes > len(self.raw)

    def of(self, part: Partition) -> RecordSet:
        return RecordSet(part, self.start, self.raw, tuple(self.aborted), epoch_token(self.leader_epoch))

    def pieces(self) -> Iterator[FetchedPartition]:
        """Yields this in pieces of whole batches that the counter reads within a moment, in order.

        One with aborted transactions stays whole: which batches belong to them is known from its first one.
        """
        if self.aborted:
            yield self
            return
        start, remaining_bytes = self.start, len(self.raw)
        for raw in split_batches(self.raw, PIECE_RECORDS):
            remaining_bytes -= len(raw)
            if not remaining_bytes:
                yield self._replace(start=start, raw=raw)
                return
            span = batch_span(raw, start)
            # Epochs only grow along a log: a later one than the last batch's is damage, as is each where the
            # last one was not credible.
            epoch = span.leader_epoch if span.leader_epoch <= self.leader_epoch else NO_LEADER_EPOCH
            yield self._replace(
                start=start, next=span.next, last_ms=span.last_ms, raw=raw, leader_epoch=epoch
            )
            start = span.next


class UnreadablePartition(NamedTuple):
    """A partition that cannot be read from its position. `hold` it, or every poll returns this again."""

    tp: TopicPartition
    gap: Gap


def epoch_token(leader_epoch: int) -> str:
    """Returns the leader epoch of the record before a position, as a resume token (see `Position`).

    Where a log was cut off and written again, its records have another epoch from there on. So the broker
    can tell the position from one with the same offset.
    """
    return "" if leader_epoch == NO_LEADER_EPOCH else str(leader_epoch)


def token_epoch(resume_token: str) -> int:
    return int(resume_token) if resume_token.isdecimal() else NO_LEADER_EPOCH
