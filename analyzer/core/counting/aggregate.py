"""Hash aggregation: what was counted of one partition, from columns of requests to rows.

A slot stands for one combination of the dimensions (caller, resource, ...) in one bucket. Every meter has its
value for slot n at index n of a list, so that a request is looked up once, however many meters there are:

    bucket 27  ("user:ann", "/a") -> slot 0     requests.admitted  [12, 3, ...]
               ("user:bob", "/a") -> slot 1     bytes.admitted     [9041, 77, ...]

Groupings share the slots; a grouping that leaves a dimension out joins several slots when rows are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, repeat
from typing import Any, NamedTuple

from analyzer.core.counting.groupings import Grouping
from analyzer.core.counting.meters import BUCKET_S, JOINS, Meter, with_requests
from analyzer.core.model import CountRow
from analyzer.core.records.reader import CALLER, Projection, RequestColumns

BUCKET_MS = BUCKET_S * 1000

BucketSeries = tuple[str, str, int]  # key, resource, number of the bucket since 1970
TimeSpan = tuple[int, int]


class CompiledGrouping(NamedTuple):
    """A grouping with the indexes of its parts among the dimensions; None: the part is always ""."""

    grouping: Grouping
    key: int | None
    resource: int | None
    dimension_count: int

    def series(self, aggregate: Aggregate) -> Iterator[tuple[BucketSeries, int]]:
        """Yields series and slot; a series comes several times where the grouping leaves a dimension out."""
        for number, slots in aggregate.buckets.items():
            empty = repeat("")
            columns = [slots.keys()] if self.dimension_count == 1 else list(zip(*slots, strict=True))
            keys = empty if self.key is None else columns[self.key]
            resources = empty if self.resource is None else columns[self.resource]
            yield from zip(zip(keys, resources, repeat(number)), slots.values(), strict=False)


class CountLayout:
    """Groupings and meters, compiled to the indexes that the loops use."""

    def __init__(self, groupings: Sequence[Grouping], meters: Sequence[Meter]) -> None:
        """The meter `requests` is always there."""
        self.meters = tuple(with_requests(meters))
        dimensions = sorted(
            {dimension for grouping in groupings for dimension in grouping.dimensions},
            key=lambda dimension: (dimension.field, dimension.network or ()),
        )
        index = {dimension: at for at, dimension in enumerate(dimensions)}
        self.groupings = [
            CompiledGrouping(
                grouping,
                None if grouping.key is None else index[grouping.key],
                None if grouping.resource is None else index[grouping.resource],
                len(dimensions),
            )
            for grouping in sorted(groupings, key=lambda grouping: grouping.name)
        ]
        self.projection = Projection(
            dimensions=tuple(dimensions),
            numbers=tuple(dict.fromkeys(meter.field for meter in self.meters if meter.field is not None)),
            conditions=tuple(dict.fromkeys(meter.where for meter in self.meters if meter.where)),
        )
        self.caller_index = index.get(CALLER)  # index of the caller's column; None: no grouping uses it


class MeterValues:
    """One meter's values by slot: of requests that were admitted, and of those that a gate had denied."""

    def __init__(self, meter: Meter, projection: Projection) -> None:
        self.meter = meter
        self.admitted: list[int] = []
        self.denied: list[int] = []
        self._add_column = JOINS[meter.join].add_column
        self._number = None if meter.field is None else projection.numbers.index(meter.field)
        self._condition = projection.conditions.index(meter.where) if meter.where else None

    def add(self, slots: Sequence[int], requests: RequestColumns) -> None:
        numbers = None if self._number is None else requests.numbers[self._number]
        if numbers is not None and not numbers:  # this source does not have it
            return
        denied = requests.denied
        if self._condition is not None:
            wanted = requests.conditions[self._condition]
            slots = list(compress(slots, wanted))
            numbers = None if numbers is None else list(compress(numbers, wanted))
            denied = list(compress(denied, wanted))
        if True not in denied:
            self._add(self.admitted, slots, numbers)
            return
        admitted = [not is_denied for is_denied in denied]
        self._add(self.admitted, *_selected(admitted, slots, numbers))
        self._add(self.denied, *_selected(denied, slots, numbers))

    def _add(self, values: list[int], slots: Iterable[int], numbers: Iterable[int] | None) -> None:
        if numbers is not None:
            self._add_column(values, slots, numbers)
            return
        for slot in slots:
            values[slot] += 1


