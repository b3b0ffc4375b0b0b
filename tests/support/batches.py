"""Record batches read the slow way, by kafka-python's own record objects."""

from __future__ import annotations

from collections.abc import Sequence

from kafka.record import MemoryRecords

from analyzer.core.model import Record


def records_of(raw: bytes, start: int, aborted: Sequence[tuple[int, int]]) -> tuple[int, list[Record]]:
    """The offset after `raw`, and what a reader of committed records sees from `start` on."""
    waiting = sorted(aborted, key=lambda each: each[1])
    undone: set[int] = set()
    found, next_offset = [], start
    batches = MemoryRecords(raw)
    while (batch := batches.next_batch()) is not None:
        assert batch.validate_crc()
        next_offset = max(next_offset, batch.next_offset)
        while waiting and waiting[0][1] <= batch.last_offset:
            undone.add(waiting.pop(0)[0])
        if batch.is_control_batch:
            undone.discard(batch.producer_id)  # commit or abort: this producer's transaction is over
        elif not (batch.is_transactional and batch.producer_id in undone):
            found += [
                Record(each.offset, each.timestamp, each.value) for each in batch if each.offset >= start
            ]
    return next_offset, found
