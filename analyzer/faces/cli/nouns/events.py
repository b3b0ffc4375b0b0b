"""`gatelock events`: the audit log."""

from __future__ import annotations

import typer

from analyzer.faces.cli.exit_codes import reporting_errors
from analyzer.faces.cli.options import (
    ConfigOption,
    JsonOption,
    SinceOption,
    open_database,
    parse_time,
    second_at,
)

app = typer.Typer(no_args_is_help=True)


@app.callback()
def events() -> None:  # with a callback, typer does not take the one command for the group
    """Acts of operators, and changes of the plan."""


@app.command("list")
def list_(
    context: typer.Context,
    config: ConfigOption = None,
    json: JsonOption = False,
    since: SinceOption = None,
) -> None:
    """Show what operators did, and what changed the plan, the latest first.

    Lists for each event its time, the operator or analyzer, the object, and the reason or the difference.
    Sources that were renamed in a configuration are listed, too.

    Example: gatelock events list --since 7d
    """
    begin = parse_time(since)
    with reporting_errors(), open_database(context, config) as engine:
        from analyzer.faces.cli.output import json_lines, table
        from analyzer.kernel.database.audit_log import entries
        from gatekeeper.feed.feed_json import time_text

        since_ms = second_at(engine, begin) * 1000
        found = ((time_text(event.at), *event[1:5]) for event in entries(engine, since_ms))
        names = ["at", "who", "act", "about", "why"]
        if json:
            json_lines(dict(zip(names, row, strict=True)) for row in found)
        else:
            table(names, found, "no action was recorded")
