"""Values that cross the analyzer's seams: record sets in, counted rows out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Literal, NamedTuple, Protocol

from analyzer.kernel.shipping_delays import ShippingDelays


class Partition(NamedTuple):
    """A log with one sequence of offsets: a Kafka partition, or a file.

    Identified by cluster, topic id and number. The id and not the name, because a topic that was deleted and
    created again has other records under the same name and offsets.
    """

    cluster: str
    topic_id: str
    number: int
    source: str  # its name in the configuration
    topic: str  # for display: the topic's name, the file's path

    def __str__(self) -> str:
        return f"{self.topic}[{self.number}]"


def shown_partition(text: str) -> tuple[str, str]:
    """Returns topic and number of a partition as `str` shows it.

    >>> shown_partition("access-log[3]")
    ('access-log', '3')
    """
    topic, _, number = text.removesuffix("]").rpartition("[")
    return topic, number


def process_prefix(analyzer: str) -> str:
    """Returns the beginning of the names of all processes of an analyzer."""
    return f"{analyzer}:"


def process_name(analyzer: str, number: int) -> str:
    """Returns the name of a process in the database, by that of its analyzer and its number."""
    return f"{process_prefix(analyzer)}{number}"


def parent_analyzer(process: str) -> str:
    """Returns the name of the analyzer that a process is of.

    >>> parent_analyzer(process_name("web-1", 4711))
    'web-1'
    """
    return process.rpartition(":")[0] or process


class Position(NamedTuple):
    """Stored position of a partition: the next offset, and its resume token.

    A resume token is what a source stores next to an offset to recognise the place again: it says whether the
    data before the offset is still the data that was counted. For Kafka it is the leader epoch of the record
    before the offset, for files it is digests of all bytes before it; "" where there is none. Only the kind
    of source that made a token can read it.
    """

    next: int  # the offset to ask for
    resume_token: str = ""
    gap: Gap | None = None  # blocks the partition at this position


class RecordSet(NamedTuple):
    """Raw record batches (v2, compressed as Kafka holds them) of one partition."""

    part: Partition
    start: int  # the offset that was asked for; records below it are not counted
    raw: bytes
    aborted: Sequence[tuple[int, int]] = ()  # (producer id, first offset) of aborted transactions
    resume_token: str = ""  # stored with the offset after this set


class Record(NamedTuple):
    """One record as a client or a file's line gives it."""

    offset: int
    kafka_ms: int | None  # None: a file's line, which has only the time inside it
    value: bytes | None  # None: a tombstone


class RecordColumns(NamedTuple):
    """Records as columns. A missing timestamp is None, and so is the value of a tombstone."""

    offsets: list[int]
    kafka_ms: list[int | None]
    values: list[bytes | None]
    size_bytes: int  # of all values, or somewhat more

    def part(self, begin: int, end: int) -> RecordColumns:
        offsets, kafka_ms, values = self.offsets[begin:end], self.kafka_ms[begin:end], self.values[begin:end]
        return RecordColumns(offsets, kafka_ms, values, self.size_bytes)

    def only(self, mask: Sequence[bool]) -> RecordColumns:
        """The records for which `mask` is true; behind its end, none."""
        offsets, kafka_ms, values, size_bytes = self
        return RecordColumns(
            list(compress(offsets, mask)),
            list(compress(kafka_ms, mask)),
            list(compress(values, mask)),
            size_bytes,
        )


class Records(NamedTuple):
    """Decoded records of one partition, from a client without raw batches or from the lines of a file."""

    part: Partition
    start: int  # the offset that was asked for; records below it are not counted
    next: int  # the offset to ask for afterwards; covers holes
    columns: RecordColumns  # offsets rise
    resume_token: str = ""
    # When they were read, for records without a Kafka time: those too far ahead of it are rejected.
    read_ms: int | None = None

    @classmethod
    def of(
        cls, part: Partition, start: int, next_: int, items: Iterable[Record], resume_token: str = ""
    ) -> Records:
        """Returns single records as one set."""
        items = list(items)
        columns = RecordColumns(
            [item.offset for item in items],
            [item.kafka_ms for item in items],
            [item.value for item in items],
            sum(len(item.value or b"") for item in items),
        )
        return cls(part, start, next_, columns, resume_token)

    @property
    def items(self) -> list[Record]:
        """Single records, for tests and tools; the counter reads the columns."""
        offsets, kafka_ms, values, _ = self.columns
        return list(map(Record, offsets, kafka_ms, values))


class PartitionRevoked(NamedTuple):
    """A partition that another analyzer takes over: drop what was counted of it and not stored."""

    part: Partition


SourceItem = RecordSet | Records | PartitionRevoked

GapKind = Literal[
    "recreated", "retention", "past-end", "corrupt", "too-large", "unsupported", "too-many-rejected"
]


