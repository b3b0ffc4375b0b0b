"""Every command is documented, documented commands exist, and examples give what they show."""

from __future__ import annotations

import doctest
import importlib
import re
from collections.abc import Iterator

import django
import pytest
from django.conf import settings

from tests.house.commands import COMMANDS, words_of
from tests.house.reading import PURE, ROOT, modules, within

DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHOWN = re.compile(r"gatelock((?: +[^ `#|]+)+)")
EXAMPLES = [  # tests/core has those of what is pure
    name
    for name, module in modules().items()
    if ">>> " in module.path.read_text() and not within(name, *PURE)
]


def shown() -> Iterator[tuple[str, tuple[str, ...], list[str]]]:
    """Each place where a command is shown: which page, which command, and its options."""
    for page in DOCS:
        for line in page.read_text().splitlines():
            for found in SHOWN.finditer(line):
                words = found[1].split()
                if command := words_of(words):
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


def test_the_map_of_a_large_room_names_every_file() -> None:
    map_ = set(re.findall(r"`(\w+)`", importlib.import_module("analyzer.sources.kafka").__doc__ or ""))
    assert map_ == {
        name.rpartition(".")[2] for name in modules() if name.startswith("analyzer.sources.kafka.")
    }


@pytest.fixture
def django_project() -> None:
    """Configures Django, whose examples need the settings of a project."""
    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="a test's", LOGGING_CONFIG=None)
        django.setup()


@pytest.mark.usefixtures("django_project")
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_gives_what_it_shows(name: str) -> None:
    tried = doctest.testmod(importlib.import_module(name))
    assert (tried.failed, tried.attempted > 0) == (0, True)
