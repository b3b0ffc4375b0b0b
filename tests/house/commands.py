"""The commands of `gatelock`, as the table makes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from analyzer.faces.cli import app
from analyzer.faces.cli.command_table import Command, CommandGroup


def names_of(entries: Iterable[Command | CommandGroup], *words: str) -> Iterator[tuple[str, ...]]:
    """Yields the words of every command below `entries` that is not a group itself."""
    for entry in entries:
        if isinstance(entry, CommandGroup):
            yield from names_of(entry.commands, *words, entry.name)
        else:
            yield (*words, entry.name)


class Commands(Mapping[tuple[str, ...], Any]):
    """The commands by their words. Each is made when it is asked for: names are enough to collect tests."""

    def __init__(self) -> None:
        entries = [entry for heading in app.headings for entry in heading.entries]
        self._names = dict.fromkeys(names_of(entries))

    def __getitem__(self, words: tuple[str, ...]) -> Any:
        if words not in self._names:
            raise KeyError(words)
        command: Any = app
        for word in words:
            command = command.get_command(click.Context(command), word)
        return command

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


COMMANDS = Commands()
GROUPS = app.list_commands(click.Context(app))


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
