"""`--help` of every command: one example that parses, and a text for each option."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest

from tests.house.commands import COMMANDS, words_of

EXAMPLE = re.compile(r"^Example: (gatelock .+)$", re.MULTILINE)
LINE_MAX = 78  # a longer line would be wrapped, and could not be copied


each_command = pytest.mark.parametrize("words", COMMANDS, ids=" ".join)


def example_of(help_text: str) -> str:
    """The example of a command. Fails unless there is exactly one."""
    (example,) = EXAMPLE.findall(help_text)
    return str(example)


def parse(example: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The words of the command that the example calls, and its parameters. Raises click's usage errors."""
    arguments = shlex.split(example)[1:]
    words = words_of(arguments)
    shown = len(words) - (arguments[: len(words)] != [*words])
    context = COMMANDS[words].make_context(" ".join(words), arguments[shown:])
    return words, context.params


@each_command
def test_help_has_one_example_that_fits_its_line(words: tuple[str, ...]) -> None:
    example = example_of(COMMANDS[words].help)
    assert len(f"  Example: {example}") <= LINE_MAX


@each_command
def test_the_example_calls_its_command_with_existing_options(words: tuple[str, ...]) -> None:
    called, parameters = parse(example_of(COMMANDS[words].help))
    assert called == words
    assert parameters.keys() == {param.name for param in COMMANDS[words].params} - {"help"}


@each_command
def test_every_option_and_argument_is_described(words: tuple[str, ...]) -> None:
    undescribed = [
        param.name
        for param in COMMANDS[words].params
        if not re.search(r"\w+.*\.$", getattr(param, "help", None) or "")
    ]
    assert undescribed in ([], ["help"])


def test_every_command_that_ends_has_json() -> None:
    """Processes that run until a signal write a log; exports and reports have formats."""
    without = {words for words, command in COMMANDS.items() if "json" not in {p.name for p in command.params}}
    reports = {("billing", "report", "write"), ("billing", "report", "statement")}
    assert without == {("run",), ("serve",)} | reports


@pytest.mark.parametrize(
    "example",
    [
        "gatelock usage --wdith hour",
        "gatelock usage --width fortnight",
        "gatelock locks suspend --reason INC-311",
        "gatelock upkeep gates forget",
        "gatelock billing audit again",
    ],
)
def test_a_wrong_example_is_noticed(example: str) -> None:
    with pytest.raises(Exception, match=r"(?i)no such option|is not one of|missing|unexpected"):
        parse(example)
