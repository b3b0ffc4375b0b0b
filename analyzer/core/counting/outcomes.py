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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress

from analyzer.core.counting.aggregate import Aggregate, CompiledOutcomes, CountLayout
from analyzer.core.counting.meters import OUTCOMES
from analyzer.core.model import CountTable
from analyzer.core.records.reader import RequestColumns

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
        classes = classes_of(durations)
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

    def by_cell(self) -> Iterator[tuple[int, str, int]]:
        """Yields cells, outcomes and values."""
        for (cell, class_), value in self.classes.items():
            yield cell, str(class_), value
        for outcome, values in ((ERRORS, self.errors), (TIME, self.times_us)):
            for cell, value in values.items():
                if value:
                    yield cell, outcome, value


def classes_of(durations_us: Sequence[int]) -> list[int]:
    """Returns the class of each duration; UNTIMED for one that is not known, or nothing.

    >>> classes_of([0, 7, 15, 16, 1000, 1023, 1024])
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

    >>> middle_us(63), middle_us(*classes_of([250_000])) / 250_000 - 1 < 0.0625
    (992.0, True)
    """
    shift = (number >> CLASS_BITS) - 1
    if shift <= 0:
        return float(number)
    least = number - (shift << CLASS_BITS)
    return (least + 0.5) * (1 << shift)


def outcome_tables_of(
    layout: CountLayout, partitions: Sequence[tuple[Aggregate, Outcomes]]
) -> list[CountTable]:
    """Returns one table per layout, over all partitions; none without an entry."""
    tables = []
    for wanted in layout.outcomes:
        rows = sorted(_rows(_by_series(wanted, layout.bucket_s, partitions)).items())
        if rows:
            width_s = wanted.layout.width_s
            tables.append(
                CountTable(
                    wanted.layout.grouping,
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


def _by_series(
    wanted: CompiledOutcomes, bucket_s: int, partitions: Iterable[tuple[Aggregate, Outcomes]]
) -> Mapping[OutcomeKey, Counter[str]]:
    """Returns the values of each series by their outcome."""
    found: defaultdict[OutcomeKey, Counter[str]] = defaultdict(Counter)
    for aggregate, outcomes in partitions:
        series_of: dict[int, Counter[str]] = {}
        for number, cells in aggregate.buckets.items():
            slot = number * bucket_s // wanted.layout.width_s
            keys, wholes = wanted.parts.parts_of(wanted.parts.names(cells))
            for cell, key, whole in zip(cells.values(), keys, wholes, strict=True):
                series_of[cell] = found[slot, whole, key]
        for cell, outcome, value in outcomes.by_cell():
            series_of[cell][outcome] += value
    return found


def _rows(by_series: Mapping[OutcomeKey, Counter[str]]) -> Counter[OutcomeKey]:
    """Returns the values by slot, whole, and outcome with the name of its series in front."""
    requests: Counter[OutcomeKey] = (
        Counter()
    )  # and times, of each series, and with an empty name of each whole
    times: Counter[OutcomeKey] = Counter()
    for at, outcomes in by_series.items():
        of_series = outcomes.total() - outcomes[ERRORS] - outcomes[TIME]
        for one in (at, (*at[:2], "")) if at[2] else (at,):
            requests[one] += of_series
            times[one] += outcomes[TIME]
    rows: Counter[OutcomeKey] = Counter()
    for (slot, whole, key), outcomes in by_series.items():
        at, all_ = (slot, whole, key), (slot, whole, "")
        is_heavy = any(of[at] * HEAVY >= of[all_] > 0 for of in (requests, times))
        for outcome, value in outcomes.items():
            if value:
                rows[slot, whole, SERIES_END + outcome] += value
                if key and is_heavy:
                    rows[slot, whole, key + SERIES_END + outcome] += value
    return rows
