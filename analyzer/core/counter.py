"""Counts record sets, in Python: the reference for the contract in docs/counter.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from analyzer.core import mapping as mappings
from analyzer.core.batches import Batch, Frame, batches
from analyzer.core.meters import REQUESTS, Meter, bucket_start_s
from analyzer.core.model import Counted, Fed, Partition, Progress, Reason, Records, RecordSet, Rejected, Row
from analyzer.core.records import Key, Request, reader_for

ROWS_MAX = 200_000  # keys in memory; one flush of them takes a second or two
REJECTED_MAX = 10_000

Reader = Callable[[bytes | None, int | None], Request | Reason]
Amounts = list[int]  # of one key: requests, then one for each further meter


@dataclass(slots=True)
class Tally:
    """What was counted of one partition since the last drain."""

    part: Partition
    start: int
    next: int
    read: Reader
    sample_bytes: int
    largest: tuple[int, ...]  # places of meters that keep a maximum
    passed: dict[Key, Amounts] = field(default_factory=dict)
    denied: dict[Key, Amounts] = field(default_factory=dict)
    rejected: list[Rejected] = field(default_factory=list)
    seen: int = 0
    counted: int = 0
    dead: int = 0
    late: int = 0
    witness: str = ""
    last_ms: int | None = None

    def count(self, frames: Iterable[Frame]) -> None:
        """Count the records at or after `next`. The loop that every record goes through."""
        start, read, passed, refused, largest = self.next, self.read, self.passed, self.denied, self.largest
        seen = counted = 0
        kafka_ms = self.last_ms
        for offset, kafka_ms, value in frames:
            if offset < start:
                continue
            seen += 1
            found = read(value, kafka_ms)
            if isinstance(found, str):
                self.reject(offset, found, value)
                continue
            counted += 1
            key, denied, amounts = found
            table = refused if denied else passed
            entry = table.get(key)
            if entry is None:
                table[key] = [1, *[amount or 0 for amount in amounts]]
                continue
            entry[0] += 1
            if amounts:
                add(entry, amounts, largest)
        self.seen += seen
        self.counted += counted
        self.last_ms = kafka_ms

    def reject(self, offset: int, reason: Reason, value: bytes | None) -> None:
        if reason == "past":
            self.late += 1
        else:
            self.dead += 1
        self.rejected.append(Rejected(self.part, offset, reason, (value or b"")[: self.sample_bytes]))

    @property
    def progress(self) -> Progress:
        return Progress(
            self.part, self.start, self.next, self.seen, self.counted, 0, self.dead, self.late,
            self.witness, self.last_ms,
        )  # fmt: skip


def add(entry: Amounts, amounts: Sequence[int | None], largest: Sequence[int]) -> None:
    for place, amount in enumerate(amounts, 1):
        if amount is not None:
            if place in largest:
                entry[place] = max(entry[place], amount)
            else:
                entry[place] += amount


class PythonCounter:
    """The `Counter` protocol. `mapped` says by source how records are read; `groupings` and `meters` what is
    counted. Bounds: `rows_max` keys, `rejected_max` rejected records, then `full()`."""

    def __init__(
        self,
        mapped: Mapping[str, mappings.Mapping],
        groupings: Sequence[str],
        meters: Sequence[Meter] = (REQUESTS,),
        *,
        rows_max: int = ROWS_MAX,
        rejected_max: int = REJECTED_MAX,
    ) -> None:
        self._mapped = mapped
        self._groupings = [(grouping, *_parts(grouping)) for grouping in groupings]
        self._dimensions = sorted(
            {part for _, *parts in self._groupings for part in parts if part} - {"caller"}
        )
        self._meters = [meter for meter in meters if meter.name != REQUESTS.name]
        self._all = [next((m for m in meters if m.name == REQUESTS.name), REQUESTS), *self._meters]
        self._width_s = min(meter.width_s for meter in self._all)
        self._largest = tuple(place for place, meter in enumerate(self._all) if meter.join == "max")
        self._readers: dict[str, Reader] = {}
        self._rows_max = rows_max
        self._rejected_max = rejected_max
        self._tallies: dict[Partition, Tally] = {}

    def feed(self, taken: RecordSet | Records) -> Fed:
        """See `Counter.feed`. Raises ValueError for a set that does not follow what was fed before: the
        offsets between would be counted as done."""
        tally = self._tally(taken.part, taken.start)
        seen, counted = tally.seen, tally.counted
        tally.witness = taken.witness or tally.witness
        refused = None
        if isinstance(taken, Records):
            tally.count(taken.items)
            tally.next = max(tally.next, taken.next)
        else:
            refused = self._count_batches(tally, taken)
        fed = Fed(tally.next, tally.seen - seen, tally.counted - counted)
        return (
            fed
            if refused is None
            else fed._replace(status=refused.status, bad=refused.base, skip_to=refused.next)
        )

    def _count_batches(self, tally: Tally, taken: RecordSet) -> Batch | None:
        bytes_max = self._mapped[taken.part.source].batch_bytes_max
        for batch in batches(taken.raw, taken.start, taken.aborted, bytes_max):
            if batch.status != "ok":
                return batch
            tally.count(batch.frames)
            tally.next = max(tally.next, batch.next)
        return None

    def full(self) -> bool:
        tallies = self._tallies.values()
        return (
            sum(len(tally.passed) + len(tally.denied) for tally in tallies) >= self._rows_max
            or sum(len(tally.rejected) for tally in tallies) >= self._rejected_max
        )

    def forget(self, part: Partition) -> None:
        self._tallies.pop(part, None)

    def drain(self) -> Counted:
        tallies = [tally for _, tally in sorted(self._tallies.items())]
        self._tallies = {}
        return Counted(
            [tally.progress for tally in tallies],
            self._rows(tallies),
            [rejected for tally in tallies for rejected in tally.rejected],
        )

    def _tally(self, part: Partition, start: int) -> Tally:
        tally = self._tallies.get(part)
        if tally is None:
            mapping = self._mapped[part.source]
            if part.source not in self._readers:
                self._readers[part.source] = reader_for(
                    mapping, self._meters, self._dimensions, self._width_s
                )
            read = self._readers[part.source]
            tally = Tally(part, start, start, read, mapping.sample_bytes, self._largest)
            self._tallies[part] = tally
        elif tally.next != start:
            raise ValueError(f"{part}: a set from {start} was fed after {tally.next}")
        return tally

    def _rows(self, tallies: Sequence[Tally]) -> list[Row]:
        """One row for each grouping, meter and series, the partitions added up; none for what is nothing."""
        joined: dict[tuple[str, str, str, str, int, int], list[int]] = {}
        for tally in tallies:
            for place, table in enumerate((tally.passed, tally.denied)):
                for (caller, second, *texts), amounts in table.items():
                    dims = dict(zip(self._dimensions, texts, strict=True)) | {
                        "caller": caller,
                        "": "",
                        "everyone": "",
                    }
                    for grouping, first, rest in self._groupings:
                        for at, (meter, amount) in enumerate(zip(self._all, amounts, strict=True)):
                            if amount:
                                bucket_s = bucket_start_s(second, meter.width_s)
                                series = (
                                    grouping,
                                    dims[first],
                                    dims[rest],
                                    meter.name,
                                    meter.width_s,
                                    bucket_s,
                                )
                                both = joined.setdefault(series, [0, 0])
                                both[place] = (
                                    max(both[place], amount) if at in self._largest else both[place] + amount
                                )
        return sorted(Row(*series, value, denied) for series, (value, denied) in joined.items())


def _parts(grouping: str) -> tuple[str, str]:
    first, _, rest = grouping.partition("+")
    return first, rest
