"""Commands that messages name in backticks: each is whole, so that it can be run as it is printed."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.house.commands import COMMANDS, GROUPS, words_of
from tests.house.reading import ROOT

COMMAND = re.compile(r"`(gatelock [^`\n]+)`")
LINE = re.compile(rf"^gatelock (?:{'|'.join(GROUPS)}) [^`]*[^`\s]$")  # a text that is a command, and no more
VALUE = re.compile(r"\{[^{}]*\}|%s")
USAGE_ERROR = click.UsageError
# What stands for a value that only the reader knows, and a value for it.
PLACEHOLDERS = {
    "CALLER": "api_key:acme",
    "DATE": "2026-11-20",
    "FILE": "access.log",
    "FORMAT": "lago",
    "NAME": "shop",
    "NUMBER": "3",
    "PARTITION": "access-log[3]",
    "SCOPE": "read",
    "TEXT": "a reason",
    "WHY": "a reason",
}
# Help of options that names a command as a whole.
ABOUT = {"billing report", "billing report write"}


def texts_of(source: str) -> Iterator[str]:
    """Yields the texts of a module, values as {...}, without its docstrings."""
    tree = [*ast.walk(ast.parse(source))]
    parts_of_others = {id(part) for node in tree if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in tree:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            parts_of_others.add(id(node.value))  # a docstring
    for node in tree:
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and id(node) not in parts_of_others:
            yield str(node.value)


def printed_commands() -> list[tuple[str, str]]:
    """Returns each command that the packages name, once, with a module that does."""
    paths = [*ROOT.glob("analyzer/**/*.py"), *ROOT.glob("gatekeeper/**/*.py")]
    sources = {path: path.read_text() for path in paths}
    found = {
        command: str(Path(path).relative_to(ROOT))
        for path, source in sources.items()
        if "gatelock " in source  # most have none, and are not parsed
        for text in texts_of(source)
        for command in [*COMMAND.findall(text), *LINE.findall(text)]
    }
    return sorted(found.items())


def fault_of(command: str) -> str:
    """Returns why a command cannot be run as printed; "" if it can."""
    arguments = [
        PLACEHOLDERS.get(word, word) for word in shlex.split(VALUE.sub("1", command), comments=True)[1:]
    ]
    words = words_of(arguments)
    if " ".join(arguments) in ABOUT or arguments[-1] == "--help":
        return "" if words or arguments[0] in GROUPS else "there is no such command"
    if not words:
        return "there is no such command"
    named = len(words) - (arguments[: len(words)] != [*words])
    try:
        COMMANDS[words].make_context(" ".join(words), arguments[named:])
    except USAGE_ERROR as error:
        return str(error)
    return ""


def test_every_command_that_a_message_names_can_be_run_as_printed() -> None:
    printed = printed_commands()
    assert len(printed) > 50
    faults = {command: (module, fault) for command, module in printed if (fault := fault_of(command))}
    assert faults == {}


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("gatelock upkeep sources retire web", "reason"),
        ("gatelock locks unlock {} --policy {} --reason TEXT", ""),
        ("gatelock locks open", "no such command"),
        ("gatelock upkeep tokens create", "Missing"),
        ("gatelock billing days list --until DATE", "--until"),
    ],
)
def test_a_command_that_is_not_whole_is_found(command: str, fault: str) -> None:
    assert fault in fault_of(command)
    assert bool(fault) is bool(fault_of(command))
