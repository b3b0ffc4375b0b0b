"""Where what was counted of one partition stands until it is drained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, repeat
from operator import itemgetter
from typing import Any, NamedTuple

from analyzer.core.meters import REQUESTS, Meter
from analyzer.core.model import Row
from analyzer.core.records import Asked, Sheet

Key = tuple[Any, ...]  # start of the bucket in seconds, then a text for each dimension
Series = tuple[str, str, int]  # key, resource, start of the bucket


class Grouping(NamedTuple):
    """A grouping by name, and where in a `Key` its one or two parts are; None: always ""."""

    name: str
    key: int | None
    resource: int | None

    def series(self, keys: Iterable[Key]) -> Iterator[Series]:
        at_key, at_resource = self.key, self.resource
        if at_key is not None and at_resource is not None:
            return map(itemgetter(at_key, at_resource, 0), keys)
        if at_key is not None:
            return ((key[at_key], "", key[0]) for key in keys)
        return (("", "", key[0]) for key in keys)


class Counting:
    """What is counted for whom: groupings and meters, brought into the form that the loops need."""

    def __init__(self, groupings: Sequence[str], meters: Sequence[Meter]) -> None:
        """The meter `requests` is always there."""
        by_name = {REQUESTS.name: REQUESTS} | {meter.name: meter for meter in meters}
        self.meters = tuple(by_name.values())
        parts = {grouping: grouping.partition("+")[::2] for grouping in groupings}
        dimensions = sorted({part for each in parts.values() for part in each} - {"", "everyone"})
        place = {name: at for at, name in enumerate(dimensions, 1)}
        self.groupings = [
            Grouping(name, place.get(key), place.get(rest)) for name, (key, rest) in sorted(parts.items())
        ]
        self.asked = Asked(
            dimensions=tuple(dimensions),
            numbers=tuple(dict.fromkeys(meter.field for meter in self.meters if meter.field is not None)),
            conditions=tuple(dict.fromkeys(meter.where for meter in self.meters if meter.where)),
        )
        self.widths_s = sorted({meter.width_s for meter in self.meters})


class Tally:
    """One meter's values by slot: of requests that were let through, and of those that a gate had denied."""

    def __init__(self, meter: Meter, asked: Asked) -> None:
        self.meter = meter
        self.passed: list[int] = []
        self.denied: list[int] = []
        self._number = None if meter.field is None else asked.numbers.index(meter.field)
        self._condition = asked.conditions.index(meter.where) if meter.where else None

    def add(self, slots: Sequence[int], sheet: Sheet) -> None:
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


class Table(dict[Key, int]):
    """All meters of one width. Each key has a slot, the place of its values in every tally, so that a request
    is looked up once, however many meters there are."""

    def __init__(self, width_s: int, counting: Counting) -> None:
        super().__init__()
        self.tallies = [Tally(meter, counting.asked) for meter in counting.meters if meter.width_s == width_s]
        self._width_s = width_s
        self._width_ms = width_s * 1000

    def __missing__(self, key: Key) -> int:
        slot = self[key] = len(self)
        for tally in self.tallies:
            tally.passed.append(0)
            tally.denied.append(0)
        return slot

    def add(self, sheet: Sheet) -> None:
        width_ms, width_s = self._width_ms, self._width_s
        first, last = min(sheet.times_ms) // width_ms, max(sheet.times_ms) // width_ms
        starts: Iterable[int] = repeat(first * width_s, len(sheet.times_ms))
        if first != last:
            starts = [ms // width_ms * width_s for ms in sheet.times_ms]
        slots = list(map(self.__getitem__, zip(starts, *sheet.dimensions, strict=True)))
        for tally in self.tallies:
            tally.add(slots, sheet)


class Tables:
    """All that was counted of one partition."""

    def __init__(self, counting: Counting) -> None:
        self.tables = [Table(width_s, counting) for width_s in counting.widths_s]

    def add(self, sheet: Sheet) -> None:
        if sheet.times_ms:
            for table in self.tables:
                table.add(sheet)

    def __len__(self) -> int:
        return sum(len(table) * len(table.tallies) for table in self.tables)


def rows_of(counting: Counting, every: Sequence[Tables]) -> list[Row]:
    """One row for each grouping, meter and series, partitions joined; none for what is nothing. Sorted."""
    rows: list[Row] = []
    for grouping in counting.groupings:
        # Sorted as plain tuples, which is several times as fast as sorting rows.
        entries: list[tuple[Any, ...]] = []
        for tables in zip(*(each.tables for each in every), strict=True):
            series = [list(grouping.series(table)) for table in tables]
            for at, tally in enumerate(tables[0].tallies):
                entries += _entries(tally.meter, series, [table.tallies[at] for table in tables])
        entries.sort()
        rows += [Row(grouping.name, *entry) for entry in entries]
    return rows


def _entries(
    meter: Meter, series: Sequence[Sequence[Series]], tallies: Sequence[Tally]
) -> Iterator[tuple[Any, ...]]:
    """What follows the grouping's name in a row."""
    passed = _joined(meter, series, [tally.passed for tally in tallies])
    denied = _joined(meter, series, [tally.denied for tally in tallies])
    name, width_s = meter.name, meter.width_s
    for (key, resource, bucket_s), value in passed.items():
        refused = denied.get((key, resource, bucket_s), 0)
        if value or refused:
            yield key, resource, name, width_s, bucket_s, value, refused


def _joined(
    meter: Meter, series: Sequence[Sequence[Series]], values: Sequence[Sequence[int]]
) -> dict[Series, int]:
    totals: dict[Series, int] = {}
    for each_series, each_values in zip(series, values, strict=True):
        for one, value in zip(each_series, each_values, strict=True):
            known = totals.get(one, 0)
            totals[one] = known + value if meter.join == "sum" else max(known, value)
    return totals