class Gap(NamedTuple):
    """Offsets that block a partition until an operator decides where to continue.

    `[start, end)` cannot be counted, or should not be without asking; `end` is None where it is unknown.
    "past-end": the log was truncated behind the stored offset; these offsets were counted and are gone.
    "recreated": the topic was created again; the partition is the new one, and nothing of it was counted.
    """

    kind: GapKind
    start: int
    end: int | None
    why: str  # a sentence for the operator

    @property
    def position(self) -> int | None:
        """The stored offset while the gap is open; None when the partition has none yet."""
        return None if self.kind == "recreated" else self.end if self.kind == "past-end" else self.start

    @property
    def behind(self) -> int | None:
        """The offset at which to continue with the smallest loss; None where it is unknown."""
        return self.start if self.kind in ("past-end", "recreated") else self.end


FeedStatus = Literal["ok", "corrupt", "too-large", "unsupported", "too-many-rejected"]
RejectReason = Literal[
    "tombstone",
    "too-large",
    "bad-utf8",
    "bad-json",
    "bad-line",
    "bad-caller",
    "bad-time",
    "bad-number",
    "bad-field",
    "future",
    "past",
]


class Rejected(NamedTuple):
    """A record that could not be read: its place, the reason, and a bounded sample."""

    part: Partition
    offset: int
    reason: RejectReason
    sample: bytes
    kafka_ms: int | None = None  # as the record has it
    value_bytes: int | None = None  # size of the whole value; None: a tombstone


class FeedResult(NamedTuple):
    """Outcome of feeding one record set."""

    next: int  # the next offset to ask for; before `start` when a run of rejected records began earlier
    seen: int  # records at or after `start`, rejected ones included
    counted: int
    status: FeedStatus = "ok"  # otherwise: the batch, or the run of rejected records, at `bad` was refused
    bad: int = -1
    skip_to: int = -1  # the offset behind what was refused; -1: unknown
    first: Rejected | None = None  # the first of too many rejected records in a row


class CountRow(NamedTuple):
    """An increment of one meter for one series in one bucket."""

    grouping: str  # "caller", "caller+resource", ...
    key: str
    resource: str  # "" unless the grouping ends with +resource
    meter: str
    width_s: int
    bucket_s: int
    value: int  # of requests that were admitted
    denied: int  # of requests that a gate had denied


class Series(NamedTuple):
    """One key of a grouping."""

    grouping: str
    key: str
    resource: str


class Verdict(NamedTuple):
    """Requests of which the records say that a gate denied them, by the lock of `policy`.

    They are among the denied ones of the tables. The transaction that stores the counts decides whether they
    stay there.
    """

    part: Partition
    policy: str  # "": the records name none
    caller: str  # as the gate was asked for it, also if it is counted in the overflow
    logged_s: int  # the minute of the records' Kafka time; of the requests' for records without one
    bucket_s: int  # the minute of the requests
    slot_s: int  # the narrowest bucket that they are counted in; the minute, where there are no slots
    series: tuple[Series, ...]  # that the requests are counted in, one per grouping, by its name
    values: tuple[int, ...]  # in the order of the meters


class SlotLayout(NamedTuple):
    """Slots that a counter returns besides minutes, as rolling windows need them."""

    grouping: str
    width_s: int  # of a slot, [n * width, (n + 1) * width) since 1970 in UTC
    meters: tuple[str, ...]


class DistinctLayout(NamedTuple):
    """A meter of distinct values that a counter returns by slots, for the series of a grouping."""

    grouping: str
    width_s: int  # of a slot
    meter: str  # with the join "distinct"


class DistinctTable(NamedTuple):
    """Values of a field among the admitted requests, column by column: one entry per slot, series and value.

    Each entry once; sorted by slot, key, resource and value.
    """

    grouping: str
    meter: str
    width_s: int
    buckets_s: Sequence[int]  # starts of the slots
    keys: Sequence[str]
    resources: Sequence[str]
    values: Sequence[int]  # 64-bit digests of the field's texts, signed


class CountTable(NamedTuple):
    """Increments of meters of one grouping, column by column: one entry per bucket, or slot, and series.

    Sorted by bucket, key and resource, which is the order in which writers lock the stored rows.
    """

    grouping: str
    width_s: int
    meters: Sequence[str]
    buckets_s: Sequence[int]
    keys: Sequence[str]
    resources: Sequence[str]
    admitted: Sequence[Sequence[int]]  # a column per meter
    denied: Sequence[Sequence[int]]  # a column per meter; no columns where no request was denied

    def rows(self) -> Iterator[CountRow]:
        """Yields the increments one by one; those of 0 are left out."""
        nothing = [0] * len(self.keys)
        for index, meter in enumerate(self.meters):
            denied = self.denied[index] if self.denied else nothing
            series = zip(self.keys, self.resources, self.buckets_s, self.admitted[index], denied, strict=True)
            for key, resource, bucket_s, value, refused in series:
                if value or refused:
                    yield CountRow(
                        self.grouping, key, resource, meter, self.width_s, bucket_s, value, refused
                    )


NamedHow = Literal["old", "new", "drawn"]


class NamedCallers(NamedTuple):
    """Callers that a partition named in one hour since 1970, and by which rule they got the name."""

    hour: int
    how: NamedHow
    callers: Sequence[str]  # sorted; drawn ones in the order in which they were drawn last


