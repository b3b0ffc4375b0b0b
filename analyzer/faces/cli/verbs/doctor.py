"""`gatelock doctor`: examines a running installation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click import Context
from click.exceptions import Exit

from analyzer.faces.cli.exit_codes import FOUND, UNREACHABLE, reporting_errors
from analyzer.faces.cli.options import ConfigOption, JsonOption, load_settings
from analyzer.faces.cli.output import json_lines, say
from analyzer.faces.signals.doctor.examination import examine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analyzer.faces.signals.doctor.observations import Finding


def doctor(context: Context, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Check a running installation for common problems.

    Checks the database, clocks, the plan, sources and their lag, stopped partitions, rejected records,
    tokens, gates, names of callers and Kafka. Prints one line for each finding, with what to do. Changes
    nothing. Exit code 1 if something is wrong, 3 if the database or Kafka cannot be reached.

    Example: gatelock doctor --json
    """
    with reporting_errors():
        findings = list(examine(load_settings(context, config)))
        if json:
            json_lines(finding._asdict() for finding in findings)
        else:
            _print(findings)
        states = {finding.state for finding in findings}
        if "away" in states:
            raise Exit(UNREACHABLE)
        if "wrong" in states:
            raise Exit(FOUND)


def _print(findings: Sequence[Finding]) -> None:
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        cure = f"; {finding.cure}" if finding.cure else ""
        say(f"{finding.state:5}  {finding.check:{width}}  {finding.what}{cure}")
    wrong = sum(finding.state in ("wrong", "away") for finding in findings)
    say(f"\n{wrong} thing{'s are' if wrong != 1 else ' is'} wrong" if wrong else "\nnothing is wrong")
