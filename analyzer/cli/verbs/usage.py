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
    from analyzer.store.reports.usage import UsageRow


class Width(StrEnum):
    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"


class By(StrEnum):
    CALLER = "caller"
    CALLER_RESOURCE = "caller+resource"


WIDTHS_S = {Width.MINUTE: 60, Width.HOUR: 3600, Width.DAY: 86_400}


def usage(
    context: typer.Context,
    config: ConfigOption = None,
    json: JsonOption = False,
    width: Annotated[Width, typer.Option(help="Length of a bucket, from midnight UTC.")] = Width.DAY,
    by: Annotated[By, typer.Option(help="Grouping of the counts.")] = By.CALLER,
    since: SinceOption = None,
    until: UntilOption = None,
    caller: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only this caller, with its kind in front: api_key:acme."),
    ] = None,
    meter: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this meter, such as requests.")
    ] = None,
) -> None:
    """Show what was counted.

    Requests that a gate denied are in the column denied, not in value. Old minutes are kept as quarters of an
    hour and later as days; these are shown with their width, in JSON as width_s.

    Example: gatelock usage --by caller --width hour --from today
    """
    with reporting_errors():
        from_s, until_s, name = parse_time(since), parse_time(until), require_kind(caller)
        if from_s is not None and until_s is not None and from_s >= until_s:
            raise usage_error(f"--from {since} is not before --to {until}")
        with open_database(context, config) as engine:
            from analyzer.store.reports.usage import UsageQuery, is_counted, usage_rows

            if by is not By.CALLER and not is_counted(engine, by.value):
                raise usage_error(
                    f"nothing was counted by {by.value}: "
                    f'write groupings = ["{by.value}"] in [[sources]] to count by it'
                )
            query = UsageQuery(by.value, WIDTHS_S[width], from_s, until_s, name, meter)
            _print(usage_rows(engine, query), query.width_s, by=by, as_json=json)


def _print(rows: Iterable[UsageRow], width_s: int, *, by: By, as_json: bool) -> None:
    from analyzer.cli.output import format_second, json_lines, table

    if as_json:
        json_lines(_objects(rows, width_s))
        return
    cells = (
        (
            format_second(row.bucket_s) + (f" ({row.width_s} s)" if row.width_s != width_s else ""),
            row.key,
            *([row.resource] if by is By.CALLER_RESOURCE else []),
            row.meter,
            row.value,
            row.denied,
        )
        for row in rows
    )
    resource = ["resource"] if by is By.CALLER_RESOURCE else []
    table(["bucket", "caller", *resource, "meter", "value", "denied"], cells, "nothing was counted")


def _objects(rows: Iterable[UsageRow], width_s: int) -> Iterator[dict[str, object]]:
    from analyzer.cli.output import format_second

    for row in rows:
        yield {
            "caller": row.key,
            "resource": row.resource,
            "meter": row.meter,
            "bucket": format_second(row.bucket_s),
            "value": row.value,
            "denied": row.denied,
            **({"width_s": row.width_s} if row.width_s != width_s else {}),
        }
