"""`gatelock events`: what people did by hand."""

from __future__ import annotations

import typer

from analyzer.cli.exit_codes import reporting_errors
from analyzer.cli.options import ConfigOption, JsonOption, SinceOption, database_of, second_given

app = typer.Typer(no_args_is_help=True)


@app.callback()
def events() -> None:  # without it the one command would stand for the group
    """What people did by hand, when and why."""


@app.command("list")
def list_(
    context: typer.Context,
    config: ConfigOption = None,
    json: JsonOption = False,
    since: SinceOption = None,
) -> None:
    """Show every manual act, the latest first."""
    since_s = second_given(since) or 0
    with reporting_errors(), database_of(context, config) as engine:
        from analyzer.cli.output import json_lines, table
        from analyzer.store.database.audit_log import entries
        from gatekeeper.feed.feed_json import time_text

        found = ((time_text(event.at), *event[1:]) for event in entries(engine, since_s * 1000))
        names = ["at", "who", "act", "about", "why"]
        if json:
            json_lines(dict(zip(names, row, strict=True)) for row in found)
        else:
            table(names, found, "nothing was done by hand")
