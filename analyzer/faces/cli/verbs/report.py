"""`gatelock billing report`: what was counted of closed days, for invoices."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

from click import Context
from click.exceptions import Exit

from analyzer.billing.hand_over.billing_services import SERVICES
from analyzer.billing.reports.booked_corrections import BookedAmount, booked_amounts
from analyzer.billing.reports.day_report import days_between, read_report, report_rows
from analyzer.billing.reports.incomplete_days import incomplete_days
from analyzer.billing.reports.manifest import Contents, report_contents
from analyzer.billing.reports.own_periods import period_contents, read_period_reports
from analyzer.billing.reports.report_lines import (
    HumanCells,
    ReportSums,
    human_cells,
    line_cells,
    usage_lines,
)
from analyzer.billing.reports.row_formats import ROW_FORMATS, encode_json_lines
from analyzer.billing.reports.usage_amounts import usage_amounts
from analyzer.faces.cli.billing_options import (
    CORRECTIONS,
    PERIOD,
    Dates,
    FrozenGroupingOption,
    MeterOption,
    OutOption,
    UnitsOption,
    ZoneOption,
    dates_of,
    day_of_period,
    of_known_names,
    zone_of,
)
from analyzer.faces.cli.described_options import Argument, Option
from analyzer.faces.cli.exit_codes import FOUND, reporting_errors, usage_error
from analyzer.faces.cli.options import ConfigOption, load_settings, open_database
from analyzer.faces.cli.output import say
from analyzer.faces.cli.report_output import advancing, print_content, progress_bar, write_with_manifest
from analyzer.faces.cli.verbs import report_sending
from analyzer.kernel.database.chain import inform_witness
from analyzer.kernel.sentences import plural
from analyzer.kernel.time_texts import format_second
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.meter_units import STORED_IN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import sqlalchemy as sa

    from analyzer.billing.reports.day_report import Report, SeriesAmounts
    from analyzer.billing.reports.own_periods import PeriodReport
    from analyzer.billing.reports.row_formats import Cell
    from analyzer.config.settings import Settings


def write(
    context: Context,
    what: Annotated[
        str,
        Argument(
            metavar="WHAT",
            help="day, week, month, period, corrections; or dates, both included: 2026-11-01..2026-11-20.",
        ),
    ],
    when: Annotated[
        str,
        Argument(
            metavar="[DATE]",
            help="A date in it, yesterday or today; for corrections also dates as above, for a period also "
            "the month that it begins in.",
        ),
    ] = "yesterday",
    zone: ZoneOption = None,
    by: FrozenGroupingOption = "caller",
    meter: MeterOption = None,
    format_: Annotated[
        str,
        Option("--format", help="Rows, or the events of a billing service.", words=(ROW_FORMATS, SERVICES)),
    ] = "csv",
    out: OutOption = None,
    units: UnitsOption = False,
    final: Annotated[
        bool, Option("--final", help="Write nothing unless all days are closed; exit code 1.")
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Write what was counted of closed days.

    The report of a closed day is the same at any time. Records that came later, and what operators corrected,
    are in `billing report corrections`, by the day that they are booked on. A day that is not closed yet,
    such as `today`, is provisional: each line, the manifest, the name of the file and standard error say so.
    Events for a billing service are of closed days alone; `billing report send` delivers them. A period is
    each caller's or tenant's own month, from the day of its anchor in its time zone: the days of --zone that
    begin in it.

    Example: gatelock billing report month 2026-11 --out november.csv --final
    """
    with reporting_errors(), _opened(context, config, out) as engine:
        settings = load_settings(context, config)
        named = zone_of(settings, zone)
        _check_format(what, format_, out, units=units)
        if what == PERIOD:
            periods = _period_reports(engine, named, when, by, meter)
            _write_periods(engine, settings, periods, format_, out, units=units, final=final)
            return
        dates = dates_of(engine, what, when, named)
        if format_ in SERVICES:
            _write_events(engine, settings, what, dates, named, by, meter, format_, out)
        elif what == CORRECTIONS:
            _write_corrections(engine, settings, named, dates, by, meter, format_, out, units)
        else:
            report = _report(engine, named, dates, by, meter)._replace(human_units=units)
            _say_state(engine, [report], report_contents(report), final=final)
            parts = [(report, report_rows(engine, report))]
            _write_usage(settings, parts, report_contents(report), format_, out)


@contextmanager
def _opened(context: Context, config: Path | None, out: Path | None) -> Iterator[sa.Engine]:
    """The database; a witness sees the closings of a report that is kept: it may close its days again."""
    with open_database(context, config) as engine:
        if out is not None and (problem := inform_witness(engine)):
            say(f"{out}: {problem}", err=True)
        yield engine


def _check_format(what: str, format_: str, out: Path | None, *, units: bool) -> None:
    """Exits with 2 for a format that the terminal cannot show, or that is not one of what is asked for."""
    if what == PERIOD and format_ in SERVICES:
        raise usage_error(f"period: events for {format_} are those of days; the service adds them up")
    is_binary = format_ in ROW_FORMATS and not ROW_FORMATS[format_].is_text
    if is_binary and out is None and sys.stdout.isatty():
        raise usage_error(f"--format {format_} is not for a terminal: write --out FILE")
    if units and format_ in SERVICES:
        raise usage_error(f"--units: events for {format_} have the exact amounts alone")


