"""Traffic of each series of a log: totals, hours, and the slots in which it was busy.

A log of a month has a slot for almost every request. A policy needs the slots of windows that reach its
limit, and no others; so above `cells_max` slots, those in no window with `floor` requests are dropped.
`floor` rises until half of them are left. Judgements by limits from `floor` on are not
affected. When there are more series than `series_max`, those with the fewest requests are joined, and `floor`
rises to more than they had.
"""

from __future__ import annotations

import itertools
import operator
from array import array
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from analyzer.kernel.model import CountTable
from analyzer.plan.mapping import Condition
from analyzer.plan.meters import REQUESTS, Meter
from analyzer.plan.windows import HOUR_S, Rolling

CLIENT_ERRORS = Meter("client errors", where=(Condition("status", ("400-499",)),))
SERVER_ERRORS = Meter("server errors", where=(Condition("status", ("500-599",)),))
BYTES = Meter("bytes", "bytes")
METERS = (CLIENT_ERRORS, SERVER_ERRORS, BYTES)
COUNTED = (REQUESTS.name, *(meter.name for meter in METERS))  # the columns of the tables, in this order

COUNT_BITS = 26  # of a cell: requests in one slot; the bits above are the number of the slot
COUNT_MAX = (1 << COUNT_BITS) - 1
CELLS_MAX = 4_000_000  # 9 bytes each
SERIES_MAX = 250_000  # about 500 bytes each
HOURS_MAX = 100_000  # eleven years; a log with wrong times may have more
LATE_S = 300  # lines may be so much out of order, in addition to a window

Cells = Sequence[int]  # of one series, sorted: `slot << COUNT_BITS | requests`


class Hour(NamedTuple):
    """One hour of the log."""

    requests: int
    errors: int


class SeriesTraffic(NamedTuple):
    """One series, such as a caller, in the whole log."""

    key: str
    resource: str
    requests: int
    client_errors: int
    server_errors: int
    bytes: int
    peak: int  # the largest sum of a window, as a policy compares it with its limit
    members: Sequence[Cells]  # of a network: for each address; else one


class JoinedSeries(NamedTuple):
    """The series with few requests that are not kept one by one."""

    series: int  # at least: one that comes again is counted again
    requests: int


class SeriesCounts:
    """Counts of one series, or of one address of a network."""

    __slots__ = ("bytes", "cells", "client_errors", "latest", "requests", "server_errors")

    def __init__(self) -> None:
        self.requests = self.client_errors = self.server_errors = self.bytes = 0
        self.latest = -1  # the last slot in which it was added to
        self.cells = array("Q")


