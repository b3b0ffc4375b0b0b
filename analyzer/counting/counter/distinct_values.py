"""Distinct values of a field for each series: the values themselves, as digests, each once.

The number of distinct values in a window cannot be joined from the numbers in parts of it. So the values are
drained, and the store can count those that it does not have yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress, repeat

from analyzer.counting.counter.aggregate import CompiledDistinct, CountLayout
from analyzer.counting.records.reader import RequestColumns
from analyzer.kernel.model import DistinctTable
from analyzer.plan.value_rules import NO_VALUE

Entry = tuple[int, str, str, int | str]  # number of the slot since 1970, key, resource, value


class DistinctValues:
    """The values of the admitted requests of one partition since the last drain."""

    def __init__(self, layout: CountLayout) -> None:
        self._layouts = layout.distinct
        self.entries: list[set[Entry]] = [set() for _ in layout.distinct]

    def __len__(self) -> int:
        """The number of values in memory."""
        return sum(map(len, self.entries))

    def add(self, requests: RequestColumns) -> None:
        """Adds the values of requests; denied ones are left out."""
        for compiled, entries in zip(self._layouts, self.entries, strict=True):
            if values := requests.distinct[compiled.field]:
                entries.update(_distinct_entries(compiled, requests, values))


def _distinct_entries(
    compiled: CompiledDistinct, requests: RequestColumns, values: Sequence[int | str]
) -> Iterable[Entry]:
    width_ms, grouping = compiled.layout.width_s * 1000, compiled.grouping
    keys, resources = (
        repeat("") if part is None else requests.dimensions[part]
        for part in (grouping.key, grouping.resource)
    )
    slots = [ms // width_ms for ms in requests.times_ms]
    entries: Iterable[Entry] = zip(slots, keys, resources, values, strict=False)  # `repeat` has no end
    masks: list[Sequence[bool]] = []
    if compiled.condition is not None:
        masks.append(requests.conditions[compiled.condition])
    if True in requests.denied:
        masks.append([not is_denied for is_denied in requests.denied])
    if NO_VALUE in values:
        masks.append([value != NO_VALUE for value in values])
    return compress(entries, map(all, zip(*masks, strict=True))) if masks else entries


def distinct_value_tables(layout: CountLayout, partitions: Sequence[DistinctValues]) -> list[DistinctTable]:
    """Returns one table per layout, over all partitions; none without an entry."""
    tables = []
    for position, compiled in enumerate(layout.distinct):
        entries = sorted(set[Entry]().union(*(partition.entries[position] for partition in partitions)))
        if entries:
            numbers, keys, resources, values = zip(*entries, strict=True)
            grouping, width_s, meter = compiled.layout
            starts_s = tuple(number * width_s for number in numbers)
            tables.append(DistinctTable(grouping, meter, width_s, starts_s, keys, resources, values))
    return tables
