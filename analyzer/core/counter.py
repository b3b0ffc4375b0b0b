"""Counts record sets, in Python: the reference for the contract in docs/counter.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from analyzer.core import mapping as mappings
from analyzer.core.batches import Batch, batches
from analyzer.core.codecs import Unpacker
from analyzer.core.frames import Frames, joined, stretches
from analyzer.core.meters import REQUESTS, Meter
from analyzer.core.model import Counted, Fed, Partition, Progress, Records, RecordSet, Rejected
from analyzer.core.records import Reader
from analyzer.core.tables import Counting, Tables, rows_of

ROWS_MAX = 200_000  # values in memory; one flush of them takes a second or two
REJECTED_MAX = 10_000
# Records of small batches are judged together: a column costs some calls, however short it is.
TOGETHER = 2_000


@dataclass(slots=True)
class Ledger:
    """What was counted of one partition since the last drain."""

    part: Partition
    start: int
    next: int
    reader: Reader
    sample_bytes: int
    tables: Tables
    rejected: list[Rejected] = field(default_factory=list)
    seen: int = 0
    late: int = 0
    witness: str = ""
    last_ms: int | None = None

    def count(self, frames: Frames) -> None:
        for stretch in stretches(frames):
            if stretch.values:
                self._count(stretch)

    def _count(self, frames: Frames) -> None:
        sheet, refused = self.reader.read(frames)
        self.tables.add(sheet)
        for at, reason in sorted(refused.items()):
            sample = (frames.values[at] or b"")[: self.sample_bytes]
            self.rejected.append(Rejected(self.part, frames.offsets[at], reason, sample))
            self.late += reason == "past"
        self.seen += len(frames.values)
        self.last_ms = frames.kafka_ms[-1]

    @property
    def counted(self) -> int:
        return self.seen - len(self.rejected)

    @property
    def progress(self) -> Progress:
        return Progress(
            self.part,
            self.start,
            self.next,
            seen=self.seen,
            counted=self.counted,
            dead=len(self.rejected) - self.late,
            late=self.late,
            witness=self.witness,
            last_ms=self.last_ms,
        )


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
        self._counting = Counting(groupings, meters)
        self._readers = {source: Reader(mapping, self._counting.asked) for source, mapping in mapped.items()}
        self._unpackers = {source: Unpacker(mapping.batch_bytes_max) for source, mapping in mapped.items()}
        self._rows_max = rows_max
        self._rejected_max = rejected_max
        self._ledgers: dict[Partition, Ledger] = {}

    def feed(self, taken: RecordSet | Records) -> Fed:
        """See `Counter.feed`. Raises ValueError for a set that does not follow what was fed before: the
        offsets between would pass for counted. Raises KeyError for a source that was never mapped."""
        ledger = self._ledger_of(taken.part, taken.start)
        seen, counted = ledger.seen, ledger.counted
        refused = None
        if isinstance(taken, Records):
            ledger.count(_frames_of(taken))
            ledger.next = max(ledger.next, taken.next)
        else:
            refused = self._count_batches(ledger, taken)
        ledger.witness = taken.witness or ledger.witness
        fed = Fed(ledger.next, ledger.seen - seen, ledger.counted - counted)
        if refused is None:
            return fed
        return fed._replace(status=refused.status, bad=refused.base, skip_to=refused.next)

    def full(self) -> bool:
        ledgers = self._ledgers.values()
        return (
            sum(len(ledger.tables) for ledger in ledgers) >= self._rows_max
            or sum(len(ledger.rejected) for ledger in ledgers) >= self._rejected_max
        )

    def forget(self, part: Partition) -> None:
        self._ledgers.pop(part, None)

    def drain(self) -> Counted:
        moved = [
            ledger for _, ledger in sorted(self._ledgers.items()) if ledger.next > ledger.start or ledger.seen
        ]
        self._ledgers = {}
        return Counted(
            [ledger.progress for ledger in moved],
            rows_of(self._counting, [ledger.tables for ledger in moved]),
            [rejected for ledger in moved for rejected in ledger.rejected],
        )

    def _ledger_of(self, part: Partition, start: int) -> Ledger:
        ledger = self._ledgers.get(part)
        if ledger is None:
            sample_bytes = self._mapped[part.source].sample_bytes
            tables = Tables(self._counting)
            ledger = Ledger(part, start, start, self._readers[part.source], sample_bytes, tables)
            self._ledgers[part] = ledger
        elif ledger.next != start:
            raise ValueError(f"{part}: a set from {start} was fed after {ledger.next}")
        return ledger

    def _count_batches(self, ledger: Ledger, taken: RecordSet) -> Batch | None:
        """Count the batches up to one that is refused, which is returned."""
        waiting: list[Frames] = []
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
                ledger.count(joined(waiting))
                waiting, records = [], 0
        ledger.count(joined(waiting))
        return refused


def _frames_of(records: Records) -> Frames:
    items = [item for item in records.items if item.offset >= records.start]
    return Frames(
        [item.offset for item in items],
        [item.kafka_ms for item in items],
        [item.value for item in items],
        sum(len(item.value or b"") for item in items),
    )
