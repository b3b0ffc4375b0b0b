"""Where what was counted of one partition stands until it is drained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, repeat
from typing import Any, NamedTuple

from analyzer.core.counting.meters import REQUESTS, Meter
from analyzer.core.model import CountRow
from analyzer.core.records.reader import Projection, RequestColumns

BucketSeries = tuple[str, str, int]  # key, resource, number of the bucket since 1970
TimeSpan = tuple[int, int]


class CompiledGrouping(NamedTuple):
    """A grouping by name, and which dimensions its one or two parts are; None: always ""."""

    name: str
    key: int | None
    resource: int | None
    dimensions: int  # how many there are

    def series(self, table: BucketTable) -> Iterator[tuple[BucketSeries, int]]:
        """The series and the slot of each key; where a grouping leaves a dimension out, a series has many."""
        for number, bucket in table.items():
            nothing = repeat("")
            columns = [bucket.keys()] if self.dimensions == 1 else list(zip(*bucket, strict=True))
            keys = nothing if self.key is None else columns[self.key]
            resources = nothing if self.resource is None else columns[self.resource]
            yield from zip(zip(keys, resources, repeat(number)), bucket.values(), strict=False)


class CountLayout:
    """What is counted for whom: groupings and meters, brought into the form that the loops need."""

    def __init__(self, groupings: Sequence[str], meters: Sequence[Meter]) -> None:
        """The meter `requests` is always there."""
        by_name = {REQUESTS.name: REQUESTS} | {meter.name: meter for meter in meters}
        self.meters = tuple(by_name.values())
        parts = {grouping: grouping.partition("+")[::2] for grouping in groupings}
        dimensions = sorted({part for each in parts.values() for part in each} - {"", "everyone"})
        place = {name: at for at, name in enumerate(dimensions)}
        self.groupings = [
            CompiledGrouping(name, place.get(key), place.get(rest), len(dimensions))
            for name, (key, rest) in sorted(parts.items())
        ]
        self.asked = Projection(
            dimensions=tuple(dimensions),
            numbers=tuple(dict.fromkeys(meter.field for meter in self.meters if meter.field is not None)),
            conditions=tuple(dict.fromkeys(meter.where for meter in self.meters if meter.where)),
        )
        self.widths_s = sorted({meter.width_s for meter in self.meters})
        self.callers_at = place.get("caller")  # which dimension says who called; None: nobody asks


class MeterValues:
    """One meter's values by slot: of requests that were let through, and of those that a gate had denied."""

    def __init__(self, meter: Meter, asked: Projection) -> None:
        self.meter = meter
        self.passed: list[int] = []
        self.denied: list[int] = []
        self._number = None if meter.field is None else asked.numbers.index(meter.field)
        self._condition = asked.conditions.index(meter.where) if meter.where else None

    def add(self, slots: Sequence[int], sheet: RequestColumns) -> None:
        numbers = None if self._number is None else sheet.numbers[self._number]
        if numbers is not None and not numbers:  # this source does not have it
            return
        denied = sheet.denied
        if self._condition is not None:
            wanted = sheet.conditions[self._condition]
            slots = list(compress(slots, wanted))
            numbers = None if numbers is None else list(compress(numbers, wanted))
            denied = list(compress(denied, wanted))
        if True not in denied:
            self._join(self.passed, slots, numbers)
            return
        for values, chosen in ((self.passed, [not each for each in denied]), (self.denied, denied)):
            self._join(
                values, compress(slots, chosen), None if numbers is None else compress(numbers, chosen)
            )

    def _join(self, values: list[int], slots: Iterable[int], numbers: Iterable[int] | None) -> None:
        if numbers is None:
            for slot in slots:
                values[slot] += 1
        elif self.meter.join == "sum":
            for slot, number in zip(slots, numbers, strict=True):
                values[slot] += number
        else:
            for slot, number in zip(slots, numbers, strict=True):
                if number > values[slot]:
                    values[slot] = number


