"""`gatelock sources`: what is followed, by whom, and how far behind."""

from __future__ import annotations

from typing import Annotated

import typer

from analyzer.cli.exit_codes import FOUND, reporting_errors
from analyzer.cli.options import ConfigOption, JsonOption, ReasonOption, database_of, reason_given

app = typer.Typer(help="What is followed, by whom, how far behind.", no_args_is_help=True)


@app.command("list")
def list_(context: typer.Context, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Show every partition that was ever counted.

    How far it is counted, how far behind its analyzer was when it last spoke, and when that was. Exit
    code 1 when one of them is followed by nobody who is heard.
    """
    with reporting_errors(), database_of(context, config) as engine:
        from analyzer.cli.output import json_lines, table
        from analyzer.store.operations.followed_partitions import SILENT_MS, followed

        found = followed(engine)
        if json:
            json_lines(each._asdict() for each in found)
        else:
            rows = [
                [
                    each.source,
                    f"{each.topic}[{each.partition}]",
                    each.next,
                    each.behind_records,
                    f"{each.behind_s:.1f}",
                    "retired" if each.heard_s is None else f"{each.heard_s:.0f} s ago",
                    each.owner,
                ]
                for each in found
            ]
            columns = ["source", "partition", "next", "records behind", "seconds behind", "heard", "analyzer"]
            table(columns, rows, "nothing was read yet")
        if any(each.heard_s is not None and each.heard_s * 1000 > SILENT_MS for each in found):
            raise typer.Exit(FOUND)


@app.command("retire")
def retire(
    context: typer.Context,
    source: Annotated[str, typer.Argument(help="The source's name.")],
    reason: ReasonOption,
    config: ConfigOption = None,
) -> None:
    """Wait no longer for a source that nobody follows.

    Gates stop calling the analyzers behind because of it. What was counted stays; an analyzer that is given
    the source again goes on where it was. Exit code 1 when there was nothing to retire.
    """
    why = reason_given(reason)
    with reporting_errors(), database_of(context, config) as engine:
        from analyzer.cli.operator import operator_name
        from analyzer.store.operations.followed_partitions import retire as retired

        ended = retired(engine, source, operator_name(), why)
        if not ended:
            typer.echo(
                f"{source}: no partition of it is waited for in vain (`gatelock sources list`)", err=True
            )
            raise typer.Exit(FOUND)
        typer.echo(f"{source}: {ended} partition{'s' * (ended > 1)} retired")
