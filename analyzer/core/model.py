"""The few values that cross the analyzer's seams: record sets in, counted rows out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol


class Partition(NamedTuple):
    """One log with one line of offsets: a Kafka partition, or a file.

    Cluster, topic id and number say which; the id and not the name, because a topic that was
    deleted and created again has other records under the same name and offsets.
    """

    cluster: str
    topic_id: str
    number: int
    source: str  # its name in the configuration
    topic: str  # for people: the topic's name, the file's path

    def __str__(self) -> str:
        return f"{self.topic}[{self.number}]"


class Position(NamedTuple):
    """Where a partition goes on: the offset to ask for, and by what the source knows the place again."""

    next: int
    resume_token: str = ""
    gap: Gap | None = None  # what stands in the way there


class RecordSet(NamedTuple):
    """Raw record batches (v2, compressed as Kafka holds them) of one partition."""

    part: Partition
    start: int  # the offset that was asked for; records below it are not counted
    raw: bytes
    aborted: Sequence[tuple[int, int]] = ()  # (producer id, first offset) of aborted transactions
    resume_token: str = ""  # by what the source will know this place again; kept beside the offset


class Record(NamedTuple):
    offset: int
    kafka_ms: int | None  # None: a file's line, which has no time but its own
    value: bytes | None  # None: a tombstone


class Records(NamedTuple):
    """The same from a client that only gives records, or from a file's lines."""

    part: Partition
    start: int
    next: int  # the offset to ask for afterwards; covers holes
    items: Sequence[Record]
    resume_token: str = ""


class PartitionRevoked(NamedTuple):
    """This partition is no longer ours: what was counted of it and not stored must be forgotten."""

    part: Partition


SourceItem = RecordSet | Records | PartitionRevoked

GapKind = Literal[
    "recreated", "retention", "past-end", "corrupt", "too-large", "unsupported", "too-many-rejected"
]


class Gap(NamedTuple):
    """What stands in a partition's way: nothing more is read of it until a person says where to go on.

    `[start, end)` are the offsets that nobody can count, or should not without being asked; `end` is None
    where it is not known. Of a log that was cut off behind us (past-end) they were counted, and are gone; of
    one that was made again (recreated) the partition is the new one, and nothing of it was counted.
    """

    kind: GapKind
    start: int
    end: int | None
    why: str  # a sentence for people

    @property
    def position(self) -> int | None:
        """The offset that is stored while the gap is there; None when the partition was never begun."""
        return None if self.kind == "recreated" else self.end if self.kind == "past-end" else self.start

    @property
    def behind(self) -> int | None:
        """Where to go on, losing as little as possible; None where that is not known."""
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
    """A record that could not be read: where, why, and a bounded sample of it."""

    part: Partition
    offset: int
    reason: RejectReason
    sample: bytes
    kafka_ms: int | None = None  # as the record has it
    value_bytes: int | None = None  # of the whole value; None: a tombstone


class FeedResult(NamedTuple):
    """What became of one record set."""

    next: int  # the next offset to ask for; of too many rejected records perhaps before `start`
    seen: int  # records at or after `start`, the rejected ones included
    counted: int
    status: FeedStatus = "ok"  # otherwise: the batch, or the run of rejected records, at `bad` was refused
    bad: int = -1
    skip_to: int = -1  # where a deliberate, recorded skip would go on
    first: Rejected | None = None  # of too many in a row


class CountRow(NamedTuple):
    """One delta: so much more of a meter, for one series, in one bucket."""

    grouping: str  # "caller", "caller+resource", ...
    key: str
    resource: str  # "" unless the grouping has a second part
    meter: str
    width_s: int
    bucket_s: int
    value: int  # of requests that were let through
    denied: int  # of requests that a gate had refused


NamedHow = Literal["old", "new", "drawn"]


class NamedCallers(NamedTuple):
    """Callers that a partition counts by name in one hour since 1970, and how they came to it."""

    hour: int
    how: NamedHow
    callers: Sequence[str]  # sorted


NO_HOUR = -1  # of a partition that has come to none yet


class CounterState(NamedTuple):
    """What counting a partition depends on beside its records to come. Stored with its offset."""

    run: int = 0  # records rejected in a row
    rejects_accepted_to: int = 0  # those before this offset make no run: somebody has accepted them
    hour: int = NO_HOUR  # the one that the partition has come to, since 1970
    before: int = NO_HOUR  # ... and the one before
    behind: int = 0  # records in a row that are much older
    named: Sequence[NamedCallers] = ()  # of these two hours; when drained, those that are new
    kept: tuple[int, ...] | None = None  # hours whose stored names still hold; None: all


class PartitionProgress(NamedTuple):
    """How far one partition was counted, and its ledger: seen = counted + duplicate + dead + late."""

    part: Partition
    start: int  # where the stored offset must stand
    next: int
    seen: int = 0
    counted: int = 0
    duplicate: int = 0
    dead: int = 0
    late: int = 0
    resume_token: str = ""
    overflow: int = 0  # of those counted: in the overflow series
    carried: CounterState | None = None  # None: as it was


class DrainedCounts(NamedTuple):
    """What was counted since the last drain, sorted, so that writers take row locks in one order."""

    parts: Sequence[PartitionProgress]
    rows: Sequence[CountRow]
    rejected: Sequence[Rejected]


class Lag(NamedTuple):
    """How far a partition's end is ahead of what was taken from it."""

    records: int
    seconds: float  # age of the oldest record not yet taken; 0.0 when there is none


class Counter(Protocol):
    """Counts record sets of many partitions. The Python one is the reference for the contract in
    docs/counter.md; a native kernel must give equal values. Reads no clock, does no I/O."""

    def feed(self, taken: RecordSet | Records) -> FeedResult:
        """Count one record set, each batch whole or not at all.

        A function of the bytes and of what was fed before. Sets of one partition must follow each other.
        """

    def resume(self, part: Partition, carried: CounterState) -> None:
        """Go on with a partition as whoever counted it before would. One that is fed without that begins
        with nothing."""

    def full(self) -> bool:
        """Whether a bound on rows or rejected records is reached: drain before feeding more."""

    def forget(self, part: Partition) -> None:
        """Drop what was fed of one partition since the last drain, and what was carried on of it."""

    def drain(self) -> DrainedCounts:
        """What was counted since the last call; starts again at nothing."""
