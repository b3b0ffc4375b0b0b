"""Record batches read with kafka-python's record objects."""

from __future__ import annotations

from collections.abc import Sequence

from kafka.record import MemoryRecords

from analyzer.kernel.model import Record


def records_of(raw: bytes, start: int, aborted: Sequence[tuple[int, int]]) -> tuple[int, list[Record]]:
    """Returns the offset after `raw`, and the committed records from `start` on."""
    waiting = sorted(aborted, key=lambda transaction: transaction[1])
    aborting: set[int] = set()
    found, next_offset = [], start
    batches = MemoryRecords(raw)
    while (batch := batches.next_batch()) is not None:
        assert batch.validate_crc()
        next_offset = max(next_offset, batch.next_offset)
        while waiting and waiting[0][1] <= batch.last_offset:
            aborting.add(waiting.pop(0)[0])
        if batch.is_control_batch:
            aborting.discard(batch.producer_id)  # the end of the producer's transaction
        elif not (batch.is_transactional and batch.producer_id in aborting):
            found += [
                Record(record.offset, record.timestamp, record.value)
                for record in batch
                if record.offset >= start
            ]
    return next_offset, found
