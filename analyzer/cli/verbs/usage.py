"""`gatelock usage`: counts by caller and time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from analyzer.cli.exit_codes import FOUND, reporting_errors, usage_error
from analyzer.cli.options import (
    ConfigOption,
    JsonOption,
    SinceOption,
    UntilOption,
    load_settings,
    open_database,
    parse_time,
    require_kind,
)
from analyzer.cli.output import say

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    import sqlalchemy as sa

    from analyzer.core.counting.groupings import Grouping
    from analyzer.core.counting.meter_units import Unit
    from analyzer.core.judging.windows import Calendar
    from analyzer.store.reports.usage import UsageQuery, UsageRow


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


NO_KEY = "(none)"  # of records without the field that they are counted by
ByOption = Annotated[
    str,
    typer.Option(
        metavar="GROUPING",
        help="What to group by: caller, tenant, resource, address, address/24, address6/56 or everyone; "
        "caller+resource splits by resource.",
    ),
]
TopOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="COUNT",
        help="Only so many rows: those with the most of --meter, or requests, the largest first.",
    ),
]
WIDTHS_S = {Width.MINUTE: 60, Width.HOUR: 3600, Width.DAY: 86_400}


class Shown(NamedTuple):
    """The grouping, the buckets and the units by which rows are printed."""

    grouping: Grouping
    width_s: int | None  # None: calendar windows
    calendar: Calendar
    zone: ZoneInfo
    units: Mapping[str, Unit]

    @property
    def key(self) -> str:
        """The name of the key's column: the field that it is made of, or "everyone"."""
        return self.grouping.name if self.grouping.key is None else self.grouping.key.field

    def start(self, row: UsageRow) -> str:
        """The beginning of the row's stretch of time, RFC 3339, in the report's zone."""
        from datetime import datetime

        from analyzer.cli.output import format_second

        if self.zone.key == "UTC":
            return format_second(row.bucket_s)
        return datetime.fromtimestamp(row.bucket_s, self.zone).isoformat()

    def is_regular(self, row: UsageRow) -> bool:
        """Whether the row has the width that was asked for; counts of long ago may have a wider one."""
        from analyzer.core.judging.windows import window_at

        if self.width_s is not None:
            return row.width_s == self.width_s
        return tuple(window_at(self.calendar, row.bucket_s)) == (row.bucket_s, row.bucket_s + row.width_s)


def usage(
    context: typer.Context,
    config: ConfigOption = None,
    json: JsonOption = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, with the names of the columns.")] = False,
    width: Annotated[Width, typer.Option(help="Length of a bucket.")] = Width.DAY,
    zone: Annotated[
        str, typer.Option(metavar="ZONE", help="Time zone of hours, days, weeks and months.")
    ] = "UTC",
    by: ByOption = "caller",
    since: SinceOption = None,
    until: UntilOption = None,
    caller: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only this caller, with its kind in front: api_key:acme."),
    ] = None,
    meter: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this meter, such as requests.")
    ] = None,
    sort: Annotated[
        SortBy,
        typer.Option(help="Order of the rows; by value or denied, the largest first, of one --meter."),
    ] = SortBy.TIME,
    top: TopOption = None,
) -> None:
    """Show what was counted.

    Requests that a gate denied are in the column denied, not in value. Old minutes are kept as quarters of an
    hour and later as days in UTC; these are shown with their width, in JSON as width_s. Exit code 1 if
    nothing was ever counted for --caller.

    Example: gatelock usage --width month --zone Europe/Berlin --sort value
    """
    if json and csv:
        raise usage_error("--json and --csv exclude each other")
    with reporting_errors():
        at_zone = _parse_zone(zone)
        from_s, until_s = parse_time(since, at_zone), parse_time(until, at_zone)
        name = require_kind(caller)
        if from_s is not None and until_s is not None and from_s >= until_s:
            raise usage_error(f"--from {since} is not before --to {until}")
        grouping = _parse_grouping(by)
        if name is not None and not grouping.is_of_callers:
            raise usage_error(f"--caller {caller}: counts by {grouping.name} have no caller; remove --caller")
        with open_database(context, config) as engine:
            from analyzer.core.judging.windows import Calendar
            from analyzer.store.reports.usage import UsageQuery

            _require_known(engine, grouping, meter)
            width_s = WIDTHS_S.get(width) if zone == "UTC" or width is Width.MINUTE else None
            units = load_settings(context, config).units()
            shown = Shown(grouping, width_s, Calendar(width.value, zone), at_zone, units)
            query = UsageQuery(grouping.name, width_s or 0, from_s, until_s, name, meter, top, sort.value)
            _print(_rows(engine, query, shown), shown, as_json=json, as_csv=csv, empty=_empty(engine, query))


def _rows(engine: sa.Engine, query: UsageQuery, shown: Shown) -> Iterator[UsageRow]:
    from analyzer.store.reports.usage import usage_rows
    from analyzer.store.reports.usage_windows import TooManyWindows, calendar_rows

    if shown.width_s is not None:
        return usage_rows(engine, query)
    try:
        return calendar_rows(engine, query, shown.calendar)
    except TooManyWindows as error:
        raise usage_error(f"{error}: write a later --from, an earlier --to, or a wider --width") from error


