"""The formal model: small configurations give the stated results, and names are those of the code."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from tests.spec.configurations import FOLDER, Configuration, configurations
from tests.support.servers import Missing
from tests.support.servers.report import ServersUsed
from tests.support.servers.tlc import Tlc, find_tlc, outcome_of

SMALL = [one for one in configurations() if one.is_in_tests]
MODULES = sorted(FOLDER.glob("*.tla"))
# `\*   MoveOffsets = analyzer.flush.flush.SqlFlush.move_offsets`
NAMED = re.compile(r"^\\\* {3}(\w+) += ([\w.]+)$", re.MULTILINE)
# `| Flush-crossing | ... | holds, 2,002 states | 2 |`
ROW = re.compile(r"^\| `([\w-]+)` \| .+ \| ([^|]+) \| [\d.,]+ \|$", re.MULTILINE)


@pytest.fixture(scope="session")
def tlc(servers: ServersUsed) -> Tlc:
    try:
        found = find_tlc()
    except Missing as missing:
        servers.lacks("tlc", missing)
    servers.found("tlc", found.version)
    return found


@pytest.mark.parametrize("configuration", SMALL, ids=lambda one: one.name)
def test_a_small_configuration_gives_the_stated_result(tlc: Tlc, configuration: Configuration) -> None:
    found, _ = tlc.check(configuration.module, configuration.path)
    assert found == configuration.expected


def test_small_configurations_are_of_every_module() -> None:
    assert {one.module for one in SMALL} == set(MODULES)
    assert {bool(one.expected.violated) for one in SMALL} == {True, False}


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_names_of_the_model_are_in_the_module_and_in_the_code(module: Path) -> None:
    text = module.read_text()
    named = NAMED.findall(text)
    assert named
    undefined = [name for name, _ in named if not re.search(rf"^{name}(\(.*\))? ==", text, re.MULTILINE)]
    assert undefined == []
    assert [path for _, path in named if not exists(path)] == [], "renamed or removed in the code"


def exists(path: str) -> bool:
    """Whether a module has this function, or a class in it this method."""
    parts = path.split(".")
    for end in range(len(parts) - 1, 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for name in parts[end:]:
            found = getattr(found, name, None)
        return callable(found)
    return False


def test_a_name_that_the_code_does_not_have_is_found() -> None:
    assert exists("analyzer.flush.pipeline.Pipeline.collect")
    for path in (
        "analyzer.flush.pipeline.Pipeline.gather",
        "analyzer.flush.pipeline.collect",
        "analyzer.tube.Pipeline.collect",
    ):
        assert not exists(path)


def test_the_page_lists_every_configuration_with_its_result() -> None:
    listed = dict(ROW.findall((FOLDER / "README.md").read_text()))
    assert listed == {one.name: str(one.expected) for one in configurations()}


def test_an_output_without_a_result_is_an_error() -> None:
    with pytest.raises(AssertionError, match="Parsing or semantic analysis failed"):
        outcome_of("*** Errors: 1\nParsing or semantic analysis failed.")
    unfinished = "No error has been found\n7 distinct states found, 3 states left on queue."
    with pytest.raises(AssertionError, match="3 states left"):
        outcome_of(unfinished)