class SlotTable(dict[Any, int]):
    """The slot of each key in one bucket: of its text, or of several texts as a tuple."""

    def __init__(self, tallies: Sequence[MeterValues]) -> None:
        super().__init__()
        self._tallies = tallies

    def __missing__(self, key: Any) -> int:
        slot = self[key] = len(self._tallies[0].passed)
        for tally in self._tallies:
            tally.passed.append(0)
            tally.denied.append(0)
        return slot


class BucketTable(dict[int, SlotTable]):
    """All meters of one width, by the number of the bucket since 1970. Each key has a slot, the place of its
    values in every tally, so that a request is looked up once, however many meters there are."""

    def __init__(self, width_s: int, counting: CountLayout) -> None:
        super().__init__()
        self.tallies = [
            MeterValues(meter, counting.asked) for meter in counting.meters if meter.width_s == width_s
        ]
        self._width_ms = width_s * 1000

    def __missing__(self, number: int) -> SlotTable:
        bucket = self[number] = SlotTable(self.tallies)
        return bucket

    def add(self, sheet: RequestColumns, span_ms: TimeSpan) -> None:
        width_ms = self._width_ms
        keys: Iterable[Any] = zip(*sheet.dimensions, strict=True)
        if len(sheet.dimensions) < 2:
            keys = sheet.dimensions[0] if sheet.dimensions else repeat((), len(sheet.times_ms))
        first, last = (ms // width_ms for ms in span_ms)
        if first == last:
            slots = list(map(self[first].__getitem__, keys))
        else:
            slots = [self[ms // width_ms][key] for ms, key in zip(sheet.times_ms, keys, strict=True)]
        for tally in self.tallies:
            tally.add(slots, sheet)

    @property
    def size(self) -> int:
        return sum(map(len, self.values())) * len(self.tallies)


class Aggregate:
    """All that was counted of one partition."""

    def __init__(self, counting: CountLayout) -> None:
        self.tables = [BucketTable(width_s, counting) for width_s in counting.widths_s]
        self.callers_at = counting.callers_at

    def add(self, sheet: RequestColumns, span_ms: TimeSpan) -> None:
        """Count requests, some, of which the earliest and the latest were at `span_ms`."""
        for table in self.tables:
            table.add(sheet, span_ms)

    def __len__(self) -> int:
        return sum(table.size for table in self.tables)


def rows_of(counting: CountLayout, every: Sequence[Aggregate]) -> list[CountRow]:
    """One row for each grouping, meter and series, partitions joined; none for what is nothing. Sorted."""
    rows: list[CountRow] = []
    for grouping in counting.groupings:
        # Sorted as plain tuples, which is several times as fast as sorting rows.
        entries: list[tuple[Any, ...]] = []
        for tables in zip(*(each.tables for each in every), strict=True):
            series = [list(grouping.series(table)) for table in tables]
            for at, tally in enumerate(tables[0].tallies):
                joined = _joined(tally.meter, series, [table.tallies[at] for table in tables])
                name, width_s = tally.meter.name, tally.meter.width_s
                entries += [
                    (key, resource, name, width_s, number * width_s, value, denied)
                    for (key, resource, number), (value, denied) in joined.items()
                ]
        entries.sort()
        rows += [CountRow(grouping.name, *entry) for entry in entries]
    return rows


def _joined(
    meter: Meter, series: Sequence[Sequence[tuple[BucketSeries, int]]], tallies: Sequence[MeterValues]
) -> dict[BucketSeries, tuple[int, int]]:
    """What is not nothing: passed and denied of each series, over all partitions."""
    totals: dict[BucketSeries, tuple[int, int]] = {}
    for slots, tally in zip(series, tallies, strict=True):
        passed, denied = tally.passed, tally.denied
        for one, slot in slots:
            value, refused = passed[slot], denied[slot]
            known = totals.get(one)
            if known is None:
                if value or refused:
                    totals[one] = value, refused
            elif meter.join == "sum":
                totals[one] = known[0] + value, known[1] + refused
            else:
                totals[one] = max(known[0], value), max(known[1], refused)
    return totals
