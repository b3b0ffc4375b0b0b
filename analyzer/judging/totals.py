"""Running totals: what is added up per series and window, shared by all policies with the same sum."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from analyzer.counting.counter.caller_budget import NOT_CALLERS, OVERFLOW
from analyzer.judging.rolling import AddressSums, Slots
from analyzer.kernel.model import CountTable, DistinctTable
from analyzer.plan.groupings import RESOURCE, Grouping, parse_grouping
from analyzer.plan.meters import MINUTE_S
from analyzer.plan.sums import Sum, lock_order
from analyzer.plan.windows import Calendar, Rolling, Window, window_at

BucketPosition = tuple[int, str, str]  # bucket_s, key, resource: the order of a grouping's rows


class TotalKey(NamedTuple):
    """One running total: a sum, for one series and one window; of rolling windows, one for all."""

    sum: Sum
    key: str
    resource: str
    window: Window


class UsualLevel(NamedTuple):
    """The load of a series in this hour of the week."""

    per_hour: int  # median
    weeks: int  # of which it is the median


class OthersLoad(NamedTuple):
    """The load of all series but one in a window, and its outcomes."""

    load: int  # of the meter
    outcomes: Mapping[str, int] = MappingProxyType({})  # see `analyzer.counting.counter.outcomes`


class Victims(NamedTuple):
    """Load and outcomes of all others beside a series that is to be locked, in windows of equal length."""

    during: OthersLoad
    before: OthersLoad | None  # None: not known any more
    has_errors: bool
    has_durations: bool


class Standing(NamedTuple):
    """A total as the database has it, the current flush included."""

    total: TotalKey
    used: int  # of a rolling sum: since it was first counted
    slots: Slots = ()  # of a rolling sum: those of windows that end now or later
    whole: Slots = ()  # of a sum that is compared with a whole, for the warden: those of the whole
    base: Slots | None = None  # of a sum that is judged by its share: those of its base; None: not read
    # Of a network: what its addresses have in the windows that have reached a limit, by their ends.
    addresses: Mapping[int, AddressSums] | None = None
    usual: UsualLevel | None = None  # of a series that is compared with its usual load, if it has one
    victims: Victims | None = None  # of a series with a whole that is to be locked: all others


class OwnWindows(Protocol):
    """The windows of callers that have other ones."""

    def window_starts(self, sum_: Sum, keys: Sequence[str], times_s: Sequence[int]) -> Sequence[int]:
        """Returns the starts of the windows of totals, each for a series and a time."""


class Growth(NamedTuple):
    """Growth of the totals of one sum, column by column; sorted by window, key and resource."""

    windows_s: Sequence[int]  # the start of each window
    keys: Sequence[str]
    resources: Sequence[str]
    amounts: Sequence[int]


def totals_growth(
    sums: Iterable[Sum],
    tables: Iterable[CountTable],
    filled_to: Mapping[Sum, BucketPosition] = MappingProxyType({}),
    windows: OwnWindows | None = None,
) -> dict[Sum, Growth]:
    """Returns the growth of the totals of `sums`, in the order in which row locks are taken.

    Denied requests add to no total, so that they never lock a caller again; nor do series that are not
    judged (`is_judged`). `filled_to` has the sums whose totals are being filled from the buckets:
    theirs grow only by buckets before the position, because the others will be added when the filling gets
    there. `windows` has the windows of callers, for sums with such windows.
    """
    by_grouping = {table.grouping: table for table in tables}
    growth: dict[Sum, Growth] = {}
    for sum_ in sorted(sums, key=lock_order):
        table = by_grouping.get(sum_.grouping)
        if table is not None and sum_.meter in table.meters:
            grown = _growth(sum_, table, filled_to.get(sum_), windows)
            if grown.keys:
                growth[sum_] = grown
    return growth


class ValueRow(NamedTuple):
    """A value of a series in a window, or in a slot of a rolling one."""

    key: str
    resource: str
    window_s: int  # start of the window or slot
    value: int


class SeenValues(NamedTuple):
    """Values of the series of one sum of distinct values. How many of them are new, only the store knows."""

    rows: Sequence[ValueRow]  # each once, sorted

    @property
    def keys(self) -> Sequence[str]:
        return [row.key for row in self.rows]


def seen_values(sums: Iterable[Sum], tables: Iterable[DistinctTable]) -> dict[Sum, SeenValues]:
    """Returns the values by which totals of distinct values may grow; none of series that are not judged."""
    by_layout = {(table.grouping, table.meter, table.width_s): table for table in tables}
    if not by_layout:
        return {}
    by_sum: dict[Sum, SeenValues] = {}
    for sum_ in sums:
        rolling = sum_.window if isinstance(sum_.window, Rolling) else None
        width_s = MINUTE_S if rolling is None else rolling.slot_s
        table = by_layout.get((sum_.grouping, sum_.meter, width_s))
        if sum_.joined.in_buckets or table is None:
            continue
        starts_s = {
            slot_s: window_at(sum_.window, slot_s).start_s if rolling is None else slot_s
            for slot_s in set(table.buckets_s)
        }
        grouping = parse_grouping(sum_.grouping)
        unjudged, no_resources = unjudged_keys(grouping), unjudged_resources(grouping)
        columns = zip(table.keys, table.resources, table.buckets_s, table.values, strict=True)
        rows = {
            ValueRow(key, resource, starts_s[slot_s], value)
            for key, resource, slot_s, value in columns
            if key not in unjudged and resource not in no_resources
        }
        if rows:
            by_sum[sum_] = SeenValues(sorted(rows))
    return by_sum


def _growth(sum_: Sum, table: CountTable, filled_to: BucketPosition | None, own: OwnWindows | None) -> Growth:
    amounts = table.admitted[list(table.meters).index(sum_.meter)]
    starts_s: Iterable[int]
    if is_by_caller(sum_):
        if own is None:
            raise ValueError(f"the windows of callers are missing for {sum_}")
        starts_s = own.window_starts(sum_, table.keys, table.buckets_s)
    else:
        windows = {bucket_s: window_at(sum_.window, bucket_s).start_s for bucket_s in set(table.buckets_s)}
        grown = None if filled_to is not None else _growth_in_one_window(sum_, table, amounts, windows)
        if grown is not None:
            return grown
        starts_s = map(windows.__getitem__, table.buckets_s)
    grouping = parse_grouping(sum_.grouping)
    unjudged, no_resources = unjudged_keys(grouping), unjudged_resources(grouping)
    summed: dict[tuple[int, str, str], int] = {}
    merge = sum_.joined.merge
    rows = zip(starts_s, table.buckets_s, table.keys, table.resources, amounts, strict=True)
    for start_s, bucket_s, key, resource, amount in rows:
        if not amount or key in unjudged or resource in no_resources:
            continue
        if filled_to is not None and (bucket_s, key, resource) >= filled_to:
            continue
        series = start_s, key, resource
        summed[series] = merge(summed.get(series, 0), amount)
    ordered = sorted(summed)
    return Growth(
        [window_s for window_s, _, _ in ordered],
        [key for _, key, _ in ordered],
        [resource for _, _, resource in ordered],
        [summed[series] for series in ordered],
    )


def _growth_in_one_window(
    sum_: Sum, table: CountTable, amounts: Sequence[int], windows: Mapping[int, int]
) -> Growth | None:
    """Returns the growth where a short way leads to it; `windows` has the start of the window by bucket."""
    grouping = parse_grouping(sum_.grouping)
    unjudged, no_resources = unjudged_keys(grouping), unjudged_resources(grouping)
    if (
        len(windows) == 1
        and 0 not in amounts
        and not any(name in table.keys for name in unjudged)
        and not any(name in table.resources for name in no_resources)
    ):
        # The usual flush: one bucket, in which each series is once.
        window_s = windows[table.buckets_s[0]]
        return Growth([window_s] * len(amounts), table.keys, table.resources, amounts)
    if len({*windows.values()}) == 1 and not no_resources and sum_.joined.adds_up:
        # A backlog has several buckets of one window, and mostly no resources.
        by_key = defaultdict[str, int](int)
        for key, amount in zip(table.keys, amounts, strict=True):
            by_key[key] += amount
        for name in unjudged:
            by_key.pop(name, None)
        keys = sorted(by_key)
        if 0 in amounts:
            keys = [key for key in keys if by_key[key]]
        start_s = windows[table.buckets_s[0]]
        return Growth([start_s] * len(keys), keys, [""] * len(keys), list(map(by_key.__getitem__, keys)))
    return None


def is_by_caller(sum_: Sum) -> bool:
    """Whether the windows of a sum are those of each caller."""
    return isinstance(sum_.window, Calendar) and bool(sum_.window.facts)


def is_judged(grouping: Grouping, key: str, resource: str) -> bool:
    """Whether policies judge a series. Series of many callers, and those with an empty part, are not judged.

    Requests that lack a part have nothing in common, and a lock with an empty resource would be one on all
    resources. `everyone` has no parts.
    """
    return key not in unjudged_keys(grouping) and resource not in unjudged_resources(grouping)


def unjudged_keys(grouping: Grouping) -> tuple[str, ...]:
    """Returns the keys of a grouping's series that are not judged with any resource."""
    if grouping.is_of_callers:
        return ("", *NOT_CALLERS)
    if grouping.key == RESOURCE or (grouping.key is not None and grouping.key.value):
        return ("", OVERFLOW)
    return () if grouping.key is None else ("",)


def unjudged_resources(grouping: Grouping) -> tuple[str, ...]:
    """Returns the resources of a grouping's series that are not judged with any key."""
    return () if grouping.resource is None else ("", OVERFLOW)
