"""Tables of what was counted: the cells of all partitions, joined to the rows of each grouping.

A table has the minutes of a grouping, or its slots of one width. Both are joined from the same buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, groupby
from typing import Any, NamedTuple

from analyzer.counting.counter.aggregate import Aggregate, CompiledGrouping, CountLayout
from analyzer.kernel.model import CountTable
from analyzer.plan.meters import BUCKET_S, JOINS

AddColumn = Callable[[list[int], Iterable[int], Iterable[int]], None]


class CountTables(NamedTuple):
    """Tables without rows are left out."""

    minutes: list[CountTable]  # one per grouping, sorted by its name
    slots: list[CountTable]  # one per layout, sorted by grouping and width


def join_tables(layout: CountLayout, aggregates: Sequence[Aggregate]) -> CountTables:
    """Returns the tables of everything that was counted in all partitions."""
    if not any(aggregate.buckets for aggregate in aggregates):
        return CountTables([], [])
    values = [_cell_values(meter, layout, aggregates) for meter in range(len(layout.meters))]
    minutes: list[CountTable] = []
    slots: list[CountTable] = []
    for compiled in layout.groupings:
        joiner = Joiner(compiled, layout, aggregates)
        if compiled.grouping.name in layout.in_minutes:
            minutes.append(joiner.table(BUCKET_S, values))
        slots += [
            joiner.table(slot.width_s, [values[meter] for meter in slot.meters])
            for slot in layout.slots[compiled.grouping.name]
        ]
    return CountTables(minutes, slots)


class CellValues(NamedTuple):
    """The values of a meter for all cells of all partitions."""

    meter: str
    add_column: AddColumn
    admitted: list[int]
    denied: list[int]
    has_denied: bool


def _cell_values(meter: int, layout: CountLayout, aggregates: Sequence[Aggregate]) -> CellValues:
    parts = [aggregate.meters[meter] for aggregate in aggregates]
    admitted = list(chain.from_iterable(values.admitted for values in parts))
    denied = list(chain.from_iterable(values.denied for values in parts))
    described = layout.meters[meter]
    return CellValues(described.name, JOINS[described.join].add_column, admitted, denied, any(denied))


class Placement(NamedTuple):
    """The row of each cell among the rows of one bucket of a table."""

    names: list[Any]  # of the rows, sorted: see `CompiledGrouping.names`
    cells: list[int]
    rows: list[int] | None  # of each of `cells`; None: the row at the same index

    def joined(self, column: Sequence[int], add_column: AddColumn) -> Iterable[int]:
        """Returns the value of each row from the values of all cells."""
        cell_values = map(column.__getitem__, self.cells)
        if self.rows is None:
            return cell_values  # by C loops alone
        values = [0] * len(self.names)
        add_column(values, self.rows, cell_values)
        return values


class Joiner:
    """Makes the tables of one grouping."""

    def __init__(
        self, compiled: CompiledGrouping, layout: CountLayout, aggregates: Sequence[Aggregate]
    ) -> None:
        self._compiled = compiled
        self._bucket_s = layout.bucket_s
        self._aggregates = aggregates
        self._numbers = sorted({number for aggregate in aggregates for number in aggregate.buckets})
        # By the buckets that are joined. A flush of a moment has one bucket: minutes and slots of every width
        # have the same rows.
        self._placements: dict[tuple[int, ...], Placement] = {}
        self._has_slots = bool(layout.slots[compiled.grouping.name])

    def table(self, width_s: int, meters: Sequence[CellValues]) -> CountTable:
        """Returns the values of some meters in buckets of a width."""
        has_denied = any(values.has_denied for values in meters)
        names: list[Any] = []
        buckets_s: list[int] = []
        admitted: list[list[int]] = [[] for _ in meters]
        denied: list[list[int]] = [[] for _ in meters] if has_denied else []
        for start_s, numbers in self._joined_buckets(width_s):
            placement = self._placement(numbers)
            for position, values in enumerate(meters):
                admitted[position].extend(placement.joined(values.admitted, values.add_column))
                if has_denied:
                    denied[position].extend(placement.joined(values.denied, values.add_column))
            names += placement.names
            buckets_s += [start_s] * len(placement.names)
        keys, resources = self._compiled.split_names(names)
        return CountTable(
            self._compiled.grouping.name,
            width_s,
            [values.meter for values in meters],
            buckets_s,
            keys,
            resources,
            admitted,
            denied,
        )

    def _joined_buckets(self, width_s: int) -> Iterable[tuple[int, tuple[int, ...]]]:
        """Yields the start of each bucket of a width, and the numbers of the narrow ones within it."""
        per_bucket = width_s // self._bucket_s
        if per_bucket == 1:
            yield from ((number * width_s, (number,)) for number in self._numbers)
            return
        for wide_number, numbers in groupby(self._numbers, lambda number: number // per_bucket):
            yield wide_number * width_s, tuple(numbers)

    def _placement(self, numbers: tuple[int, ...]) -> Placement:
        if not self._has_slots:
            return self._new_placement(numbers)
        placement = self._placements.get(numbers)
        if placement is None:
            placement = self._placements[numbers] = self._new_placement(numbers)
        return placement

    def _new_placement(self, numbers: Sequence[int]) -> Placement:
        series, cells = self._series_in(numbers)
        places = dict(zip(series, cells, strict=True))
        names = sorted(places)
        if len(names) == len(series):
            return Placement(names, list(map(places.__getitem__, names)), None)
        row_of = {name: row for row, name in enumerate(names)}
        return Placement(names, cells, list(map(row_of.__getitem__, series)))

    def _series_in(self, numbers: Sequence[int]) -> tuple[list[Any], list[int]]:
        """Returns the series in some buckets, and the index of each in the values of all partitions."""
        series: list[Any] = []
        cells: list[int] = []
        first = 0
        for aggregate in self._aggregates:
            for number in numbers:
                table = aggregate.buckets.get(number)
                if table:
                    series += self._compiled.names(table)
                    cells += map(first.__add__, table.values())
            first += len(aggregate.meters[0].admitted)
        return series, cells
