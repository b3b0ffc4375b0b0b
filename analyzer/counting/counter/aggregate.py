"""Hash aggregation: what was counted of one partition, from columns of requests to tables.

A cell stands for one combination of the dimensions (caller, resource, ...) in one bucket. Every meter has its
value for cell n at index n of a list, so that a request is looked up once, however many meters there are:

    bucket 27  ("user:ann", "/a") -> cell 0     requests.admitted  [12, 3, ...]
               ("user:bob", "/a") -> cell 1     bytes.admitted     [9041, 77, ...]

Groupings share the cells; a grouping that leaves a dimension out joins several cells when tables are made
(`count_tables`). A bucket is a minute; with slots, it has the greatest width of which
the minute and each slot are multiples.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import compress, count, repeat
from math import gcd
from typing import Any, NamedTuple

from analyzer.counting.records.reader import Projection, RequestColumns
from analyzer.kernel.model import DistinctLayout, Series, SlotLayout
from analyzer.plan.groupings import (
    BY_ADDRESS,
    BY_OUTCOME,
    CALLER,
    RESOURCE,
    Dimension,
    Grouping,
    parse_grouping,
)
from analyzer.plan.mapping import DURATION, Condition
from analyzer.plan.meters import (
    BUCKET_S,
    DUPLICATES,
    UNRECORDED,
    Meter,
    in_buckets,
    with_requests,
)

TimeSpan = tuple[int, int]
ERRORS: tuple[Condition, ...] = (Condition("status", ("500-599",)),)


class CompiledGrouping(NamedTuple):
    """A grouping with the indexes of its parts among the dimensions; None: the part is always ""."""

    grouping: Grouping
    key: int | None
    resource: int | None
    dimension_count: int

    def names(self, cells: CellTable) -> Sequence[Any]:
        """Returns the series of each cell of a bucket: a text, or key and resource.

        A series comes several times where the grouping leaves a dimension out.
        """
        if self.key is None and self.resource is None:
            return [""] * len(cells)
        columns = [tuple(cells)] if self.dimension_count == 1 else list(zip(*cells, strict=True))
        parts = [columns[part] for part in (self.key, self.resource) if part is not None]
        return parts[0] if len(parts) == 1 else list(zip(*parts, strict=True))

    def request_series(self, dimensions: Sequence[str]) -> Series:
        """Returns the series of one request."""
        key = "" if self.key is None else dimensions[self.key]
        return Series(self.grouping.name, key, "" if self.resource is None else dimensions[self.resource])

    def split_names(self, names: Sequence[Any]) -> tuple[Sequence[str], Sequence[str]]:
        """Returns keys and resources of series as `names` returns them."""
        if self.key is not None and self.resource is not None:
            return [key for key, _ in names], [resource for _, resource in names]
        empty = [""] * len(names)
        return (names, empty) if self.resource is None else (empty, names)


class CompiledSlots(NamedTuple):
    """A `SlotLayout` with the indexes of its meters."""

    width_s: int
    meters: tuple[int, ...]


class CompiledDistinct(NamedTuple):
    """A `DistinctLayout` with its grouping, and the indexes of its field and its condition."""

    layout: DistinctLayout
    grouping: CompiledGrouping
    field: int
    condition: int | None


class CompiledOutcomes(NamedTuple):
    """A `SlotLayout` of the outcomes of requests: its series, and the indexes of duration and error."""

    layout: SlotLayout
    parts: CompiledGrouping
    duration: int
    error: int


class CountLayout:
    """Groupings, meters and slots, compiled to the indexes that the loops use."""

    def __init__(
        self,
        groupings: Sequence[Grouping],
        meters: Sequence[Meter],
        slots: Sequence[SlotLayout] = (),
        distinct: Sequence[DistinctLayout] = (),
        *,
        built_in: Sequence[Meter] = (),
    ) -> None:
        """Groupings by a named value have its field: see `with_value_fields`.

        The meter `requests` is always there, and those of `built_in_meters` behind all others. Groupings of
        addresses by network are counted where slots ask for them, and in no minutes.
        Raises ValueError for slots of what is not counted.
        """
        self.meters = tuple(in_buckets(with_requests(meters), built_in))
        of_values = {meter.name: meter for meter in meters if not meter.joined.in_buckets and meter.field}
        if unknown := {layout.meter for layout in distinct} - of_values.keys():
            raise ValueError(f"{', '.join(sorted(unknown))}: no meter of distinct values that is counted")
        read = [*self.meters, *(of_values[layout.meter] for layout in sorted(distinct))]
        outcomes = sorted(slot for slot in slots if slot.grouping.endswith(BY_OUTCOME))
        slots = [slot for slot in slots if not slot.grouping.endswith(BY_OUTCOME)]
        self.in_minutes = frozenset(grouping.name for grouping in groupings)
        by_slots = {slot.grouping for slot in slots if slot.grouping.endswith(BY_ADDRESS)}
        groupings = [*groupings, *map(parse_grouping, by_slots)]
        dimensions = sorted(
            {dimension for grouping in groupings for dimension in grouping.dimensions},
            key=lambda dimension: (dimension.field, dimension.network or ()),
        )
        index = {dimension: position for position, dimension in enumerate(dimensions)}
        self.groupings = [
            CompiledGrouping(
                grouping,
                None if grouping.key is None else index[grouping.key],
                None if grouping.resource is None else index[grouping.resource],
                len(dimensions),
            )
            for grouping in sorted(groupings, key=lambda grouping: grouping.name)
        ]
        self.projection = self._projection(dimensions, read, has_outcomes=bool(outcomes))
        self.caller_index = index.get(CALLER)  # index of the caller's column; None: no grouping uses it
        self.resource_index = index.get(RESOURCE)
        self.value_indexes = {part.value: position for part, position in index.items() if part.value}
        self.bucket_s = gcd(BUCKET_S, *(slot.width_s for slot in (*slots, *outcomes)))
        self.slots = self._compiled_slots(slots)
        self.distinct = [
            self._compiled_distinct(layout, of_values[layout.meter]) for layout in sorted(distinct)
        ]

        self.outcomes = [self._compiled_outcomes(layout) for layout in outcomes]

    def _projection(
        self, dimensions: Sequence[Dimension], read: Sequence[Meter], *, has_outcomes: bool
    ) -> Projection:
        """Returns the fields that are read of each request; `read` are all meters."""
        numbers = [meter.field for meter in self.meters if meter.field is not None]
        conditions = [meter.where for meter in read if meter.where]
        if has_outcomes:
            numbers.append(DURATION)
            conditions.append(ERRORS)
        return Projection(
            dimensions=tuple(dimensions),
            numbers=tuple(dict.fromkeys(numbers)),
            conditions=tuple(dict.fromkeys(conditions)),
            distinct=tuple(
                dict.fromkeys(meter.field for meter in read if not meter.joined.in_buckets and meter.field)
            ),
        )

    def _compiled_outcomes(self, layout: SlotLayout) -> CompiledOutcomes:
        name = layout.grouping.removesuffix(BY_OUTCOME)
        parts = next((compiled for compiled in self.groupings if compiled.grouping.name == name), None)
        if parts is None or layout.width_s < 1:
            raise ValueError(f"{layout} is of a grouping or a width that is not counted")
        projection = self.projection
        return CompiledOutcomes(
            layout, parts, projection.numbers.index(DURATION), projection.conditions.index(ERRORS)
        )

    def _compiled_slots(self, slots: Sequence[SlotLayout]) -> dict[str, list[CompiledSlots]]:
        """Returns the slots by grouping, narrow ones first."""
        meters = [meter.name for meter in self.meters]
        slots_by_grouping: dict[str, list[CompiledSlots]] = {
            compiled.grouping.name: [] for compiled in self.groupings
        }
        for slot in sorted(slots):
            if (
                slot.grouping not in slots_by_grouping
                or not set(slot.meters) <= set(meters)
                or slot.width_s < 1
            ):
                raise ValueError(f"{slot} is of a grouping, a meter or a width that is not counted")
            slots_by_grouping[slot.grouping].append(
                CompiledSlots(slot.width_s, tuple(map(meters.index, slot.meters)))
            )
        return slots_by_grouping

    def _compiled_distinct(self, layout: DistinctLayout, meter: Meter) -> CompiledDistinct:
        grouping = next(
            (compiled for compiled in self.groupings if compiled.grouping.name == layout.grouping), None
        )
        if grouping is None or meter.field is None or layout.width_s < 1:
            raise ValueError(f"{layout} is of a grouping or a width that is not counted")
        field = self.projection.distinct.index(meter.field)
        return CompiledDistinct(layout, grouping, field, self._condition(meter.where))

    def _condition(self, where: tuple[Condition, ...]) -> int | None:
        return self.projection.conditions.index(where) if where else None


class MeterValues:
    """One meter's values by cell: of requests that were admitted, and of those that a gate had denied."""

    def __init__(self, meter: Meter, projection: Projection) -> None:
        self.meter = meter
        self.admitted: list[int] = []
        self.denied: list[int] = []
        self._add_column = meter.joined.add_column
        self._number = None if meter.field is None else projection.numbers.index(meter.field)
        self._condition = projection.conditions.index(meter.where) if meter.where else None
        self._is_unrecorded, self._is_duplicates = meter == UNRECORDED, meter == DUPLICATES

    def add(self, cells: Sequence[int], requests: RequestColumns) -> None:
        numbers = self._addends(requests)
        if numbers is not None and not numbers:
            return
        denied = requests.denied
        if self._condition is not None:
            mask = requests.conditions[self._condition]
            cells = list(compress(cells, mask))
            numbers = None if numbers is None else list(compress(numbers, mask))
            denied = list(compress(denied, mask))
        if True not in denied:
            self._add(self.admitted, cells, numbers)
            return
        admitted = [not is_denied for is_denied in denied]
        self._add(self.admitted, *_selected(admitted, cells, numbers))
        self._add(self.denied, *_selected(denied, cells, numbers))

    def _addends(self, requests: RequestColumns) -> Sequence[int] | None:
        """Returns what each record adds; None: 1; empty: this source or record adds nothing."""
        if self._is_duplicates:
            return []  # see `Aggregate.add_duplicates`
        if self._number is not None:
            return requests.numbers[self._number]
        if self._is_unrecorded:
            return [weight - 1 for weight in requests.weights]
        return requests.weights or None

    def _add(self, values: list[int], cells: Iterable[int], numbers: Iterable[int] | None) -> None:
        if numbers is not None:
            self._add_column(values, cells, numbers)
            return
        for cell in cells:
            values[cell] += 1


