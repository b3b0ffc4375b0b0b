"""Types through which the facade and the modules behind it, which change kafka-python, see each other."""

from __future__ import annotations

from typing import NamedTuple

from analyzer.sources.batches.batch_header import HEADER_BYTES, read_header

FAILURES_MAX = 16


class FetchedBatches(NamedTuple):
    """The record batches that one fetch brought of one partition."""

    start: int  # the offset that was requested
    next: int
    raw: bytes
    aborted: list[tuple[int, int]]  # (producer id, first offset) of aborted transactions
    last_ms: int | None
    leader_epoch: int  # of the last batch, or NO_LEADER_EPOCH

    @property
    def is_cut_short(self) -> bool:
        """Whether not even the first batch is complete, which Kafka promises."""
        return len(self.raw) < HEADER_BYTES or read_header(self.raw).size_bytes > len(self.raw)


class ConnectionFailures:
    """The errors by which the last connections failed; empty once one is established.

    Written on the consumer's own thread, read on any.
    """

    def __init__(self) -> None:
        self._last: tuple[BaseException, ...] = ()

    @property
    def last(self) -> tuple[BaseException, ...]:
        return self._last

    def note(self, error: BaseException) -> None:
        if error not in self._last:  # a connection may report its error twice: failed, and closed for it
            self._last = (*self._last, error)[-FAILURES_MAX:]

    def clear(self) -> None:
        self._last = ()
