"""Counts as a table, CSV or JSON.

The store returns a row for each meter of a series and stretch of time. Tables and CSV have one row for all
meters of these, JSON has an object for each meter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from analyzer.counting.usage_rows import UsageAnswer
from analyzer.faces.cli.output import TABLE_ROWS_MAX, csv_lines, json_lines, say, table
from analyzer.plan.meter_units import STORED_IN, SYMBOLS, Unit, column_texts
from analyzer.plan.meters import REQUESTS
from analyzer.plan.windows import Calendar, window_at

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from analyzer.counting.usage import UsageRow
    from analyzer.plan.groupings import Grouping

ALL = "(all)"  # of the grouping `everyone`, whose key is always empty
NO_KEY = "(none)"  # of records without the field that they are counted by
PROVISIONAL = " *"

series_and_time = attrgetter("bucket_s", "width_s", "key", "resource")


class MeterPair(NamedTuple):
    """The value of a meter in one row, and what was denied of it. None: nothing was counted by the meter."""

    value: int | None
    denied: int | None


NOTHING = MeterPair(None, None)


class ReportRow(NamedTuple):
    """All meters of one series in one stretch of time."""

    of: UsageRow  # any of its rows: series and stretch are equal
    meters: Mapping[str, MeterPair]


class UsageReport(NamedTuple):
    """The grouping, stretches, units and finality by which rows are printed.

    Attributes:
        grouping: What the rows are counted by.
        width_s: The width of a regular row in seconds; None: calendar windows.
        calendar: These windows.
        zone: The time zone of the column `bucket`.
        units: The unit of each meter that has one.
        meters: The meters that CSV has columns for, in order.
        final_until_s: Rows that end after this time may still change.
    """

    grouping: Grouping
    width_s: int | None
    calendar: Calendar
    zone: ZoneInfo
    units: Mapping[str, Unit]
    meters: Sequence[str]
    final_until_s: float

    def print_table(self, rows: Iterable[UsageRow]) -> None:
        """Prints a table with a column for each meter, and one for what was denied of it.

        A meter other than requests has the second one only if anything was denied.
        """
        # One more than is shown, so that the table says that there are more.
        shown = list(islice(by_series(rows), TABLE_ROWS_MAX + 1))
        meters = {meter: None for row in shown for meter in row.meters}
        amounts = [
            texts for meter in sorted(meters, key=requests_first) for texts in self._amounts(meter, shown)
        ]
        columns = [*self._series_columns(), *(head for head, _ in amounts)]
        cells = zip(
            map(self._series_cells, shown), zip(*(texts for _, texts in amounts), strict=True), strict=True
        )
        table(columns, ([*series, *numbers] for series, numbers in cells), "", numbers=len(amounts))
        if any(self.is_provisional(row.of) for row in shown[:TABLE_ROWS_MAX]):
            say("* provisional: records of this time are still accepted")

    def print_csv(self, rows: Iterable[UsageRow]) -> None:
        """Prints CSV with two columns for each meter; they are empty where it counted nothing."""
        heads = [
            meter_head(meter, STORED_IN.get(self.units.get(meter, "")), is_denied=is_denied)
            for meter in self.meters
            for is_denied in (False, True)
        ]
        cells = (
            [
                *self._series(row.of),
                *(amount for meter in self.meters for amount in row.meters.get(meter, NOTHING)),
                row.of.width_s,
                str(self.is_provisional(row.of)).lower(),
            ]
            for row in by_series(rows)
        )
        csv_lines([*self._series_columns(), *heads, "width_s", "provisional"], cells)

    def print_json(self, rows: Iterable[UsageRow]) -> None:
        """Prints an object for each meter of each row."""
        json_lines(map(self._answer.as_object, rows))

    def is_provisional(self, row: UsageRow) -> bool:
        """Whether records that belong to the row are still accepted."""
        return self._answer.is_provisional(row)

    @property
    def _answer(self) -> UsageAnswer:
        return UsageAnswer(self.grouping, self.width_s, self.zone, self.units, self.final_until_s)

    def _series_columns(self) -> list[str]:
        return ["bucket", *self.grouping.columns]

    def _series(self, row: UsageRow) -> list[str]:
        return [
            self._answer.start(row),
            row.key,
            *([row.resource] if self.grouping.resource is not None else []),
        ]

    def _series_cells(self, row: ReportRow) -> list[str]:
        bucket, *names = self._series(row.of)
        width = "" if self._is_regular(row.of) else f" ({row.of.width_s} s)"
        mark = PROVISIONAL if self.is_provisional(row.of) else ""
        empty = ALL if self.grouping.key is None else NO_KEY
        return [bucket + width + mark, *(name or empty for name in names)]

    def _amounts(self, meter: str, rows: Sequence[ReportRow]) -> Iterator[tuple[str, list[str]]]:
        """Yields head and cells of the columns of a meter."""
        unit = self.units.get(meter)
        symbol = SYMBOLS.get(unit or "")
        pairs = [row.meters.get(meter, NOTHING) for row in rows]
        yield meter_head(meter, symbol, is_denied=False), column_texts([pair.value for pair in pairs], unit)
        denied = [pair.denied for pair in pairs]
        if any(denied) or meter == REQUESTS.name:
            yield meter_head(meter, symbol, is_denied=True), column_texts(denied, unit)

    def _is_regular(self, row: UsageRow) -> bool:
        """Whether the row has the width that was asked for; counts of long ago may have a wider one."""
        if self.width_s is not None:
            return row.width_s == self.width_s
        return tuple(window_at(self.calendar, row.bucket_s)) == (row.bucket_s, row.bucket_s + row.width_s)


def by_series(rows: Iterable[UsageRow]) -> Iterator[ReportRow]:
    """Yields one row for all meters of a series and stretch, which must follow each other."""
    for _, group in groupby(rows, series_and_time):
        rows_of_series = list(group)
        yield ReportRow(
            rows_of_series[0], {row.meter: MeterPair(row.value, row.denied) for row in rows_of_series}
        )


def meter_head(meter: str, unit: str | None, *, is_denied: bool) -> str:
    """The head of a meter's column.

    >>> meter_head("requests", None, is_denied=True), meter_head("busy", "s", is_denied=False)
    ('requests denied', 'busy (s)')
    """
    return meter + " denied" * is_denied + (f" ({unit})" if unit else "")


def requests_first(meter: str) -> tuple[bool, str]:
    """A sort key of meters by name, after `requests`."""
    return meter != REQUESTS.name, meter
