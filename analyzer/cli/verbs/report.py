"""`gatelock report`: what was counted of closed days, for invoices."""

from __future__ import annotations

import re
import sys
from datetime import date, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from analyzer.cli.billing_options import date_of, zone_of
from analyzer.cli.exit_codes import FOUND, reporting_errors, usage_error
from analyzer.cli.options import ConfigOption, load_settings, open_database
from analyzer.cli.output import say

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sqlalchemy as sa

    from analyzer.config.settings import Settings
    from analyzer.store.reports.billed_days.day_report import Report


class Format(StrEnum):
    CSV = "csv"
    JSONL = "jsonl"


RANGE = re.compile(r"(\d{4}-\d{2}-\d{2})\.\.(\d{4}-\d{2}-\d{2})")
PERIODS = ("day", "week", "month")
CORRECTIONS = "corrections"
LONGEST = timedelta(days=3_660)


class Dates(NamedTuple):
    """The first and the last date of a report, both included."""

    first: str
    last: str


def report(
    context: typer.Context,
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="day, week, month, corrections; or dates, both included: 2026-11-01..2026-11-20.",
        ),
    ],
    when: Annotated[
        str,
        typer.Argument(
            metavar="[DATE]",
            help="A date in it, yesterday or today; for corrections also dates as above.",
        ),
    ] = "yesterday",
    zone: Annotated[
        str | None,
        typer.Option(metavar="ZONE", help="The zone of the days; default: that of [billing], if it is one."),
    ] = None,
    by: Annotated[
        str, typer.Option(metavar="GROUPING", help="One of the groupings of [billing].")
    ] = "caller",
    meter: Annotated[str | None, typer.Option(metavar="NAME", help="Only this meter.")] = None,
    format_: Annotated[Format, typer.Option("--format", help="Of the output.")] = Format.CSV,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write FILE, and FILE.manifest.json, whole or not at all."),
    ] = None,
    final: Annotated[
        bool, typer.Option("--final", help="Write nothing unless all days are closed; exit code 1.")
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Write what was counted of closed days, for invoices.

    The report of a closed day is the same at any time. Records that came later, and what operators corrected,
    are in `report corrections`, by the day that they are booked on. A day that is not closed yet is
    provisional, as the manifest and a line on standard error say.

    Example: gatelock report month 2026-11 --out november.csv --final
    """
    with reporting_errors(), open_database(context, config) as engine:
        settings = load_settings(context, config)
        named = zone_of(settings, zone)
        if what == CORRECTIONS:
            _corrections(engine, named, _corrected(when, named), by, meter, format_)
            return
        dates = _dates(what, when, named)
        found = _report(engine, named, dates, by, meter)
        open_days = [day.date for day in found.days if day.closed is None]
        if open_days:
            shown = open_days[0] if len(open_days) == 1 else f"{len(open_days)} of {len(found.days)} days"
            say(
                f"provisional: {shown} ({named}) {'is' if len(open_days) == 1 else 'are'} not closed",
                err=True,
            )
            if final:
                raise typer.Exit(FOUND)
        _write(engine, found, settings, format_, out)


def _report(engine: sa.Engine, zone: str, dates: Dates, by: str, meter: str | None) -> Report:
    from analyzer.core.counting.groupings import grouping_of
    from analyzer.store.reports.billed_days.day_report import NotFrozen, report_of

    try:
        grouping_of(by)
        return report_of(engine, zone, *dates, by, meter)
    except NotFrozen as error:
        raise usage_error(
            f"--by {by}: {error}; add it to [billing] groupings for the days to come"
        ) from error
    except LookupError as error:
        raise usage_error(f"--meter: {error.args[0]}") from error
    except ValueError as error:
        raise usage_error(f"--by {error}") from error


def _write(engine: sa.Engine, found: Report, settings: Settings, format_: Format, out: Path | None) -> None:
    from analyzer.report_files.atomic_files import write_whole
    from analyzer.report_files.manifest import MANIFEST, manifest_of
    from analyzer.report_files.report_lines import WRITERS, ReportSums, lines_of
    from analyzer.store.reports.billed_days.day_report import report_rows

    sums = ReportSums()
    lines = lines_of(found, report_rows(engine, found), settings.units(), sums)
    content = WRITERS[format_.value](found, lines)
    if out is None:
        _print(content)
        return
    try:
        written = write_whole(out, content)
        manifest = write_whole(out.with_name(out.name + MANIFEST), [manifest_of(found, sums, [written])])
    except OSError as error:
        raise usage_error(f"--out {out}: cannot be written: {error.strerror}") from error
    state = "final" if found.is_final else "provisional"
    say(f"{out}: {sums.lines:,} lines, {state}; sha256 {written.sha256}; origin: {manifest.name}")


def _print(content: Iterator[bytes]) -> None:
    for part in content:
        sys.stdout.buffer.write(part)
    sys.stdout.flush()


def _corrections(
    engine: sa.Engine, zone: str, dates: Dates, by: str, meter: str | None, format_: Format
) -> None:
    from analyzer.cli.output import csv_lines, json_lines
    from analyzer.store.reports.billed_days.booked_corrections import BookedAmount, booked_amounts

    found = booked_amounts(engine, zone, *dates, by, meter)
    if format_ is Format.JSONL:
        json_lines(one._asdict() for one in found)
    else:
        csv_lines(BookedAmount._fields, found)


def _corrected(when: str, zone: str) -> Dates:
    return _dates(when, "", zone) if RANGE.fullmatch(when) else _dates("day", when, zone)


def _dates(what: str, when: str, zone: str) -> Dates:
    """The dates of a report. Exits with 2 for a period that is none."""
    if named := RANGE.fullmatch(what):
        first, last = (date_of(text, zone) for text in named.groups())
        if first > last:
            raise usage_error(f"{what}: the first date is behind the last")
        if date.fromisoformat(last) - date.fromisoformat(first) > LONGEST:
            raise usage_error(f"{what}: a report has at most {LONGEST.days:,} days")
        return Dates(first, last)
    if what not in PERIODS:
        raise usage_error(
            f"{what}: write day, week, month, corrections, or dates such as 2026-11-01..2026-11-20"
        )
    month = re.fullmatch(r"(\d{4}-\d{2})", when)
    at = date.fromisoformat(date_of(f"{when}-01" if month and what == "month" else when, zone))
    if what == "week":
        monday = at - timedelta(days=at.weekday())
        return Dates(str(monday), str(monday + timedelta(days=6)))
    if what == "month":
        begin = at.replace(day=1)
        following = (begin + timedelta(days=31)).replace(day=1)
        return Dates(str(begin), str(following - timedelta(days=1)))
    return Dates(str(at), str(at))
