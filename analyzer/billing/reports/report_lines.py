"""The lines of a report, a line for each meter of a series, and what they add up to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple

from analyzer.billing.reports.day_report import Report, SeriesAmounts
from analyzer.billing.reports.row_formats import Cell
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.meter_units import HUMAN_UNITS, STORED_IN, WHOLE, human_amount
from analyzer.plan.meters import JOINS


class HumanCells(NamedTuple):
    """The amounts of a line in a unit that people read, exactly."""

    human_value: Decimal
    human_denied: Decimal
    human_unit: str


def human_cells(value: int, denied: int, stored_in: str) -> HumanCells:
    """Returns two amounts in the unit that people read; `stored_in` is the one in which they are stored.

    >>> human_cells(90_000_000, 0, "microseconds")
    HumanCells(human_value=Decimal('90.000000'), human_denied=Decimal('0.000000'), human_unit='s')
    """
    unit = HUMAN_UNITS.get(stored_in, WHOLE).symbol
    return HumanCells(human_amount(value, stored_in), human_amount(denied, stored_in), unit)


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
    provisional: bool  # whether a day is not closed
    human: HumanCells | tuple[()] = ()  # of a report with human units


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
    first, last, provisional = report.days[0].date, report.days[-1].date, not report.is_final
    for row in rows:
        sums.add(row, report.meters)
        for meter in sorted(row.amounts):
            unit = STORED_IN.get(units.get(meter, ""), "")
            series = (first, last, report.zone, row.name, row.resource)
            amounts = row.amounts[meter]
            human = human_cells(*amounts, unit) if report.human_units else ()
            yield ReportLine(*series, meter, unit, *amounts, provisional, human)


def report_columns(report: Report) -> list[str]:
    """Returns the names of the columns: those of the parts of the grouping are as in `gatelock usage`."""
    parts = parse_grouping(report.grouping).columns
    names = ["from", "to", "zone", *parts, "meter", "unit", "value", "denied", "provisional"]
    return [*names, *(HumanCells._fields if report.human_units else ())]


def line_cells(line: ReportLine, columns: Sequence[str]) -> list[Cell]:
    """Returns the cells of a line for these columns."""
    *exact, human = line
    cells = [*exact, *human]
    if len(cells) > len(columns):
        del cells[4]  # the grouping has one part
    return cells