def _report(engine: sa.Engine, zone: str, dates: Dates, by: str, meter: str | None) -> Report:

    with of_known_names(engine, by):
        return read_report(engine, zone, *dates, by, meter)


def _period_reports(
    engine: sa.Engine, zone: str, when: str, by: str, meter: str | None
) -> list[PeriodReport]:

    day = day_of_period(engine, when, zone)
    with of_known_names(engine, by):
        if not parse_grouping(by).has_facts:
            raise usage_error(f"--by {by}: only callers and tenants have periods")
        return read_period_reports(engine, zone, day, by, meter)


def _write_periods(
    engine: sa.Engine,
    settings: Settings,
    periods: Sequence[PeriodReport],
    format_: str,
    out: Path | None,
    *,
    units: bool,
    final: bool,
) -> None:

    parts = [part._replace(report=part.report._replace(human_units=units)) for part in periods]
    contents = period_contents(parts)
    _say_state(engine, [part.report for part in parts], contents, final=final)
    _write_usage(settings, [(part.report, part.rows(engine)) for part in parts], contents, format_, out)


def _say_state(engine: sa.Engine, reports: Sequence[Report], contents: Contents, *, final: bool) -> None:
    """Says which days are not closed, or lack requests. Exits with 1 as `_say_provisional` does."""
    _say_provisional(contents, final=final)
    days = {day.closed for report in reports for day in report.days if day.closed}
    for grouping in sorted({report.whole or report.grouping for report in reports}):
        for incomplete in incomplete_days(engine, sorted(days), grouping):
            say(f"incomplete: {incomplete}", err=True)


def _say_provisional(contents: Contents, *, final: bool) -> None:
    """Says which days are not closed. Exits with 1 if there are some, and only a final report is wanted."""
    if contents.is_final:
        return
    open_days = [date for date, closed in contents.days if closed is None]
    shown = open_days[0] if len(open_days) == 1 else f"{len(open_days)} of {len(contents.days)} days"
    verb = "is" if len(open_days) == 1 else "are"
    until_ms = contents.complete_until_ms
    until = f"; what was logged until {format_second(until_ms // 1000)} is counted" if until_ms else ""
    say(f"provisional: {shown} ({contents.zone}) {verb} not closed{until}", err=True)
    if final:
        raise Exit(FOUND)


def _write_usage(
    settings: Settings,
    parts: Sequence[tuple[Report, Iterable[SeriesAmounts]]],
    contents: Contents,
    format_: str,
    out: Path | None,
) -> None:

    sums, columns, units = ReportSums(), contents.columns, settings.units()
    lines = chain.from_iterable(usage_lines(report, rows, units, sums) for report, rows in parts)
    with progress_bar("lines") as advance:
        cells = advancing((line_cells(line, columns) for line in lines), advance if out else _silent)
        _write(ROW_FORMATS[format_].encode(columns, cells), contents, sums, out)


def _silent(_count: int) -> None:
    """Shows no progress."""


def _write(content: Iterator[bytes], contents: Contents, sums: ReportSums, out: Path | None) -> None:
    if out is None:
        print_content(content)
    else:
        write_with_manifest(out, content, contents, sums)


def _write_corrections(
    engine: sa.Engine,
    settings: Settings,
    zone: str,
    dates: Dates,
    by: str,
    meter: str | None,
    format_: str,
    out: Path | None,
    units: bool,
) -> None:

    stored_in = {name: STORED_IN[unit] for name, unit in settings.units().items()}
    days = days_between(engine, zone, *dates)
    joins = {entry.name: entry.join for _, day in days if day is not None for entry in day.meters}
    sums = ReportSums()

    def counted() -> Iterator[tuple[Cell, ...]]:
        for entry in booked_amounts(engine, zone, *dates, by, meter):
            sums.add_line(entry.meter, entry.value, entry.denied, joins.get(entry.meter, "sum"))
            human = human_cells(entry.value, entry.denied, stored_in.get(entry.meter, "")) if units else ()
            yield (*entry, *human)

    columns = [*BookedAmount._fields, *(HumanCells._fields if units else ())]
    content = ROW_FORMATS[format_].encode(columns, counted())
    _write(content, Contents("corrections", zone, by, days, columns), sums, out)


def _write_events(
    engine: sa.Engine,
    settings: Settings,
    what: str,
    dates: Dates,
    zone: str,
    by: str,
    meter: str | None,
    format_: str,
    out: Path | None,
) -> None:

    prepared = report_sending.prepare(engine, settings, what, dates, zone, by, meter)
    service, sums, left_out = SERVICES[format_], ReportSums(), ReportSums()

    def objects() -> Iterator[Any]:
        for part, maker in prepared.parts:
            for amount in usage_amounts(engine, part):
                customer = maker.find_customer(amount)
                kept = sums if customer else left_out
                kept.add_line(part.meter, amount.value, amount.denied, part.join)
                if customer:
                    yield service.fields(maker.event(amount, customer))

    with progress_bar("events") as advance:
        content = encode_json_lines(advancing(objects(), advance if out else _silent))
        _write(content, Contents("events", zone, by, prepared.days, [format_]), sums, out)
    if left_out.lines:
        amounts = ", ".join(f"{value:,} {meter}" for meter, (value, _) in sorted(left_out.meters.items()))
        say(f"{plural(left_out.lines, 'amount')} without a customer left out: {amounts}", err=True)
