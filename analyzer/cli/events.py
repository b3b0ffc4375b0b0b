"""`gatelock events`: what people did by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from analyzer.cli.ending import told, wrong
from analyzer.cli.given import Config, Json, database_of

app = typer.Typer(help="What people did by hand, when and why.", no_args_is_help=True)


@app.callback()
def events() -> None:
    """What people did by hand, when and why."""


@app.command("list")
def list_(
    context: typer.Context,
    config: Config = None,
    json: Json = False,
    since: Annotated[
        str | None,
        typer.Option("--from", help="First moment: a date, a time with its zone, today, yesterday."),
    ] = None,
) -> None:
    """Show every manual act, the latest first."""
    from analyzer.cli.times import second_of

    try:
        since_s = 0 if since is None else second_of(since, datetime.now(UTC))
    except ValueError as error:
        raise wrong(str(error)) from error
    with told(), database_of(context, config) as engine:
        from analyzer.cli.show import json_lines, table
        from analyzer.store.events import recorded
        from gatekeeper.wire import time_text

        found = ((time_text(event.at), *event[1:]) for event in recorded(engine, since_s * 1000))
        names = ["at", "who", "act", "about", "why"]
        if json:
            json_lines(dict(zip(names, row, strict=True)) for row in found)
        else:
            table(names, found, "nothing was done by hand")
