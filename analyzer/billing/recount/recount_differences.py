"""Compares the frozen rows of a day with what the second counter found, caller by caller."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from analyzer.billing.recount.read_requests import DUPLICATES, REQUESTS
from analyzer.billing.recount.recounted_day import (
    RecountedAmount,
    RecountedAmounts,
    RecountedDay,
    RecountedSeries,
)

NOT_NAMED = ("overflow:", "folded:")  # rows of many callers
NOTHING = RecountedAmount()

Frozen = Mapping[RecountedSeries, Mapping[str, tuple[int, int]]]  # admitted and denied, by meter


class RecountDifference(NamedTuple):
    """An amount of a series that the log does not give.

    Attributes:
        grouping: Of the series.
        name: Of the series; "" where only the sum of all is compared.
        resource: Of the series.
        meter: Whose amounts differ.
        frozen: The amount in the day, admitted.
        frozen_denied: The amount in the day, denied.
        least: The least that the log gives, admitted.
        most: The most.
        least_denied: The least that the log gives, denied.
        most_denied: The most.
        late: The date of an earlier day, of which the amount came late; "" of the day itself.
    """

    grouping: str
    name: str
    resource: str
    meter: str
    frozen: int
    frozen_denied: int
    least: int
    most: int
    least_denied: int
    most_denied: int
    late: str = ""

    def __str__(self) -> str:
        series = " ".join(filter(None, (self.name or "all", self.resource)))
        frozen = _shown(self.frozen, self.frozen_denied)
        least, most = _shown(self.least, self.least_denied), _shown(self.most, self.most_denied)
        log = least if least == most else f"{least} to {most}"
        late = f" late of {self.late}" if self.late else ""
        return f"{series}: {self.meter} by {self.grouping}{late}: {frozen} in the day, {log} in the log"


def differences(
    day: RecountedDay,
    frozen: Frozen,
    joins: Mapping[str, str],
    moved: Mapping[RecountedSeries, int],
    late: RecountedAmounts | None = None,
) -> Iterator[RecountDifference]:
    """Yields the series and meters that differ, in order.

    `late` are the counted amounts of one of its late days, to be compared in place of those of the day.
    `moved` has the requests that count although their record calls them denied, by series. Where callers,
    resources or named values were counted without their name, one may have less than the log gives, and all
    together may not.
    """
    counted_amounts = day.amounts if late is None else late
    pooled = {meter for meter in joins if meter == DUPLICATES or day.has_overflow or _is_folded(frozen)}
    sums: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0] * 6)
    for series in sorted(frozen.keys() | counted_amounts.keys()):
        stored, counted = frozen.get(series, {}), counted_amounts.get(series, {})
        for meter in sorted(stored.keys() | counted.keys()):
            value, denied = stored.get(meter, (0, 0))
            amount = counted.get(meter, NOTHING)
            difference = _difference(series, meter, (value, denied), amount, moved.get(series, 0))
            is_chosen = day.has_chosen_overflow(series[0])
            if not (is_chosen or (series[0].startswith("caller") and meter in pooled)):
                if not _fits(difference, joins[meter], moved.get(series, 0)):
                    yield difference
                continue
            if (
                not {*series[1:]}.intersection(NOT_NAMED)
                and value + denied > amount.value_most + amount.denied_most
            ):
                yield difference
            if joins[meter] == "sum":
                total = sums[series[0], "" if is_chosen else series[2], meter]
                for index, number in enumerate(difference[4:10]):
                    total[index] += number
    for (grouping, resource, meter), total in sorted(sums.items()):
        difference = RecountDifference._make((grouping, "", resource, meter, *total, ""))
        if not _fits(difference, "sum", sum(moved.values())):
            yield difference


def _difference(
    series: RecountedSeries, meter: str, stored: tuple[int, int], amount: RecountedAmount, moved: int
) -> RecountDifference:
    """Returns the amounts of both sides; requests that count although denied are moved."""
    moved = moved if meter == REQUESTS else 0
    amounts = (
        amount.value + moved,
        amount.value_most + moved,
        amount.denied - moved,
        amount.denied_most - moved,
    )
    return RecountDifference(*series, meter, *stored, *amounts)


def _fits(difference: RecountDifference, join: str, moved: int) -> bool:
    """Whether the frozen amounts are among those that the log gives.

    Of other meters than requests it is not stored how much of them was denied and counts: there the sum of
    both is compared.
    """
    if not moved or difference.meter == REQUESTS:
        return (
            difference.least <= difference.frozen <= difference.most
            and difference.least_denied <= difference.frozen_denied <= difference.most_denied
        )
    joined = max if join == "max" else lambda *pair: sum(pair)
    frozen = joined(difference.frozen, difference.frozen_denied)
    return (
        joined(difference.least, difference.least_denied)
        <= frozen
        <= joined(difference.most, difference.most_denied)
        and difference.frozen_denied <= difference.most_denied
    )


def _is_folded(frozen: Frozen) -> bool:
    return any(name == NOT_NAMED[1] for _, name, _ in frozen)


def _shown(value: int, denied: int) -> str:
    return f"{value:,} and {denied:,} denied" if denied else f"{value:,}"