def _parse_zone(name: str) -> ZoneInfo:
    from zoneinfo import ZoneInfo, available_timezones

    from analyzer.config.values import suggestion

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        cure = suggestion(name, available_timezones(), "write a name such as Europe/Berlin")
        raise usage_error(f"--zone {name}: is not a time zone; {cure}") from error


def _parse_grouping(name: str) -> Grouping:
    from analyzer.core.counting.groupings import grouping_of

    try:
        return grouping_of(name)
    except ValueError as error:
        raise usage_error(f"--by: {error}") from error


def _require_known(engine: sa.Engine, grouping: Grouping, meter: str | None) -> None:
    """Exits with 2 for a grouping or meter that nothing was counted by."""
    from analyzer.config.values import suggestion
    from analyzer.store.reports.usage import is_counted
    from analyzer.store.reports.usage_windows import counted_meters

    if grouping.name != "caller" and not is_counted(engine, grouping.name):
        raise usage_error(
            f"nothing was counted by {grouping.name}: "
            f'write groupings = ["{grouping.name}"] in [[sources]] to count by it'
        )
    if meter is not None and meter not in (known := counted_meters(engine)):
        otherwise = f"use one of {', '.join(known)}" if known else "nothing was counted yet"
        raise usage_error(f"--meter {meter}: no such meter; {suggestion(meter, known, otherwise)}")


def _empty(engine: sa.Engine, query: UsageQuery) -> Iterator[str]:
    """Yields why there is no row, when it is asked for. Ends with exit code 1 for an unknown caller."""
    from analyzer.cli.output import format_second
    from analyzer.config.values import closest
    from analyzer.store.reports.usage_windows import counted_range, recent_keys, was_counted

    counted = counted_range(engine, query.grouping)
    if counted is None:
        yield "nothing was counted"
        return
    span = f"between {format_second(counted.start_s)} and {format_second(counted.until_s)}"
    if query.key is not None and not was_counted(engine, query.grouping, query.key):
        match = closest(query.key, recent_keys(engine, query.grouping))
        yield f"nothing was ever counted for {query.key}" + (f"; did you mean {match}?" if match else "")
        raise typer.Exit(FOUND)
    yield f"nothing was counted in this time; there are counts {span}"


def _print(
    rows: Iterator[UsageRow], shown: Shown, *, as_json: bool, as_csv: bool, empty: Iterator[str]
) -> None:
    from itertools import chain

    from analyzer.cli.output import csv_lines, json_lines, table
    from analyzer.logs import printable

    first = next(rows, None)
    if first is None:
        # On stderr where a program reads the output.
        for sentence in empty:
            say(printable(sentence), err=as_json or as_csv)
        return
    rows = chain([first], rows)
    if as_json:
        json_lines(_objects(rows, shown))
        return
    by_resource = shown.grouping.resource is not None
    columns = ["bucket", shown.key, *(["resource"] if by_resource else []), "meter", "value", "denied"]
    if as_csv:
        csv_lines([*columns, "unit", "width_s"], _csv_cells(rows, shown, by_resource=by_resource))
    else:
        table(columns, _cells(rows, shown, by_resource=by_resource), "nothing was counted", numbers=2)


def _cells(rows: Iterable[UsageRow], shown: Shown, *, by_resource: bool) -> Iterator[list[object]]:
    from analyzer.core.counting.meter_units import amount_text

    for row in rows:
        width = "" if shown.is_regular(row) else f" ({row.width_s} s)"
        unit = shown.units.get(row.meter)
        yield [
            shown.start(row) + width,
            row.key or NO_KEY,
            *([row.resource or NO_KEY] if by_resource else []),
            row.meter,
            amount_text(row.value, unit),
            amount_text(row.denied, unit),
        ]


def _csv_cells(rows: Iterable[UsageRow], shown: Shown, *, by_resource: bool) -> Iterator[list[object]]:
    from analyzer.core.counting.meter_units import STORED_IN

    for row in rows:
        resource = [row.resource] if by_resource else []
        unit = STORED_IN.get(shown.units.get(row.meter, ""), "")
        yield [shown.start(row), row.key, *resource, row.meter, row.value, row.denied, unit, row.width_s]


def _objects(rows: Iterable[UsageRow], shown: Shown) -> Iterator[dict[str, object]]:
    from analyzer.core.counting.meter_units import STORED_IN

    for row in rows:
        unit = shown.units.get(row.meter)
        yield {
            shown.key: row.key,
            **({} if shown.key == "resource" else {"resource": row.resource}),
            "meter": row.meter,
            "bucket": shown.start(row),
            "value": row.value,
            "denied": row.denied,
            **({} if unit is None else {"unit": STORED_IN[unit]}),
            **({} if row.width_s == shown.width_s else {"width_s": row.width_s}),
        }
