"""The lines of a report, a line for each meter of a series, and what they add up to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from analyzer.billing.reports.day_report import Report, SeriesAmounts
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.meter_units import STORED_IN
from analyzer.plan.meters import JOINS


class ReportLine(NamedTuple):
    """A meter of a series, over all days of a report."""

    first: str  # date
    last: str  # date
    zone: str
    key: str
    resource: str
    meter: str
    unit: str  # in which the amounts are stored; "" for whole numbers
    value: int
    denied: int


@dataclass(slots=True)
class ReportSums:
    """The sums of the lines of a report, filled while they are written."""

    lines: int = 0
    series: int = 0
    meters: dict[str, list[int]] = field(default_factory=dict)  # admitted and denied; of largest values none

    def add(self, row: SeriesAmounts, joins: Mapping[str, str]) -> None:
        """Adds the lines of a series."""
        self.series += 1
        for meter, (value, denied) in row.amounts.items():
            self.add_line(meter, value, denied, joins[meter])

    def add_line(self, meter: str, value: int, denied: int, join: str) -> None:
        """Adds one line."""
        self.lines += 1
        if JOINS[join].adds_up:
            sums = self.meters.setdefault(meter, [0, 0])
            sums[0] += value
            sums[1] += denied


def usage_lines(
    report: Report, rows: Iterable[SeriesAmounts], units: Mapping[str, str], sums: ReportSums
) -> Iterator[ReportLine]:
    """Yields the lines of rows, by name, resource and meter; `sums` is complete after the last one."""
    first, last = report.days[0].date, report.days[-1].date
    for row in rows:
        sums.add(row, report.meters)
        for meter in sorted(row.amounts):
            unit = STORED_IN.get(units.get(meter, ""), "")
            series = (first, last, report.zone, row.name, row.resource)
            yield ReportLine(*series, meter, unit, *row.amounts[meter])


def report_columns(report: Report) -> list[str]:
    """Returns the names of the columns: the key has the name of its field, as in `gatelock usage`."""
    grouping = parse_grouping(report.grouping)
    key = grouping.name if grouping.key is None else grouping.key.field
    by_resource = grouping.resource is not None
    names = ["from", "to", "zone", key, "resource", "meter", "unit", "value", "denied"]
    if key == "resource" or not by_resource:
        del names[4]
    return names


def line_cells(line: ReportLine, columns: Sequence[str]) -> list[str | int]:
    """Returns the cells of a line for these columns."""
    cells: list[str | int] = list(line)
    if len(columns) < len(cells):
        del cells[4]
    return cells
