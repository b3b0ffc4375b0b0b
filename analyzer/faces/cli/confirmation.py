"""Asks before an act that cannot be undone: `--dry-run` shows it, a terminal asks, scripts need `--yes`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import click
from click.exceptions import Exit

from analyzer.faces.cli.described_options import Option
from analyzer.faces.cli.exit_codes import USAGE, usage_error
from analyzer.faces.cli.output import json_lines, say

if TYPE_CHECKING:
    from analyzer.acting.foreseen import Foreseen

YesOption = Annotated[bool, Option("--yes", help="Do it without asking; needed where there is no terminal.")]


def is_confirmed(foreseen: Foreseen, *, yes: bool, dry_run: bool, as_json: bool) -> bool:
    """Returns whether an act is to be done; with `dry_run` shows it and returns False.

    Exits with 2 where it is declined, or there is no terminal to ask on and `yes` is missing.
    """
    if dry_run:
        if as_json:
            json_lines([{**foreseen.fields, "changed": False}])
            return False
        for sentence in foreseen.sentences:
            say(sentence)
        say("nothing was changed; without --dry-run, this is done")
        return False
    if foreseen.is_asked and not yes:
        require_consent(foreseen.text, "Do it?", "confirm with --yes")
    return True


def require_consent(sentence: str, question: str, cure: str) -> None:
    """Asks on a terminal after `sentence`. Exits with 2 if it is declined, and elsewhere with `cure`."""
    if not sys.stdin.isatty():
        raise usage_error(f"{sentence}; {cure}")
    say(sentence, err=True)
    # Not `click.confirm`: it prints a blank on standard output, which others may read.
    click.echo(f"{question} [y/N] ", nl=False, err=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Exit(USAGE)
