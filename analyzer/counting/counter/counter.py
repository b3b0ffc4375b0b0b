"""The Python counter: record sets of many partitions to counts. The reference for docs/spec/counter.md."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from analyzer.counting.counter.aggregate import Aggregate, CountLayout
from analyzer.counting.counter.count_tables import join_tables
from analyzer.counting.counter.distinct_values import DistinctValues, distinct_value_tables
from analyzer.counting.counter.outcomes import Outcomes, outcome_tables
from analyzer.counting.counter.partition_counter import PartitionCounter, PartitionMemory, TooManyRejected
from analyzer.counting.counter.verdict_counts import VerdictCounts
from analyzer.counting.records.forgotten_callers import ForgottenCallers
from analyzer.counting.records.reader import RecordReader
from analyzer.kernel.model import (
    CounterState,
    DistinctLayout,
    DrainedCounts,
    FeedResult,
    Partition,
    RecordColumns,
    Records,
    RecordSet,
    SlotLayout,
)
from analyzer.kernel.shipping_delays import DelaySample
from analyzer.plan.groupings import parse_grouping, with_value_fields
from analyzer.plan.mapping import SourceMapping
from analyzer.plan.meters import REQUESTS, Meter, built_in_meters
from analyzer.sources.batches.codecs import Decompressor
from analyzer.sources.batches.record_batches import DecodedBatch, decode_batches
from analyzer.sources.batches.record_decoder import concatenate
from gatekeeper.identity import NameDigest

ROWS_MAX = 200_000  # values in memory; one flush of them takes a second or two
REJECTED_MAX = 10_000
FACTS_KNOWN_MAX = 200_000  # facts about callers in memory, some 35 MB; then all are forgotten
# Records of small batches are read together, because every column has a fixed cost.
READ_TOGETHER = 2_000


class PythonCounter:
    """Implements the `Counter` protocol. Must not be shared between threads.

    Args:
        mappings: How records are read, by source.
        groupings: Names of the groupings that are counted.
        named_values: The field of each named value.
        meters: The meters; `requests` always is among them.
        slots: What is counted by slots, besides minutes.
        distinct: Meters of distinct values, and the series whose values are returned.
        rows_max: Values in memory, then `full()`.
        rejected_max: Rejected records in memory, then `full()`.
        digests: The digests that fields may be counted by.
        id_secret: The key of the hashes of ids.
        forgotten: Callers that are counted under a pseudonym; None: there are none.

    Raises:
        ValueError: A mapping has no caller field, a weight that is not a whole number, or an id that is not
            text; or a grouping is unknown; or slots or distinct values are of what is not counted.
        SecretMissing: A field is counted by another digest.
    """

    def __init__(
        self,
        mappings: Mapping[str, SourceMapping],
        groupings: Iterable[str],
        meters: Sequence[Meter] = (REQUESTS,),
        *,
        named_values: Mapping[str, str] = MappingProxyType({}),
        slots: Sequence[SlotLayout] = (),
        distinct: Sequence[DistinctLayout] = (),
        rows_max: int = ROWS_MAX,
        rejected_max: int = REJECTED_MAX,
        digests: Iterable[NameDigest] = (),
        id_secret: bytes = b"",
        forgotten: ForgottenCallers | None = None,
    ) -> None:
        self._mappings = mappings
        self._id_secret = id_secret
        self._forgotten = forgotten
        self._layout = CountLayout(
            [with_value_fields(parse_grouping(name), named_values) for name in groupings],
            meters,
            slots,
            distinct,
            built_in=built_in_meters(mappings.values()),
        )
        projection = self._layout.projection
        by_fingerprint = {digest.fingerprint: digest for digest in digests}
        self._readers = {
            source: RecordReader(mapping, projection, by_fingerprint) for source, mapping in mappings.items()
        }
        self._decompressors = {
            source: Decompressor(mapping.batch_bytes_max) for source, mapping in mappings.items()
        }
        self._rows_max = rows_max
        self._rejected_max = rejected_max
        self._partitions: dict[Partition, PartitionCounter] = {}
        self._memories: dict[Partition, PartitionMemory] = {}

    def feed(self, record_set: RecordSet | Records) -> FeedResult:
        """See `Counter.feed`.

        Raises ValueError for a set that does not follow the one before, because the skipped offsets would
        then be treated as counted; KeyError for a source without a mapping.
        """
        partition = self._partition(record_set.part, record_set.start)
        seen_before, counted = partition.seen, partition.counted
        refused: DecodedBatch | TooManyRejected | None
        if isinstance(record_set, Records):
            refused = _count_records(partition, record_set)
        else:
            refused = self._count_batches(partition, record_set)
        # Fewer than before where records of a run that began in an earlier set are taken back.
        result = FeedResult(partition.next, max(0, partition.seen - seen_before), partition.counted - counted)
        match refused:
            case None:
                return result
            case TooManyRejected(first, end):
                return result._replace(status="too-many-rejected", bad=first.offset, skip_to=end, first=first)
            case _:
                return result._replace(status=refused.status, bad=refused.base, skip_to=refused.next)

    def resume(self, part: Partition, state: CounterState) -> None:
        self._partitions.pop(part, None)
        self._memories[part] = PartitionMemory(self._mappings[part.source], state, self._id_secret)

    def full(self) -> bool:
        partitions = self._partitions.values()
        return (
            sum(partition.values_in_memory for partition in partitions) >= self._rows_max
            or sum(len(partition.rejected) for partition in partitions) >= self._rejected_max
        )

    def forget(self, part: Partition) -> None:
        self._partitions.pop(part, None)
        self._memories.pop(part, None)

    def drain(self) -> DrainedCounts:
        progressed = [
            partition for _, partition in sorted(self._partitions.items()) if partition.has_progress
        ]
        self._partitions = {}
        outcomes = outcome_tables(
            self._layout, [(partition.aggregate, partition.outcomes) for partition in progressed]
        )
        facts = [partition.memory.facts.drain(partition.part) for partition in progressed]
        if sum(memory.facts.known for memory in self._memories.values()) > FACTS_KNOWN_MAX:
            for memory in self._memories.values():
                memory.facts.forget()
        tables = join_tables(self._layout, [partition.aggregate for partition in progressed])
        return DrainedCounts(
            [partition.drain() for partition in progressed],
            tables.minutes,
            [rejected for partition in progressed for rejected in partition.rejected],
            [verdict for partition in progressed for verdict in partition.verdicts.of(partition.part)],
            tables.slots + outcomes,
            distinct_value_tables(self._layout, [partition.distinct for partition in progressed]),
            [stated for of_partition in facts for stated in of_partition],
        )

    def _partition(self, part: Partition, start: int) -> PartitionCounter:
        partition = self._partitions.get(part)
        if partition is None:
            mapping = self._mappings[part.source]
            if part not in self._memories:
                self._memories[part] = PartitionMemory(mapping, CounterState(), self._id_secret)
            partition = self._partitions[part] = PartitionCounter(
                part,
                start,
                start,
                reader=self._readers[part.source],
                sample_bytes=mapping.sample_bytes,
                memory=self._memories[part],
                aggregate=Aggregate(self._layout),
                verdicts=VerdictCounts(self._layout),
                distinct=DistinctValues(self._layout),
                outcomes=Outcomes(self._layout),
                delays=DelaySample(has_own_times=self._readers[part.source].has_times),
                forgotten=self._forgotten,
            )
        elif partition.next != start:
            raise ValueError(f"{part}: a set from {start} was fed after {partition.next}")
        return partition

    def _count_batches(
        self, partition: PartitionCounter, record_set: RecordSet
    ) -> DecodedBatch | TooManyRejected | None:
        """Counts the batches up to one that is refused, and returns that."""
        partition.resume_token = record_set.resume_token or partition.resume_token
        pending: list[RecordColumns] = []
        records = 0
        refused = None
        for batch in decode_batches(
            record_set.raw, record_set.start, record_set.aborted, self._decompressors[record_set.part.source]
        ):
            if batch.status != "ok":
                refused = batch
                break
            partition.next = max(partition.next, batch.next)
            pending.append(batch.records)
            records += len(batch.records.values)
            if records >= READ_TOGETHER:
                too_many = partition.count(concatenate(pending))
                if too_many is not None:
                    return too_many
                pending, records = [], 0
        return partition.count(concatenate(pending)) or refused


def _count_records(partition: PartitionCounter, record_set: Records) -> TooManyRejected | None:
    """Counts the records up to a run of rejected ones that is too long, and returns that."""
    records = _from_start(record_set)
    # A resume token describes the end of the set only: reading can continue there or at the set's start.
    if record_set.resume_token:
        too_many = partition.count_all_or_none(records, record_set.read_ms)
    else:
        too_many = partition.count(records, record_set.read_ms)
    if too_many is None:
        partition.next = max(partition.next, record_set.next)
        partition.resume_token = record_set.resume_token or partition.resume_token
    return too_many


def _from_start(record_set: Records) -> RecordColumns:
    """Returns the records at or after `start`."""
    columns = record_set.columns
    skipped = bisect_left(columns.offsets, record_set.start)
    return columns.part(skipped, len(columns.offsets)) if skipped else columns
