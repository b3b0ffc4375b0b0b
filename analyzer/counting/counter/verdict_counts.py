"""Denied requests by the policy that their records name, and the counts without those not believed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence

from analyzer.counting.counter.aggregate import Aggregate, CountLayout
from analyzer.counting.records.reader import RequestColumns
from analyzer.kernel.model import CountTable, DrainedCounts, Partition, Verdict
from analyzer.plan.groupings import BY_OUTCOME
from analyzer.plan.meters import BUCKET_S, JOINS, MINUTE_S

MINUTE_MS = MINUTE_S * 1000

Row = tuple[int, str, str]  # bucket, key, resource


class VerdictCounts:
    """The denied requests of one partition since the last drain.

    By the dimensions that all requests are counted by, and by policy, caller and minute of the Kafka time.
    """

    def __init__(self, layout: CountLayout) -> None:
        self._layout = layout
        self._aggregate = Aggregate(layout)

    def __len__(self) -> int:
        """The number of values in memory."""
        return len(self._aggregate)

    def add(
        self, denied: RequestColumns, policies: list[str], callers: list[str], logged_s: Sequence[int]
    ) -> None:
        """Adds denied requests (at least one), with what is known about each of them."""
        # Text, as all dimensions are.
        minutes = [f"{minute_s:020}" for minute_s in logged_s]
        dimensions = [*denied.dimensions, policies, callers, minutes]
        span_ms = min(denied.times_ms), max(denied.times_ms)
        self._aggregate.add(denied._replace(dimensions=dimensions), span_ms)

    def of(self, part: Partition) -> Iterator[Verdict]:
        """Yields what was added, sorted."""
        for number, cells in sorted(self._aggregate.buckets.items()):
            for (*dimensions, policy, caller, minute), cell in sorted(cells.items()):
                slot_s = number * self._layout.bucket_s
                yield Verdict(
                    part,
                    policy,
                    caller,
                    int(minute),
                    slot_s - slot_s % BUCKET_S,
                    slot_s,
                    tuple(compiled.request_series(dimensions) for compiled in self._layout.groupings),
                    tuple(meter.denied[cell] for meter in self._aggregate.meters),
                )


def minutes_s(kafka_ms: Sequence[int | None], times_ms: Sequence[int]) -> list[int]:
    """Returns the minute of each Kafka time, in seconds since 1970, or of the request's time without one.

    >>> minutes_s([61_000, None, -1], [0, 125_000, 1])
    [60, 120, 0]
    """
    record_ms = (own if ms is None or ms < 0 else ms for ms, own in zip(kafka_ms, times_ms, strict=True))
    return [ms // MINUTE_MS * MINUTE_S for ms in record_ms]


def with_admitted(
    counted: DrainedCounts, disbelieved: Collection[int], joins: Mapping[str, str]
) -> DrainedCounts:
    """Returns the counts with the requests of disbelieved verdicts as admitted ones, in minutes and slots.

    Outcomes stay as they are: the log calls these requests denied, so they have none. `disbelieved` has the
    indexes of these among the verdicts, `joins` the join of each meter. Costs what these requests touch, and
    a copy of the columns.
    """
    if not disbelieved:
        return counted
    # The values of a verdict are those of the minutes' columns.
    index_of = {meter: index for index, meter in enumerate(counted.tables[0].meters)}

    def moved(tables: Sequence[CountTable]) -> list[CountTable]:
        return [
            _moved(table, counted.verdicts, disbelieved, [index_of[meter] for meter in table.meters], joins)
            if not table.grouping.endswith(BY_OUTCOME)  # which only requests that a log calls admitted have
            else table
            for table in tables
        ]

    return counted._replace(tables=moved(counted.tables), slots=moved(counted.slots))


def _moved(
    table: CountTable,
    verdicts: Sequence[Verdict],
    disbelieved: Collection[int],
    columns_of: Sequence[int],
    joins: Mapping[str, str],
) -> CountTable:
    """Returns a table with these requests as admitted ones; `columns_of` has its meters among the values."""
    rows = [_row_key(verdict, table) for verdict in verdicts]
    places = {row: _find_row(row, table) for row in {rows[index] for index in disbelieved}}
    admitted, denied = ([list(column) for column in columns] for columns in (table.admitted, table.denied))
    for column in denied:
        for place in places.values():
            column[place] = 0
    merges = [JOINS[joins[meter]].merge for meter in table.meters]
    # The greatest of several values cannot be taken out again: the rows are joined again from all verdicts.
    for index, (row, verdict) in enumerate(zip(rows, verdicts, strict=True)):
        if row in places:
            place = places[row]
            columns = admitted if index in disbelieved else denied
            # Without columns of denied requests there is nothing to add: they are 0 in these meters.
            for column, merge, position in zip(columns, merges, columns_of, strict=False):
                column[place] = merge(column[place], verdict.values[position])
    return table._replace(admitted=admitted, denied=denied if any(map(any, denied)) else ())


def _row_key(verdict: Verdict, table: CountTable) -> Row:
    [series] = [series for series in verdict.series if series.grouping == table.grouping]
    return verdict.slot_s - verdict.slot_s % table.width_s, series.key, series.resource


def _find_row(row: Row, table: CountTable) -> int:
    def row_at(place: int) -> Row:
        return table.buckets_s[place], table.keys[place], table.resources[place]

    return bisect_left(range(len(table.keys)), row, key=row_at)
