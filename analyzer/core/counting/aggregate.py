"""Hash aggregation: what was counted of one partition, from columns of requests to tables.

A slot stands for one combination of the dimensions (caller, resource, ...) in one bucket. Every meter has its
value for slot n at index n of a list, so that a request is looked up once, however many meters there are:

    bucket 27  ("user:ann", "/a") -> slot 0     requests.admitted  [12, 3, ...]
               ("user:bob", "/a") -> slot 1     bytes.admitted     [9041, 77, ...]

Groupings share the slots; a grouping that leaves a dimension out joins several slots when tables are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, compress, repeat
from typing import Any, NamedTuple

from analyzer.core.counting.groupings import Grouping
from analyzer.core.counting.meters import BUCKET_S, JOINS, Meter, with_requests
from analyzer.core.model import CountTable, Series
from analyzer.core.records.reader import CALLER, Projection, RequestColumns

BUCKET_MS = BUCKET_S * 1000

TimeSpan = tuple[int, int]


class CompiledGrouping(NamedTuple):
    """A grouping with the indexes of its parts among the dimensions; None: the part is always ""."""

    grouping: Grouping
    key: int | None
    resource: int | None
    dimension_count: int

    def names(self, slots: SlotTable) -> Sequence[Any]:
        """Returns the series of each slot of a bucket: a text, or key and resource.

        A series comes several times where the grouping leaves a dimension out.
        """
        if self.key is None and self.resource is None:
            return [""] * len(slots)
        columns = [tuple(slots)] if self.dimension_count == 1 else list(zip(*slots, strict=True))
        parts = [columns[part] for part in (self.key, self.resource) if part is not None]
        return parts[0] if len(parts) == 1 else list(zip(*parts, strict=True))

    def series_of(self, dimensions: Sequence[str]) -> Series:
        """Returns the series of one request."""
        key = "" if self.key is None else dimensions[self.key]
        return Series(self.grouping.name, key, "" if self.resource is None else dimensions[self.resource])

    def parts_of(self, names: Sequence[Any]) -> tuple[Sequence[str], Sequence[str]]:
        """Returns keys and resources of series as `names` returns them."""
        if self.key is not None and self.resource is not None:
            return [key for key, _ in names], [resource for _, resource in names]
        empty = [""] * len(names)
        return (names, empty) if self.resource is None else (empty, names)


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


def tables_of(layout: CountLayout, aggregates: Sequence[Aggregate]) -> list[CountTable]:
    """Returns one table per grouping, over all partitions; none where nothing was counted."""
    tables = (_table_of(compiled, layout, aggregates) for compiled in layout.groupings)
    return [table for table in tables if table.keys]


def _table_of(compiled: CompiledGrouping, layout: CountLayout, aggregates: Sequence[Aggregate]) -> CountTable:
    columns = [_columns_of(at, aggregates) for at in range(len(layout.meters))]
    has_denied = any(any(denied) for _, denied in columns)
    chosen = [column for pair in columns for column in (pair if has_denied else pair[:1])]
    joins = [JOINS[meter.join].add_column for meter in layout.meters for _ in range(1 + has_denied)]
    names: list[Any] = []
    buckets_s: list[int] = []
    values: list[list[int]] = [[] for _ in chosen]
    for number in sorted({number for aggregate in aggregates for number in aggregate.buckets}):
        series, slots = _series_of(compiled, number, aggregates)
        places = dict(zip(series, slots, strict=True))
        order = sorted(places)
        if len(places) == len(series):
            # Each series has one slot: its values are gathered by C loops.
            wanted = list(map(places.__getitem__, order))
            for found, column in zip(values, chosen, strict=True):
                found.extend(map(column.__getitem__, wanted))
        else:
            place = {name: at for at, name in enumerate(order)}
            targets = list(map(place.__getitem__, series))
            for found, column, add_column in zip(values, chosen, joins, strict=True):
                joined = [0] * len(order)
                add_column(joined, targets, map(column.__getitem__, slots))
                found.extend(joined)
        names += order
        buckets_s += [number * BUCKET_S] * len(order)
    keys, resources = compiled.parts_of(names)
    step = 2 if has_denied else 1
    return CountTable(
        compiled.grouping.name,
        BUCKET_S,
        [meter.name for meter in layout.meters],
        buckets_s,
        keys,
        resources,
        values[::step],
        values[1::2] if has_denied else (),
    )


def _columns_of(meter: int, aggregates: Sequence[Aggregate]) -> tuple[list[int], list[int]]:
    """Returns the values of a meter for all slots of all partitions: of admitted and of denied requests."""
    meters = [aggregate.meters[meter] for aggregate in aggregates]
    return (
        list(chain.from_iterable(values.admitted for values in meters)),
        list(chain.from_iterable(values.denied for values in meters)),
    )


def _series_of(
    compiled: CompiledGrouping, number: int, aggregates: Sequence[Aggregate]
) -> tuple[list[Any], list[int]]:
    """Returns the series in one bucket, and the index of each in the columns of all partitions."""
    series: list[Any] = []
    slots: list[int] = []
    first = 0
    for aggregate in aggregates:
        table = aggregate.buckets.get(number)
        if table:
            series += compiled.names(table)
            slots += map(first.__add__, table.values())
        first += len(aggregate.meters[0].admitted)
    return series, slots
