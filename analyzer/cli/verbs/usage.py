"""`gatelock usage`: counts by caller and time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.cli.exit_codes import reporting_errors, usage_error
from analyzer.cli.options import (
    ConfigOption,
    JsonOption,
    SinceOption,
    UntilOption,
    open_database,
    parse_time,
    require_kind,
)

if TYPE_CHECKING:
    from analyzer.core.counting.groupings import Grouping
    from analyzer.store.reports.usage import UsageRow


class Width(StrEnum):
    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"


NO_KEY = "(none)"  # of records without the field that they are counted by
WIDTHS_S = {Width.MINUTE: 60, Width.HOUR: 3600, Width.DAY: 86_400}


def usage(
    context: typer.Context,
    config: ConfigOption = None,
    json: JsonOption = False,
    width: Annotated[Width, typer.Option(help="Length of a bucket, from midnight UTC.")] = Width.DAY,
    by: Annotated[
        str,
        typer.Option(
            metavar="GROUPING",
            help="What to group by: caller, tenant, resource, address, address/24, address6/56 or everyone; "
            "caller+resource splits by resource.",
        ),
    ] = "caller",
    since: SinceOption = None,
    until: UntilOption = None,
    caller: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only this caller, with its kind in front: api_key:acme."),
    ] = None,
    meter: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this meter, such as requests.")
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="COUNT",
            help="Only so many rows: those with the most of --meter, or requests, the largest first.",
        ),
    ] = None,
) -> None:
    """Show what was counted.

    Requests that a gate denied are in the column denied, not in value. Old minutes are kept as quarters of an
    hour and later as days; these are shown with their width, in JSON as width_s.

    Example: gatelock usage --by caller+resource --width hour --from today
    """
    with reporting_errors():
        from_s, until_s, name = parse_time(since), parse_time(until), require_kind(caller)
        if from_s is not None and until_s is not None and from_s >= until_s:
            raise usage_error(f"--from {since} is not before --to {until}")
        grouping = _parse_grouping(by)
        if name is not None and not grouping.is_of_callers:
            raise usage_error(f"--caller {caller}: counts by {grouping.name} have no caller; remove --caller")
        with open_database(context, config) as engine:
            from analyzer.store.reports.usage import UsageQuery, is_counted, usage_rows

            if grouping.name != "caller" and not is_counted(engine, grouping.name):
                raise usage_error(
                    f"nothing was counted by {grouping.name}: "
                    f'write groupings = ["{grouping.name}"] in [[sources]] to count by it'
                )
            query = UsageQuery(grouping.name, WIDTHS_S[width], from_s, until_s, name, meter, top)
            _print(usage_rows(engine, query), query.width_s, grouping, as_json=json)


def _parse_grouping(name: str) -> Grouping:
    from analyzer.core.counting.groupings import grouping_of

    try:
        return grouping_of(name)
    except ValueError as error:
        raise usage_error(f"--by: {error}") from error


def _print(rows: Iterable[UsageRow], width_s: int, grouping: Grouping, *, as_json: bool) -> None:
    from analyzer.cli.output import format_second, json_lines, table

    if as_json:
        json_lines(_objects(rows, width_s, grouping))
        return
    by_resource = grouping.resource is not None
    cells = (
        (
            format_second(row.bucket_s) + (f" ({row.width_s} s)" if row.width_s != width_s else ""),
            row.key or NO_KEY,
            *([row.resource or NO_KEY] if by_resource else []),
            row.meter,
            row.value,
            row.denied,
        )
        for row in rows
    )
    columns = ["bucket", _key_name(grouping), *(["resource"] if by_resource else []), "meter"]
    table([*columns, "value", "denied"], cells, "nothing was counted")


def _objects(rows: Iterable[UsageRow], width_s: int, grouping: Grouping) -> Iterator[dict[str, object]]:
    from analyzer.cli.output import format_second

    key = _key_name(grouping)
    for row in rows:
        yield {
            key: row.key,
            **({} if key == "resource" else {"resource": row.resource}),
            "meter": row.meter,
            "bucket": format_second(row.bucket_s),
            "value": row.value,
            "denied": row.denied,
            **({"width_s": row.width_s} if row.width_s != width_s else {}),
        }


def _key_name(grouping: Grouping) -> str:
    """The name of the key's column: the field that it is made of, or "everyone"."""
    return grouping.name if grouping.key is None else grouping.key.field
