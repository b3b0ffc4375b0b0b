"""`gatelock billing report statement`: what one customer used, as a page to print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from click import Context
from click.exceptions import Exit

from analyzer.billing.reports.atomic_files import write_whole
from analyzer.billing.reports.own_periods import MONTH
from analyzer.billing.reports.statement import read_statement
from analyzer.callers.counted_names import never_counted
from analyzer.faces.cli.billing_options import ZoneOption, day_of_period, of_known_names, zone_of
from analyzer.faces.cli.described_options import Argument, Option
from analyzer.faces.cli.exit_codes import FOUND, reporting_errors, usage_error
from analyzer.faces.cli.options import ConfigOption, caller_as_counted, load_settings, open_database
from analyzer.faces.cli.output import say
from analyzer.faces.cli.report_output import print_content, provisional_name
from analyzer.faces.pages.statement_page import statement_html
from analyzer.judging.caller_limits import subject_named

if TYPE_CHECKING:
    import sqlalchemy as sa

    from analyzer.billing.reports.statement import UsageStatement
    from analyzer.config.settings import Settings


def statement(
    context: Context,
    name: Annotated[str, Argument(metavar="NAME", help="A caller, or a tenant as tenant:acme.")],
    *,
    month: Annotated[str, Option(metavar="MONTH", help="In which its period begins, as 2026-11.")],
    zone: ZoneOption = None,
    out: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Write FILE, whole or not at all; of days that are not closed acme.provisional.html for "
            "acme.html.",
        ),
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Write a customer's statement as a page to print.

    One HTML file without scripts, for a browser and A4 paper: the total of each meter, what was booked for
    days of earlier statements and of this one, the use of each day in units that people read and exactly, the
    digest of each day, and the commands that check it. The period is that of `billing report period`.

    Example: gatelock billing report statement acme --month 2026-11
    """
    with reporting_errors(), open_database(context, config) as engine:
        settings = load_settings(context, config)
        zone = zone_of(settings, zone)
        if MONTH.fullmatch(month) is None:
            raise usage_error(f"--month {month}: write a month, such as 2026-11")
        found = _statement(engine, settings, name, month, zone)
        content = statement_html(found, settings.units()).encode()
        if found.open_days:
            verb = "day is" if found.open_days == 1 else "days are"
            say(f"provisional: {found.open_days} {verb} not closed", err=True)
        if out is None:
            print_content([content])
        else:
            _write(out, content, is_final=not found.open_days)


def _statement(engine: sa.Engine, settings: Settings, name: str, month: str, zone: str) -> UsageStatement:
    """Returns the statement. Exits with 1 for a caller or tenant that was never counted."""
    grouping, key = subject_named(name)
    if grouping == "caller":
        name = key = caller_as_counted(engine, settings, name)
    with of_known_names(engine, grouping):
        found = read_statement(engine, name, zone, day_of_period(engine, month, zone))
    if found.is_empty and (absence := never_counted(engine, key, grouping)) is not None:
        say(str(absence), err=True)
        raise Exit(FOUND)
    return found


def _write(out: Path, content: bytes, *, is_final: bool) -> None:

    file = out if is_final else provisional_name(out)
    try:
        written = write_whole(file, [content])
    except OSError as error:
        raise usage_error(f"--out {file}: cannot be written: {error.strerror}") from error
    say(f"{file}: {'final' if is_final else 'provisional'}; sha256 {written.sha256}")
