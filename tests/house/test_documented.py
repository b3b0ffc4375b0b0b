"""Every command and setting is written down, what is shown exists, and examples give what they show."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from typer.main import get_command

from analyzer.cli import app
from analyzer.config import settings
from analyzer.config.tables import analyzer, database, fields, kafka, meters, policies, sources
from tests.house.reading import ROOT, modules, within

DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHOWN = re.compile(r"gatelock((?: +[^ `#|]+)+)")
EXAMPLES = [  # tests/core has those of the core
    name
    for name, module in modules().items()
    if ">>> " in module.path.read_text() and not within(name, "analyzer.core")
]


def commands_of(group: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_of(command, *words, name)
        else:
            yield (*words, name), command


COMMANDS = dict(commands_of(get_command(app)))


def shown() -> Iterator[tuple[str, tuple[str, ...], list[str]]]:
    """Each place where a command is shown: which page, which command, and its options."""
    for page in DOCS:
        for line in page.read_text().splitlines():
            for found in SHOWN.finditer(line):
                words = found[1].split()
                command = tuple(words[:2]) if tuple(words[:2]) in COMMANDS else tuple(words[:1])
                if command in COMMANDS:
                    yield page.name, command, [word for word in words if word.startswith("--")]


def test_every_command_is_shown_somewhere() -> None:
    assert set(COMMANDS) - {command for _, command, _ in shown()} == {("demo",)}, "that one is `make demo`"


def test_no_option_is_shown_that_a_command_has_not() -> None:
    wrong = [
        f"{page}: gatelock {' '.join(command)} {option}"
        for page, command, options in shown()
        for option in options
        if not any(option in param.opts for param in COMMANDS[command].params)
    ]
    assert wrong == []


def test_every_setting_is_on_its_page() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    read = [
        each
        for module in (analyzer, database, fields, kafka, meters, policies, sources, settings)
        for each in vars(module).values()
    ]
    known = {
        field.alias or name
        for each in read
        if inspect.isclass(each) and issubclass(each, BaseModel)
        for name, field in each.model_fields.items()
    }
    assert len(known) > 50
    assert {name for name in known if not re.search(rf"[`(\[{{ ]{re.escape(name)}\b", page)} == set()


def test_the_map_of_a_large_room_names_every_file() -> None:
    map_ = set(re.findall(r"`(\w+)`", importlib.import_module("analyzer.kafka").__doc__ or ""))
    assert map_ == {name.rpartition(".")[2] for name in modules() if name.startswith("analyzer.kafka.")}


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_gives_what_it_shows(name: str) -> None:
    tried = doctest.testmod(importlib.import_module(name))
    assert (tried.failed, tried.attempted > 0) == (0, True)