class IdBlob(NamedTuple):
    """Hashes of (caller, id) that a partition remembers, by the generation in which they came."""

    generation: int
    number: int  # of the blob within its generation
    began_ms: int  # the partition's time when the generation began
    hashes: bytes  # 8 of each


class IdState(NamedTuple):
    """The ids that a partition remembers, as `analyzer.counting.counter.event_ids` has them."""

    reached_ms: int | None  # the partition's time
    far_run: int = 0  # records in a row that were a day ahead of it; below 0: behind it
    blobs: Sequence[IdBlob] = ()  # when drained, only those that are new or extended
    forgotten_to: int | None = None  # generations before this one are forgotten since the last drain
    kept_ms: int | None = None  # how long an id is really remembered; None: the source has no ids any more
    held: int = 0  # ids in memory


NO_HOUR = -1  # of a partition without any counted record


class CounterState(NamedTuple):
    """State that counting a partition depends on besides its records to come. Stored with its offset."""

    # Records rejected before the first one that the mapping fits; below 0: its negated fingerprint, it fits.
    reject_run: int = 0
    rejects_accepted_to: int = 0  # records before this offset add to no run: an operator accepted them
    hour: int = NO_HOUR  # the hour that the partition has reached, since 1970
    hour_before: int = NO_HOUR  # the hour that it had reached before
    # How many more records were a day behind `hour` than others; below 0: a day ahead of it.
    behind_run: int = 0
    named: Sequence[NamedCallers] = ()  # of these two hours; when drained, only those that are new
    kept: tuple[int, ...] | None = None  # hours whose stored names still hold; None: all
    ids: IdState | None = None  # None: the source has none


class PartitionProgress(NamedTuple):
    """Progress of one partition, and its ledger: seen = counted + duplicate + dead + late."""

    part: Partition
    start: int  # must equal the stored offset
    next: int
    seen: int = 0
    counted: int = 0
    duplicate: int = 0
    dead: int = 0
    late: int = 0
    resume_token: str = ""
    overflow: int = 0  # of those counted: in the overflow series
    state: CounterState | None = None  # None: unchanged
    renamed: int = 0  # of those counted: under another name, because theirs was unusable or not to count
    delays: ShippingDelays | None = None  # of those counted that have a Kafka time; None: of none
    without_id: int = 0  # of those counted: the source has ids, and the record none that can be used


class Moment(NamedTuple):
    """The time and the offset of a record in its partition."""

    ms: int  # its Kafka time; that of the request for records without one
    offset: int


class FactRun(NamedTuple):
    """Consecutive records of one caller in one partition that state one value of a fact."""

    value: str
    since: Moment  # of the first of them
    # Whether the counter knows of no value that the partition has stated before: if the stored one is equal,
    # it has not changed.
    is_first: bool


class StatedFacts(NamedTuple):
    """Facts about callers that the records of one partition have changed since the last drain.

    A record that states nothing ends no run. Only callers that are counted by name have facts.
    """

    part: Partition
    names: tuple[str, ...]  # of the facts
    runs: Mapping[str, Sequence[FactRun | None]]  # the last run of each fact, by caller; None: unchanged
    unusable: Mapping[str, int]  # values that cannot be the fact, by its name


class DrainedCounts(NamedTuple):
    """Everything counted since the last drain, sorted so that all writers take row locks in one order."""

    parts: Sequence[PartitionProgress]
    tables: Sequence[CountTable]  # one per grouping, sorted by its name; none where nothing was counted
    rejected: Sequence[Rejected]
    verdicts: Sequence[Verdict] = ()  # of all denied requests
    # One per `SlotLayout`, sorted by grouping and width; none where nothing was counted. They have the
    # requests of `tables` once more, and their outcomes, for judgements: they are not stored as counts.
    slots: Sequence[CountTable] = ()
    distinct: Sequence[DistinctTable] = ()  # one per `DistinctLayout`, sorted as these; none without an entry
    facts: Sequence[StatedFacts] = ()  # by partition; none without an entry

    @property
    def rows(self) -> list[CountRow]:
        """All increments of the minutes one by one, sorted."""
        return sorted(row for table in self.tables for row in table.rows())


class Lag(NamedTuple):
    """Distance between the end of a partition and what was taken from it."""

    records: int
    seconds: float  # age of the oldest record not yet taken; 0.0 when there is none


class Counter(Protocol):
    """Counts record sets of many partitions.

    docs/spec/counter.md is the contract, the Python counter its reference; a native one must give equal
    values. Reads no clock and does no I/O.
    """

    def feed(self, record_set: RecordSet | Records) -> FeedResult:
        """Counts one record set, each batch whole or not at all.

        The result depends only on the bytes and on what was fed before. Sets of one partition must follow
        each other.
        """

    def resume(self, part: Partition, state: CounterState) -> None:
        """Continues a partition where its last counter left off; without this it starts from scratch."""

    def full(self) -> bool:
        """Whether a bound on rows or rejected records is reached: drain before feeding more."""

    def forget(self, part: Partition) -> None:
        """Drops what was fed of one partition since the last drain, and its state."""

    def drain(self) -> DrainedCounts:
        """Returns what was counted since the last call, and starts again at zero."""
