"""The commands of `gatelock`, as typer builds them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from analyzer.cli import app


def commands_of(group: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below `group` that is not a group itself, with its words."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_of(command, *words, name)
        else:
            yield (*words, name), command


COMMANDS = dict(commands_of(get_command(app)))
