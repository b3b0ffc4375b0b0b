"""Outcomes of the requests of a resource: how many failed, and the distribution of their durations.

The sentence about a noisy neighbour has the errors and durations of all others. So requests are counted by
the class of their duration. Classes are those of an HDR histogram: eight to each power of two of
microseconds, so that the middle of a class is at most 6 % off. Further outcomes are the number of errors,
and the sum of the durations for an exact mean.

Outcomes are counted for the whole, and once more for each series that had a twentieth of the whole's requests
or of their time since the last drain: they are few, however many callers there are. What a series has in
drains in which it had less is not known, and belongs to the others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import compress
from typing import NamedTuple

from analyzer.counting.counter.aggregate import Aggregate, CompiledOutcomes, CountLayout
from analyzer.counting.records.reader import RequestColumns
from analyzer.kernel.model import CountTable
from analyzer.plan.meters import OUTCOMES

SERIES_END = "\x1f"  # behind the name of a series, which has no control characters; the whole has no name
ERRORS = "e"  # in place of a class: requests that failed
TIME = "us"  # in place of a class: microseconds of all requests that have a duration
UNTIMED = -1  # class of requests without a duration
CLASS_BITS = 3
HEAVY = 20  # a series with at least this part of the whole is counted separately

OutcomeKey = tuple[int, str, str]  # number of the slot since 1970, whole, key of the series


class Outcomes:
    """The outcomes of one partition's admitted requests since the last drain, by cells of its aggregate."""

    def __init__(self, layout: CountLayout) -> None:
        self._layouts = layout.outcomes
        self.classes: Counter[tuple[int, int]] = Counter()  # by cell and class
        self.errors: Counter[int] = Counter()
        self.times_us: Counter[int] = Counter()

    def __len__(self) -> int:
        """The number of values in memory."""
        return len(self.classes)

    def add(self, cells: Sequence[int], requests: RequestColumns) -> None:
        """Adds requests with their cells; denied ones are left out."""
        if not self._layouts:
            return
        if True in requests.denied:
            admitted = [not is_denied for is_denied in requests.denied]
            cells, requests = list(compress(cells, admitted)), requests.only(admitted)
        durations = requests.numbers[self._layouts[0].duration] or [0] * len(cells)
        classes = duration_classes(durations)
        errors = requests.conditions[self._layouts[0].error]
        if requests.weights:
            for cell, class_, weight in zip(cells, classes, requests.weights, strict=True):
                self.classes[cell, class_] += weight
            for cell, weight in compress(zip(cells, requests.weights, strict=True), errors):
                self.errors[cell] += weight
        else:
            self.classes.update(zip(cells, classes, strict=True))
            self.errors.update(compress(cells, errors))
        times_us = self.times_us
        for cell, duration in zip(cells, durations, strict=True):
            times_us[cell] += duration

    def cell_requests(self, cells: int) -> Sequence[int]:
        """Returns the requests of each cell, up to a number of them."""
        requests = [0] * cells
        for (cell, _), value in self.classes.items():
            requests[cell] += value
        return requests

    def cell_times_us(self, cells: int) -> Sequence[int]:
        """Returns the microseconds of each cell, up to a number of them."""
        times_us = [0] * cells
        for cell, value in self.times_us.items():
            times_us[cell] = value
        return times_us


def duration_classes(durations_us: Sequence[int]) -> list[int]:
    """Returns the class of each duration; UNTIMED for one that is not known, or nothing.

    >>> duration_classes([0, 7, 15, 16, 1000, 1023, 1024])
    [-1, 7, 15, 16, 63, 63, 64]
    """
    exact, bits = 2 << CLASS_BITS, CLASS_BITS + 1
    return [
        (((shift := us.bit_length() - bits) << CLASS_BITS) + (us >> shift) if us >= exact else us)
        if us > 0
        else UNTIMED
        for us in durations_us
    ]


def middle_us(number: int) -> float:
    """Returns the middle of a class of durations.

    >>> middle_us(63), middle_us(*duration_classes([250_000])) / 250_000 - 1 < 0.0625
    (992.0, True)
    """
    shift = (number >> CLASS_BITS) - 1
    if shift <= 0:
        return float(number)
    least = number - (shift << CLASS_BITS)
    return (least + 0.5) * (1 << shift)