class TrafficProfile:
    """Everything that is kept of a log: see the module for its bounds.

    `floor` is the smallest limit by which the profile will be judged; 1 while it is not known.
    """

    def __init__(
        self,
        rolling: Rolling,
        *,
        is_of_networks: bool = False,
        floor: int = 1,
        cells_max: int = CELLS_MAX,
        series_max: int = SERIES_MAX,
    ) -> None:
        self.rolling = rolling
        self.floor = floor
        self.requests = self.denied = self.client_errors = self.server_errors = self.bytes = 0
        self._oldest = -1
        self.late = 0  # requests in slots of a time whose slots were dropped before
        self.joined = JoinedSeries(0, 0)
        self.joined_peaks: Counter[int] = Counter()
        self._is_of_networks = is_of_networks
        self._cells_max = cells_max
        self._series_max = series_max
        self._hours: dict[int, list[int]] = {}
        self._entries: defaultdict[tuple[str, str], SeriesCounts] = defaultdict(SeriesCounts)
        self._peaks: dict[tuple[str, str], int] = {}  # of slots that were dropped
        self._cells = 0
        self._newest = -1
        self._dropped_to = -1
        self._span = rolling.period_s // rolling.slot_s + 1  # slots that a window counts

    def add(self, table: CountTable) -> None:
        """Adds the slots of a table, whose columns are those of `COUNTED`.

        Requests that a gate denied are only added up: policies do not count them.
        """
        if table.denied:
            self.denied += sum(table.denied[0])
        starts_s, begin = table.buckets_s, 0
        while begin < len(starts_s):
            end = bisect_right(starts_s, starts_s[begin], begin)
            self._add_slot(table, begin, end)
            begin = end
        self._add_totals(table)
        if len(self._entries) > self._series_max:
            self._join_small()
        if self._cells > self._cells_max:
            self._drop_idle()

    def _add_slot(self, table: CountTable, begin: int, end: int) -> None:
        """Adds the rows of one slot."""
        start_s, entries = table.buckets_s[begin], self._entries
        slot = start_s // self.rolling.slot_s
        number = slot << COUNT_BITS
        keys, resources = table.keys[begin:end], table.resources[begin:end]
        columns = [column[begin:end] for column in table.admitted]
        rows = zip(keys, resources, *columns, strict=True)
        for key, resource, requests, client_errors, server_errors, size in rows:
            entry = entries[key, resource]
            entry.requests += requests
            if client_errors:
                entry.client_errors += client_errors
            if server_errors:
                entry.server_errors += server_errors
            entry.bytes += size
            if slot == entry.latest:  # a table that follows may continue a slot
                entry.cells[-1] += min(requests, COUNT_MAX - (entry.cells[-1] & COUNT_MAX))
            else:
                entry.latest = slot
                entry.cells.append(number | (min(COUNT_MAX, requests)))
                self._cells += 1
        hour = self._hours.get(start_s // HOUR_S)
        if hour is None:
            if len(self._hours) >= HOURS_MAX:
                return
            hour = self._hours[start_s // HOUR_S] = [0, 0]
        hour[0] += sum(columns[0])
        hour[1] += sum(columns[1]) + sum(columns[2])

    def _add_totals(self, table: CountTable) -> None:
        sums = list(map(sum, table.admitted))
        self.requests += sums[0]
        self.client_errors += sums[1]
        self.server_errors += sums[2]
        self.bytes += sums[3]
        starts_s, slot_s = table.buckets_s, self.rolling.slot_s
        first, last = min(starts_s) // slot_s, max(starts_s) // slot_s
        self._oldest = first if self._oldest < 0 else min(self._oldest, first)
        self._newest = max(self._newest, last)
        if self._dropped_to >= 0:
            old_s = self._dropped_to * slot_s
            pairs = zip(starts_s, table.admitted[0], strict=True)
            self.late += sum(requests for start_s, requests in pairs if start_s < old_s)

    @property
    def from_s(self) -> int | None:
        """The begin of the first slot with requests."""
        return None if self._oldest < 0 else self._oldest * self.rolling.slot_s

    @property
    def until_s(self) -> int | None:
        """The end of the last slot with requests."""
        return None if self._newest < 0 else (self._newest + 1) * self.rolling.slot_s

    def hours(self) -> dict[int, Hour]:
        """Returns the hours with requests, by their number since 1970 UTC."""
        return {number: Hour(*self._hours[number]) for number in sorted(self._hours)}

    def series(self) -> Iterator[SeriesTraffic]:
        """Yields the series that are kept one by one."""
        for name, entries in self._grouped():
            members = [sorted_cells(entry.cells) for entry in entries]
            peak = peak_sum(joined_cells(members), self._span)
            yield SeriesTraffic(*name, *_sums(entries), max(peak, self._peaks.get(name, 0)), members)

    def _grouped(self) -> Iterable[tuple[tuple[str, str], Sequence[SeriesCounts]]]:
        """Returns the entries of each series. A network has one for each address."""
        if not self._is_of_networks:
            return (((key, resource), (entry,)) for (key, resource), entry in self._entries.items())
        by_network: defaultdict[tuple[str, str], list[SeriesCounts]] = defaultdict(list)
        for (network, _), entry in self._entries.items():
            by_network[network, ""].append(entry)
        return by_network.items()

    @property
    def _recent(self) -> int:
        """The slot from which on windows may still grow."""
        return self._newest - self._span - -(-(LATE_S + self.rolling.period_s) // self.rolling.slot_s)

    def _drop_idle(self) -> None:
        """Drops slots in no window that reaches the floor, which rises until half of the bound is free."""
        recent = self._recent
        while True:
            remaining = 0
            for name, entries in self._grouped():
                together = joined_cells([sorted_cells(entry.cells) for entry in entries])
                peak = peak_sum(together, self._span)
                self._peaks[name] = max(peak, self._peaks.get(name, 0))
                kept = busy_slots(together, self._span, self.floor) if peak >= self.floor else ()
                for entry in entries:
                    if entry.cells:
                        entry.cells = array("Q", _kept(sorted_cells(entry.cells), kept, recent))
                        entry.latest = entry.cells[-1] >> COUNT_BITS if entry.cells else -1
                        remaining += len(entry.cells)
            self._cells = remaining
            if 2 * remaining <= self._cells_max or self.floor > COUNT_MAX:
                break
            self.floor *= 2
        self._dropped_to = max(self._dropped_to, recent)

    def _join_small(self) -> None:
        """Joins the series with the fewest requests, at least half of them."""
        sizes = sorted(sum(entry.requests for entry in entries) for _, entries in self._grouped())
        most = sizes[len(sizes) // 2]
        small = [
            (name, entries)
            for name, entries in self._grouped()
            if sum(entry.requests for entry in entries) <= most
        ]
        joined = 0
        for name, entries in small:
            peak = peak_sum(joined_cells([sorted_cells(entry.cells) for entry in entries]), self._span)
            self.joined_peaks[max(peak, self._peaks.pop(name, 0))] += 1
            joined += sum(entry.requests for entry in entries)
            self._cells -= sum(len(entry.cells) for entry in entries)
        names = {name for name, _ in small}
        for key, resource in list(self._entries):
            if (key, "" if self._is_of_networks else resource) in names:
                del self._entries[key, resource]
        self.joined = JoinedSeries(self.joined.series + len(small), self.joined.requests + joined)
        self.floor = max(self.floor, most + 1)


def _sums(entries: Sequence[SeriesCounts]) -> tuple[int, int, int, int]:
    """Returns requests, client errors, server errors and bytes of all entries."""
    rows = [(entry.requests, entry.client_errors, entry.server_errors, entry.bytes) for entry in entries]
    if len(rows) == 1:
        return rows[0]
    requests, client_errors, server_errors, size = map(sum, zip(*rows, strict=True))
    return requests, client_errors, server_errors, size


def sorted_cells(cells: Sequence[int]) -> Cells:
    """Returns the cells sorted, each slot once: lines of a log may be out of order."""
    if len(cells) < 2 or all(map(operator.lt, cells, itertools.islice(cells, 1, None))):
        return cells
    return joined_cells([[cell] for cell in cells])


def joined_cells(members: Sequence[Cells]) -> Cells:
    """Returns the cells of several members added up, sorted."""
    if len(members) == 1:
        return members[0]
    sums: defaultdict[int, int] = defaultdict(int)
    for cells in members:
        for cell in cells:
            sums[cell >> COUNT_BITS] += cell & COUNT_MAX
    return [slot << COUNT_BITS | min(count, COUNT_MAX) for slot, count in sorted(sums.items())]


def peak_sum(cells: Cells, span: int) -> int:
    """Returns the largest sum of `span` slots in a row."""
    largest = total = first = 0
    for cell in cells:
        total += cell & COUNT_MAX
        oldest = (cell >> COUNT_BITS) - span
        while cells[first] >> COUNT_BITS <= oldest:
            total -= cells[first] & COUNT_MAX
            first += 1
        if total > largest:
            largest = total
    return largest


def busy_slots(cells: Cells, span: int, floor: int) -> set[int]:
    """Returns the slots with requests in some window of `span` slots with `floor` requests or more."""
    busy: set[int] = set()
    total = first = 0
    for index, cell in enumerate(cells):
        total += cell & COUNT_MAX
        oldest = (cell >> COUNT_BITS) - span
        while cells[first] >> COUNT_BITS <= oldest:
            total -= cells[first] & COUNT_MAX
            first += 1
        if total >= floor:
            busy.update(busy_cell >> COUNT_BITS for busy_cell in cells[first : index + 1])
    return busy


def _kept(cells: Cells, busy: Iterable[int], recent: int) -> list[int]:
    return [cell for cell in cells if cell >> COUNT_BITS >= recent or cell >> COUNT_BITS in busy]
