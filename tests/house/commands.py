"""The commands of `gatelock`, as the table makes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from analyzer.faces.cli import LazyGroup, app


def commands_of(group: LazyGroup, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below `group` that is not a group itself, with its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, LazyGroup):
            yield from commands_of(command, *words, name)
        else:
            yield (*words, name), command


COMMANDS = dict(commands_of(app))
GROUPS = app.commands


def words_of(arguments: Sequence[str]) -> tuple[str, ...]:
    """The words of the command that arguments call; () if they call none.

    `gatelock billing report day` is short for `gatelock billing report write day`.
    """
    group: Any = app
    words: tuple[str, ...] = ()
    for argument in arguments:
        if argument not in group.list_commands(click.Context(group)):
            break
        words += (argument,)
        if words in COMMANDS:
            return words
        group = group.get_command(click.Context(group), argument)
    default = (*words, getattr(group, "default", ""))
    return default if default in COMMANDS else ()
