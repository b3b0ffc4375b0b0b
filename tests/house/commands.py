"""The commands of `gatelock`, as typer builds them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from typer.main import get_command

from analyzer.faces.cli import app


def commands_of(group: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below `group` that is not a group itself, with its words."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_of(command, *words, name)
        else:
            yield (*words, name), command


GATELOCK: Any = get_command(app)
GROUPS = GATELOCK.commands
COMMANDS = dict(commands_of(GATELOCK))


def words_of(arguments: Sequence[str]) -> tuple[str, ...]:
    """The words of the command that arguments call; () if they call none.

    `gatelock report day` is short for `gatelock report write day`.
    """
    default = getattr(GROUPS.get(arguments[0]) if arguments else None, "default", "")
    for words in (tuple(arguments[:2]), tuple(arguments[:1]), (*arguments[:1], default)):
        if words in COMMANDS:
            return words
    return ()