def _selected(
    mask: Sequence[bool], cells: Sequence[int], numbers: Sequence[int] | None
) -> tuple[Iterable[int], Iterable[int] | None]:
    return compress(cells, mask), None if numbers is None else compress(numbers, mask)


class CellTable(defaultdict[Any, int]):
    """The cell of each key in one bucket; a key is one text, or a tuple of several."""


class BucketTable(dict[int, CellTable]):
    """The cells of each bucket, by its number since 1970. Cells of all buckets are numbered together."""

    def __init__(self) -> None:
        super().__init__()
        self._next_cell = count().__next__

    def __missing__(self, number: int) -> CellTable:
        cells = self[number] = CellTable(self._next_cell)
        return cells


class Aggregate:
    """Everything counted of one partition since the last drain."""

    def __init__(self, layout: CountLayout) -> None:
        self.meters = [MeterValues(meter, layout.projection) for meter in layout.meters]
        self.buckets = BucketTable()
        self._bucket_ms = layout.bucket_s * 1000
        self.caller_index = layout.caller_index
        self.resource_index = layout.resource_index
        self.value_indexes = layout.value_indexes

    def add(self, requests: RequestColumns, span_ms: TimeSpan) -> Sequence[int]:
        """Counts requests (at least one), and returns the cell of each.

        `span_ms` is the earliest and the latest of their times.
        """
        cells = self._cells(requests, span_ms)
        for meter in self.meters:
            meter.add(cells, requests)
        return cells

    def add_duplicates(self, requests: RequestColumns) -> None:
        """Counts requests (at least one) in the meter DUPLICATES alone."""
        cells = self._cells(requests, (min(requests.times_ms), max(requests.times_ms)))
        of_duplicates = next(meter for meter in self.meters if meter.meter == DUPLICATES)
        for cell in cells:
            of_duplicates.admitted[cell] += 1

    def _cells(self, requests: RequestColumns, span_ms: TimeSpan) -> Sequence[int]:
        """Returns the cell of each request."""
        buckets, bucket_ms = self.buckets, self._bucket_ms
        keys: Iterable[Any] = zip(*requests.dimensions, strict=True)
        if len(requests.dimensions) < 2:
            keys = requests.dimensions[0] if requests.dimensions else repeat((), len(requests.times_ms))
        first, last = (ms // bucket_ms for ms in span_ms)
        if first == last:
            cells = list(map(buckets[first].__getitem__, keys))
        else:
            pairs = zip(requests.times_ms, keys, strict=True)
            cells = [buckets[ms // bucket_ms][key] for ms, key in pairs]
        self._add_zeros(max(cells) + 1)
        return cells

    def _add_zeros(self, cells: int) -> None:
        """Gives each meter a value for each of the first `cells` cells."""
        if (added := cells - len(self.meters[0].admitted)) > 0:
            zeros = [0] * added
            for meter in self.meters:
                meter.admitted += zeros
                meter.denied += zeros

    def __len__(self) -> int:
        """The number of values in memory."""
        return sum(map(len, self.buckets.values())) * len(self.meters)
