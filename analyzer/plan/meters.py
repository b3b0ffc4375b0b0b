"""Meters: the numbers kept per series and bucket, and the joins by which two values become one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from typing import NamedTuple

import msgspec

from analyzer.plan.mapping import Condition, SourceMapping

MINUTE_S = 60
QUARTER_S = 900  # every zone's midnight falls on a quarter of an hour
DAY_S = 86_400
BUCKET_S = MINUTE_S  # width of the buckets that records are counted in; the store rolls old ones up
WIDTHS_S = (MINUTE_S, QUARTER_S, DAY_S)  # of all buckets that are stored


class Join(NamedTuple):
    """A rule by which the values of a meter in one bucket become one value.

    Must be commutative and associative, with 0 as its identity over numbers of 0 and more: a value starts at
    0, and a row whose values are 0 is not stored. (A minimum would need a separate start value.)

    Attributes:
        phrase: In front of the field's name, for display.
        merge: Joins two values.
        add_column: Joins numbers into the values at the given cells, one by one; the counter's inner loop.
        adds_up: Whether the values of two buckets add up to the value of both, as shares, corrections and
            bills need it.
        in_buckets: Whether a value of buckets can be joined, so that a meter is stored and reported. One that
            cannot is seen by policies alone, by what the counter hands on of each record.
    """

    phrase: str
    merge: Callable[[int, int], int]
    add_column: Callable[[list[int], Iterable[int], Iterable[int]], None]
    adds_up: bool
    in_buckets: bool = True


def _add_sums(values: list[int], cells: Iterable[int], numbers: Iterable[int]) -> None:
    for cell, number in zip(cells, numbers, strict=True):
        values[cell] += number


def _add_maxima(values: list[int], cells: Iterable[int], numbers: Iterable[int]) -> None:
    for cell, number in zip(cells, numbers, strict=True):
        if number > values[cell]:
            values[cell] = number


# A new join is an entry here, its SQL in analyzer.counting.sql_joins, a key in
# analyzer.config.tables.meters, a line in docs/spec/counter.md, tests.
JOINS: Mapping[str, Join] = {
    "sum": Join("sum of", int.__add__, _add_sums, adds_up=True),
    "max": Join("largest", max, _add_maxima, adds_up=False),
    # The number of values of a window grows by those that are new in it.
    "distinct": Join("distinct values of", int.__add__, _add_sums, adds_up=False, in_buckets=False),
}


OUTCOMES = "outcomes"  # in place of a meter, of sums that count requests by their outcome


class Meter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number kept per series and bucket. Without a field it counts requests.

    A meter of distinct values is kept in no bucket, because its value cannot be joined from those of two
    buckets. Policies see it by the values themselves (`analyzer.counting.counter.distinct_values`).
    """

    name: str
    field: str | None = None
    join: str = "sum"  # a key of JOINS
    where: tuple[Condition, ...] = ()  # all must hold, or the record does not count here
    renamed_from: str = ""  # its name before: what was counted under that name is shown under this one

    @property
    def joined(self) -> Join:
        """Returns the rule by which its values are joined."""
        return JOINS[self.join]


REQUESTS = Meter("requests")
# Requests beyond one for each record, counted where records have a weight. Requests less these are the
# records, of which ledgers speak; that holds in any bucket, whether plans with a weight counted in it or
# without. No configured meter can have a name with a blank.
UNRECORDED = Meter("unrecorded requests")
# Records that were left out because their id was counted, where records have ids. They are in no other meter.
DUPLICATES = Meter("duplicate records")


def with_requests(meters: Iterable[Meter]) -> list[Meter]:
    """Returns the meters with `requests` among them, each name once: a later one replaces an earlier one."""
    return list(({REQUESTS.name: REQUESTS} | {meter.name: meter for meter in meters}).values())


BUILT_IN = (UNRECORDED, DUPLICATES)  # besides `requests`; reports show them when they are asked for


def built_in_meters(mappings: Iterable[SourceMapping]) -> list[Meter]:
    """Returns those of BUILT_IN that records of these sources need: by weights, by ids."""
    mappings = list(mappings)
    needs = any(mapping.has_weight for mapping in mappings), any(mapping.event_ids for mapping in mappings)
    return list(compress(BUILT_IN, needs))


def in_buckets(meters: Iterable[Meter], built_in: Iterable[Meter] = ()) -> list[Meter]:
    """Returns the meters whose values are kept in buckets: all but those of distinct values.

    `built_in` are those of `built_in_meters`.
    """
    return [*(meter for meter in meters if meter.joined.in_buckets), *built_in]


def bucket_start_s(event_s: int, width_s: int) -> int:
    """Start of the bucket [start, start + width) that holds `event_s`, UTC.

    >>> bucket_start_s(119, MINUTE_S), bucket_start_s(120, MINUTE_S), bucket_start_s(-1, MINUTE_S)
    (60, 120, -60)
    """
    return event_s - event_s % width_s


def joins_by_meter(meters: Sequence[Meter]) -> dict[str, str]:
    """Returns the join of each meter by its name, without the meters of distinct values."""
    return {meter.name: meter.join for meter in in_buckets(meters)}
