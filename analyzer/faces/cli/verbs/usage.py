"""`gatelock usage`: counts by caller and time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, Annotated
from zoneinfo import ZoneInfo

from click import Context
from click.exceptions import Exit

from analyzer.callers.counted_names import never_counted
from analyzer.config.values import suggestion, zone_cure
from analyzer.counting.usage import UsageQuery, counted_values, is_counted, usage_rows
from analyzer.counting.usage_windows import (
    TooManyWindows,
    calendar_rows,
    counted_meters,
    counted_range,
    final_until_s,
)
from analyzer.faces.cli.described_options import Option
from analyzer.faces.cli.exit_codes import FOUND, reporting_errors, usage_error
from analyzer.faces.cli.options import (
    ConfigOption,
    JsonOption,
    SinceOption,
    UntilOption,
    counted_caller,
    load_settings,
    open_database,
    parse_time,
    range_at,
)
from analyzer.faces.cli.output import say
from analyzer.faces.cli.usage_report import UsageReport, requests_first
from analyzer.kernel.time_texts import format_second
from analyzer.plan.groupings import known_grouping, parse_grouping
from analyzer.plan.windows import Calendar

if TYPE_CHECKING:
    import sqlalchemy as sa

    from analyzer.counting.usage import UsageRow
    from analyzer.plan.groupings import Grouping
    from analyzer.plan.meter_units import Unit


class Width(StrEnum):
    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"


class SortBy(StrEnum):
    TIME = "time"
    NAME = "name"
    VALUE = "value"
    DENIED = "denied"


ByOption = Annotated[
    str,
    Option(
        metavar="GROUPING",
        help="What to group by: caller, tenant, resource, address, address/24, address6/56 or everyone; "
        "caller+resource splits by resource. Also those of [[groupings]].",
    ),
]
TopOption = Annotated[
    int | None,
    Option(
        min=1,
        metavar="COUNT",
        help="Only so many rows: those with the most of --meter, or requests, the largest first.",
    ),
]
WIDTHS_S = {Width.MINUTE: 60, Width.HOUR: 3600, Width.DAY: 86_400}


def usage(
    context: Context,
    config: ConfigOption = None,
    json: JsonOption = False,
    csv: Annotated[bool, Option("--csv", help="Print CSV, with the names of the columns.")] = False,
    width: Annotated[Width, Option(help="Length of a bucket.")] = Width.DAY,
    zone: Annotated[str, Option(metavar="ZONE", help="Time zone of hours, days, weeks and months.")] = "UTC",
    by: ByOption = "caller",
    since: SinceOption = None,
    until: UntilOption = None,
    caller: Annotated[
        str | None,
        Option(metavar="NAME", help="Only this caller, with its kind in front: api_key:acme."),
    ] = None,
    meter: Annotated[str | None, Option(metavar="NAME", help="Only this meter, such as requests.")] = None,
    sort: Annotated[
        SortBy,
        Option(help="Order of the rows; by value or denied, the largest first, of one --meter."),
    ] = SortBy.TIME,
    top: TopOption = None,
) -> None:
    """Show what was counted.

    Each meter has a column, and one for what a gate denied of it. Rows that records may still be added to
    are marked as provisional. Old minutes are kept as quarters of an hour and later as days in
    UTC; these are shown with their width, in JSON as width_s. Exit code 1 if nothing was ever counted for
    --caller.

    Example: gatelock usage --width month --zone Europe/Berlin --sort value
    """
    if json and csv:
        raise usage_error("--json and --csv exclude each other")
    with reporting_errors():
        at_zone = _parse_zone(zone)
        begin, end = parse_time(since, at_zone), parse_time(until, at_zone)
        settings = load_settings(context, config)
        grouping = _parse_grouping(context, config, by, settings.named_values)
        if caller is not None and not grouping.is_of_callers:
            raise usage_error(f"--caller {caller}: counts by {grouping.name} have no caller; remove --caller")
        with open_database(context, config) as engine:
            from_s, until_s = range_at(engine, begin, end)
            name = None if caller is None else counted_caller(context, config, engine, caller)
            meters = _known_meters(engine, grouping, meter)
            width_s = WIDTHS_S.get(width) if zone == "UTC" or width is Width.MINUTE else None
            query = UsageQuery(grouping.name, width_s or 0, from_s, until_s, name, meter, top, sort.value)
            units = settings.units()
            report = _report(engine, query, grouping, meters, units, at_zone, width)
            rows = _rows(engine, query, report)
            first = next(rows, None)
            if first is None:
                _say_why(engine, query, err=json or csv)  # not where a program reads
            else:
                printer = report.print_json if json else report.print_csv if csv else report.print_table
                printer(chain([first], rows))


def _rows(engine: sa.Engine, query: UsageQuery, report: UsageReport) -> Iterator[UsageRow]:

    if report.width_s is not None:
        return usage_rows(engine, query)
    try:
        return calendar_rows(engine, query, report.calendar)
    except TooManyWindows as error:
        raise usage_error(f"{error}: write a later --from, an earlier --to, or a wider --width") from error


def _parse_zone(name: str) -> ZoneInfo:

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise usage_error(f"--zone {name}: is not a time zone; {zone_cure(name)}") from error


def _parse_grouping(
    context: Context, config: ConfigOption, name: str, named_values: Collection[str]
) -> Grouping:
    """The grouping of `--by`; one by a named value that is not configured any more was counted once."""
    try:
        if not set(parse_grouping(name).named_values) <= set(named_values):
            with open_database(context, config) as engine:
                return known_grouping(name, {*named_values, *counted_values(engine)})
        return parse_grouping(name)
    except ValueError as error:
        raise usage_error(f"--by: {error}") from error


def _known_meters(engine: sa.Engine, grouping: Grouping, meter: str | None) -> list[str]:
    """The meters that were counted, `requests` first.

    Exits with 2 for a grouping that nothing was counted by, and for a `meter` that is none of them.
    """
    if grouping.name != "caller" and not is_counted(engine, grouping.name):
        raise usage_error(
            f"nothing was counted by {grouping.name}: "
            f'write groupings = ["{grouping.name}"] in [[sources]] to count by it'
        )
    meters = counted_meters(engine)
    if meter is not None and meter not in meters:
        otherwise = f"use one of {', '.join(meters)}" if meters else "nothing was counted yet"
        raise usage_error(f"--meter {meter}: no such meter; {suggestion(meter, meters, otherwise)}")
    return sorted(meters, key=requests_first)


def _report(
    engine: sa.Engine,
    query: UsageQuery,
    grouping: Grouping,
    meters: Sequence[str],
    units: Mapping[str, Unit],
    zone: ZoneInfo,
    width: Width,
) -> UsageReport:

    return UsageReport(
        grouping=grouping,
        width_s=query.width_s or None,
        calendar=Calendar(width.value, zone.key),
        zone=zone,
        units=units,
        meters=[meter for meter in meters if query.meter_read in (None, meter)],
        final_until_s=final_until_s(engine),
    )


def _say_why(engine: sa.Engine, query: UsageQuery, *, err: bool) -> None:
    """Says why there is no row. Exits with 1 for an unknown caller."""
    counted = counted_range(engine, query.grouping)
    if counted is None:
        say("nothing was counted", err=err)
    elif query.key is not None and (absence := never_counted(engine, query.key, query.grouping)) is not None:
        say(str(absence), err=err)
        raise Exit(FOUND)
    else:
        span = f"between {format_second(counted.start_s)} and {format_second(counted.until_s)}"
        say(f"nothing was counted in this time; there are counts {span}", err=err)