def _selected(
    wanted: Sequence[bool], slots: Sequence[int], numbers: Sequence[int] | None
) -> tuple[Iterable[int], Iterable[int] | None]:
    return compress(slots, wanted), None if numbers is None else compress(numbers, wanted)


class SlotTable(dict[Any, int]):
    """The slot of each key in one bucket; a key is one text, or a tuple of several."""

    def __init__(self, meters: Sequence[MeterValues]) -> None:
        super().__init__()
        self._meters = meters

    def __missing__(self, key: Any) -> int:
        slot = self[key] = len(self._meters[0].admitted)
        for meter in self._meters:
            meter.admitted.append(0)
            meter.denied.append(0)
        return slot


class BucketTable(dict[int, SlotTable]):
    """The slots of each bucket, by its number since 1970."""

    def __init__(self, meters: Sequence[MeterValues]) -> None:
        super().__init__()
        self._meters = meters

    def __missing__(self, number: int) -> SlotTable:
        slots = self[number] = SlotTable(self._meters)
        return slots


class Aggregate:
    """Everything counted of one partition since the last drain."""

    def __init__(self, layout: CountLayout) -> None:
        self.meters = [MeterValues(meter, layout.projection) for meter in layout.meters]
        self.buckets = BucketTable(self.meters)
        self.caller_index = layout.caller_index

    def add(self, requests: RequestColumns, span_ms: TimeSpan) -> None:
        """Counts requests (at least one); `span_ms` is the earliest and the latest of their times."""
        buckets = self.buckets
        keys: Iterable[Any] = zip(*requests.dimensions, strict=True)
        if len(requests.dimensions) < 2:
            keys = requests.dimensions[0] if requests.dimensions else repeat((), len(requests.times_ms))
        first, last = (ms // BUCKET_MS for ms in span_ms)
        if first == last:
            slots = list(map(buckets[first].__getitem__, keys))
        else:
            slots = [buckets[ms // BUCKET_MS][key] for ms, key in zip(requests.times_ms, keys, strict=True)]
        for meter in self.meters:
            meter.add(slots, requests)

    def __len__(self) -> int:
        """The number of values in memory."""
        return sum(map(len, self.buckets.values())) * len(self.meters)


def rows_of(layout: CountLayout, aggregates: Sequence[Aggregate]) -> list[CountRow]:
    """Returns one row per grouping, series, meter and bucket, sorted, over all partitions.

    A row is left out where both of its values are 0.
    """
    rows: list[CountRow] = []
    for compiled in layout.groupings:
        # Plain tuples are sorted several times as fast as rows.
        entries: list[tuple[Any, ...]] = []
        series = [list(compiled.series(aggregate)) for aggregate in aggregates]
        for at, meter in enumerate(layout.meters):
            totals = _joined(meter, series, [aggregate.meters[at] for aggregate in aggregates])
            entries += [
                (key, resource, meter.name, BUCKET_S, number * BUCKET_S, value, denied)
                for (key, resource, number), (value, denied) in totals.items()
            ]
        entries.sort()
        rows += [CountRow(compiled.grouping.name, *entry) for entry in entries]
    return rows


def _joined(
    meter: Meter, series: Sequence[Sequence[tuple[BucketSeries, int]]], values: Sequence[MeterValues]
) -> dict[BucketSeries, tuple[int, int]]:
    """Returns the admitted and denied value of each series over all partitions, where one is not 0."""
    merge = JOINS[meter.join].merge
    totals: dict[BucketSeries, tuple[int, int]] = {}
    for slots, column in zip(series, values, strict=True):
        admitted, denied = column.admitted, column.denied
        for key, slot in slots:
            value, refused = admitted[slot], denied[slot]
            before = totals.get(key)
            if before is not None:
                totals[key] = merge(before[0], value), merge(before[1], refused)
            elif value or refused:
                totals[key] = value, refused
    return totals