def outcome_tables(layout: CountLayout, partitions: Sequence[tuple[Aggregate, Outcomes]]) -> list[CountTable]:
    """Returns one table per layout, over all partitions; none without an entry."""
    tables = []
    for compiled in layout.outcomes:
        rows = sorted(_rows(compiled, layout.bucket_s, partitions).items())
        if rows:
            width_s = compiled.layout.width_s
            tables.append(
                CountTable(
                    compiled.layout.grouping,
                    width_s,
                    [OUTCOMES],
                    [slot * width_s for (slot, _, _), _ in rows],
                    [whole for (_, whole, _), _ in rows],
                    [outcome for (_, _, outcome), _ in rows],
                    [[value for _, value in rows]],
                    (),
                )
            )
    return tables


class _CellParts(NamedTuple):
    """The number of the whole, and the key of the series, of each cell of a partition."""

    wholes: list[int]
    keys: list[str]


def _rows(
    compiled: CompiledOutcomes, bucket_s: int, partitions: Sequence[tuple[Aggregate, Outcomes]]
) -> dict[OutcomeKey, int]:
    """Returns the values by slot, whole, and outcome with the name of its series in front.

    Cell by cell, in loops over columns: a flush may have ten thousand series, and few of them are heavy.
    """
    numbers: dict[tuple[int, str], int] = {}  # of each slot and whole
    placed = [_cell_parts(compiled, bucket_s, aggregate, numbers) for aggregate, _ in partitions]
    heavy = _heavy(placed, [outcomes for _, outcomes in partitions])
    sums: defaultdict[tuple[int, str], defaultdict[int | str, int]] = defaultdict(lambda: defaultdict(int))
    for parts, (_, outcomes) in zip(placed, partitions, strict=True):
        of_whole = [sums[whole, ""] for whole in parts.wholes]
        of_heavy = {
            cell: sums[series]
            for cell, series in enumerate(zip(*parts, strict=True))
            if series in heavy and series[1]
        }
        for (cell, class_), value in outcomes.classes.items():
            of_whole[cell][class_] += value
            if cell in of_heavy:
                of_heavy[cell][class_] += value
        for name, values in ((ERRORS, outcomes.errors), (TIME, outcomes.times_us)):
            for cell, value in values.items():
                of_whole[cell][name] += value
                if cell in of_heavy:
                    of_heavy[cell][name] += value
    places = list(numbers)
    return {
        (*places[whole], f"{key}{SERIES_END}{outcome}"): value
        for (whole, key), by_outcome in sums.items()
        for outcome, value in by_outcome.items()
        if value
    }


def _cell_parts(
    compiled: CompiledOutcomes, bucket_s: int, aggregate: Aggregate, numbers: dict[tuple[int, str], int]
) -> _CellParts:
    """Returns the parts of each cell; `numbers` gets those of wholes that are new."""
    size = len(aggregate.meters[0].admitted)
    parts = _CellParts([0] * size, [""] * size)
    for number, cells in aggregate.buckets.items():
        slot = number * bucket_s // compiled.layout.width_s
        keys, wholes = compiled.parts.split_names(compiled.parts.names(cells))
        number_of = {whole: numbers.setdefault((slot, whole), len(numbers)) for whole in {*wholes}}
        for cell, key, whole in zip(cells.values(), keys, wholes, strict=True):
            parts.wholes[cell] = number_of[whole]
            parts.keys[cell] = key
    return parts


def _heavy(placed: Sequence[_CellParts], counted: Sequence[Outcomes]) -> set[tuple[int, str]]:
    """Returns the series, by whole and key, with a large part of the requests or of the time of a whole."""
    heavy: set[tuple[int, str]] = set()
    for column_of in (Outcomes.cell_requests, Outcomes.cell_times_us):
        of_series: defaultdict[tuple[int, str], int] = defaultdict(int)
        of_whole: defaultdict[int, int] = defaultdict(int)
        for (wholes, keys), outcomes in zip(placed, counted, strict=True):
            for whole, key, value in zip(wholes, keys, column_of(outcomes, len(keys)), strict=True):
                of_whole[whole] += value
                of_series[whole, key] += value
        heavy |= {series for series, value in of_series.items() if value * HEAVY >= of_whole[series[0]] > 0}
    return heavy
