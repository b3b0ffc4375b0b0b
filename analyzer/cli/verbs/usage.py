"""`gatelock usage`: what was counted, per caller and stretch of time."""

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
    caller_given,
    database_of,
    second_given,
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
    width: Annotated[Width, typer.Option(help="How long each stretch is, from midnight UTC.")] = Width.DAY,
    by: Annotated[By, typer.Option(help="For whom it was counted.")] = By.CALLER,
    since: SinceOption = None,
    until: Annotated[
        str | None, typer.Option("--to", help="First moment that is not wanted any more.")
    ] = None,
    caller: Annotated[str | None, typer.Option(help="Only this one, as in api_key:acme.")] = None,
    meter: Annotated[str | None, typer.Option(help="Only this one, as in requests.")] = None,
) -> None:
    """Show what was counted. What was refused is counted apart, as denied.

    Minutes of long ago are kept as quarters of an hour, and later as days: they are shown as wide as
    they are, with their width_s in JSON.
    """
    with reporting_errors():
        from_s, until_s, name = second_given(since), second_given(until), caller_given(caller)
        if from_s is not None and until_s is not None and from_s >= until_s:
            raise usage_error(f"--from {since} is not before --to {until}")
        with database_of(context, config) as engine:
            from analyzer.store.reports.usage import UsageQuery, is_counted, usage_rows

            if by is not By.CALLER and not is_counted(engine, by.value):
                setting = f'groupings = ["{by.value}"]'
                raise usage_error(
                    f"nothing was counted by {by.value}: write {setting} in [[sources]], and it will be"
                )
            asked = UsageQuery(by.value, WIDTHS_S[width], from_s, until_s, name, meter)
            _show(usage_rows(engine, asked), asked.width_s, by=by, as_json=json)


def _show(rows: Iterable[UsageRow], width_s: int, *, by: By, as_json: bool) -> None:
    from analyzer.cli.output import json_lines, table, time_of

    if as_json:
        json_lines(_objects(rows, width_s))
        return
    cells = (
        (
            time_of(row.bucket_s) + (f" ({row.width_s} s)" if row.width_s != width_s else ""),
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
    from analyzer.cli.output import time_of

    for row in rows:
        yield {
            "caller": row.key,
            "resource": row.resource,
            "meter": row.meter,
            "bucket": time_of(row.bucket_s),
            "value": row.value,
            "denied": row.denied,
            **({"width_s": row.width_s} if row.width_s != width_s else {}),
        }
