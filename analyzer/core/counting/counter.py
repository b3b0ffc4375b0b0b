"""Counts record sets, in Python: the reference for the contract in docs/counter.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from analyzer.core.counting.aggregate import Aggregate, CountLayout, rows_of
from analyzer.core.counting.meters import REQUESTS, Meter
from analyzer.core.counting.partition_counter import PartitionCounter, PartitionMemory, TooManyRejected
from analyzer.core.kafka_format.codecs import Unpacker
from analyzer.core.kafka_format.record_batches import DecodedBatch, batches
from analyzer.core.kafka_format.record_decoder import RecordColumns, joined
from analyzer.core.model import CounterState, DrainedCounts, FeedResult, Partition, Records, RecordSet
from analyzer.core.records import mapping as mappings
from analyzer.core.records.reader import RecordReader

ROWS_MAX = 200_000  # values in memory; one flush of them takes a second or two
REJECTED_MAX = 10_000
# Records of small batches are judged together: a column costs some calls, however short it is.
TOGETHER = 2_000


class PythonCounter:
    """The `Counter` protocol. `mapped` says by source how records are read, `groupings` and `meters` what is
    counted; the meter `requests` always is. Bounds: `rows_max` values in memory, `rejected_max` rejected
    records, then `full()`. Not to be shared between threads."""

    def __init__(
        self,
        mapped: Mapping[str, mappings.Mapping],
        groupings: Sequence[str],
        meters: Sequence[Meter] = (REQUESTS,),
        *,
        rows_max: int = ROWS_MAX,
        rejected_max: int = REJECTED_MAX,
    ) -> None:
        """Raises ValueError for a mapping by which nobody can be read."""
        self._mapped = mapped
        self._counting = CountLayout(groupings, meters)
        self._readers = {
            source: RecordReader(mapping, self._counting.asked) for source, mapping in mapped.items()
        }
        self._unpackers = {source: Unpacker(mapping.batch_bytes_max) for source, mapping in mapped.items()}
        self._rows_max = rows_max
        self._rejected_max = rejected_max
        self._ledgers: dict[Partition, PartitionCounter] = {}
        self._memories: dict[Partition, PartitionMemory] = {}

    def feed(self, taken: RecordSet | Records) -> FeedResult:
        """See `Counter.feed`. Raises ValueError for a set that does not follow what was fed before: the
        offsets between would pass for counted. Raises KeyError for a source that was never mapped."""
        ledger = self._ledger_of(taken.part, taken.start)
        seen, counted = ledger.seen, ledger.counted
        refused: DecodedBatch | TooManyRejected | None
        if isinstance(taken, Records):
            refused = _count_records(ledger, taken)
        else:
            refused = self._count_batches(ledger, taken)
        # Of a run that began in a set before, records are taken back.
        fed = FeedResult(ledger.next, max(0, ledger.seen - seen), ledger.counted - counted)
        match refused:
            case None:
                return fed
            case TooManyRejected(first, end):
                return fed._replace(status="too-many-rejected", bad=first.offset, skip_to=end, first=first)
            case _:
                return fed._replace(status=refused.status, bad=refused.base, skip_to=refused.next)

    def resume(self, part: Partition, carried: CounterState) -> None:
        self._ledgers.pop(part, None)
        self._memories[part] = PartitionMemory(self._mapped[part.source], carried)

    def full(self) -> bool:
        ledgers = self._ledgers.values()
        return (
            sum(len(ledger.tables) for ledger in ledgers) >= self._rows_max
            or sum(len(ledger.rejected) for ledger in ledgers) >= self._rejected_max
        )

    def forget(self, part: Partition) -> None:
        self._ledgers.pop(part, None)
        self._memories.pop(part, None)

    def drain(self) -> DrainedCounts:
        moved = [ledger for _, ledger in sorted(self._ledgers.items()) if ledger.moved]
        self._ledgers = {}
        return DrainedCounts(
            [ledger.drain() for ledger in moved],
            rows_of(self._counting, [ledger.tables for ledger in moved]),
            [rejected for ledger in moved for rejected in ledger.rejected],
        )

    def _ledger_of(self, part: Partition, start: int) -> PartitionCounter:
        ledger = self._ledgers.get(part)
        if ledger is None:
            mapping = self._mapped[part.source]
            if part not in self._memories:
                self._memories[part] = PartitionMemory(mapping, CounterState())
            ledger = self._ledgers[part] = PartitionCounter(
                part,
                start,
                start,
                reader=self._readers[part.source],
                sample_bytes=mapping.sample_bytes,
                memory=self._memories[part],
                tables=Aggregate(self._counting),
            )
        elif ledger.next != start:
            raise ValueError(f"{part}: a set from {start} was fed after {ledger.next}")
        return ledger

    def _count_batches(
        self, ledger: PartitionCounter, taken: RecordSet
    ) -> DecodedBatch | TooManyRejected | None:
        """Count the batches up to what is refused, which is returned."""
        ledger.resume_token = taken.resume_token or ledger.resume_token
        waiting: list[RecordColumns] = []
        records = 0
        refused = None
        for batch in batches(taken.raw, taken.start, taken.aborted, self._unpackers[taken.part.source]):
            if batch.status != "ok":
                refused = batch
                break
            ledger.next = max(ledger.next, batch.next)
            waiting.append(batch.frames)
            records += len(batch.frames.values)
            if records >= TOGETHER:
                many = ledger.count(joined(waiting))
                if many is not None:
                    return many
                waiting, records = [], 0
        return ledger.count(joined(waiting)) or refused


def _count_records(ledger: PartitionCounter, taken: Records) -> TooManyRejected | None:
    """Count the records up to a run that is too long, which is returned."""
    frames = _frames_of(taken)
    # Where a resume_token knows the end of the set alone, that or its start is where we can go on from.
    many = ledger.count_whole(frames) if taken.resume_token else ledger.count(frames)
    if many is None:
        ledger.next = max(ledger.next, taken.next)
        ledger.resume_token = taken.resume_token or ledger.resume_token
    return many


def _frames_of(records: Records) -> RecordColumns:
    items = [item for item in records.items if item.offset >= records.start]
    return RecordColumns(
        [item.offset for item in items],
        [item.kafka_ms for item in items],
        [item.value for item in items],
        sum(len(item.value or b"") for item in items),
    )
