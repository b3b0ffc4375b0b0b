"""`gatelock doctor`: what is wrong with a living installation, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from analyzer.cli.exit_codes import AWAY, FOUND, reporting_errors
from analyzer.cli.options import ConfigOption, JsonOption, settings_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analyzer.doctor import Finding


def doctor(context: typer.Context, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Go through what commonly goes wrong.

    The database, clocks, what is followed and how far behind, what waits for a person, Kafka, the gates, and
    whether they and the log call callers by the same names. Each finding on one line, with what to do. Exit
    code 1 when something is wrong, 3 when the database or Kafka cannot be reached.
    """
    with reporting_errors():
        from analyzer.cli.output import json_lines
        from analyzer.doctor import examine

        found = list(examine(settings_of(context, config)))
        if json:
            json_lines(each._asdict() for each in found)
        else:
            _say(found)
        if any(each.state == "away" for each in found):
            raise typer.Exit(AWAY)
        if any(each.state == "wrong" for each in found):
            raise typer.Exit(FOUND)


def _say(found: Sequence[Finding]) -> None:
    from analyzer.logs import printable

    width = max(len(each.check) for each in found)
    for each in found:
        cure = f"; {each.cure}" if each.cure else ""
        typer.echo(printable(f"{each.state:5}  {each.check:{width}}  {each.what}{cure}"))
    wrong = sum(each.state in ("wrong", "away") for each in found)
    typer.echo(f"\n{wrong} thing{'s are' if wrong != 1 else ' is'} wrong" if wrong else "\nnothing is wrong")
