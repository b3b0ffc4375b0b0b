"""Names: one for one thing, in the field's words, and without units where users see them."""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping

import pytest

import gatekeeper
from tests.house.reading import ROOT, modules

# Words that say nothing about a module, or that only this code base used for what the field has a word for.
BANNED_MODULE_NAMES = {
    *("base", "bits", "common", "core_utils", "extra", "functions", "general", "helper", "helpers", "lib"),
    *("misc", "miscellaneous", "other", "shared", "stuff", "things", "tools", "types", "util", "utils"),
    *("advice", "asking", "carried", "causes", "ending", "following", "given", "glance", "held"),
    *("leftovers", "news", "outliving", "person", "pieces", "places", "questions", "showing"),
    *("speech", "story", "telling", "told", "watching"),
}

PER_FRAMEWORK = "one per framework, under the name that users import"
COMMAND = "the command, and what it runs or reads"
TABLE = "the table of the configuration, and what it configures"

# Module names that occur in several packages, and why each of them may.
SHARED_MODULE_NAMES = {
    "asgi": PER_FRAMEWORK,
    "wsgi": PER_FRAMEWORK,
    "file": "where locks are read from, and where a request log is written to",
    "kafka": "where records are read from, and where a request log is written to",
    "audit": COMMAND,
    "gaps": COMMAND,
    "rejects": COMMAND,
    "tokens": COMMAND,
    "usage": COMMAND,
    "clock": "the process's, and the database's",
    "meters": TABLE,
    "policies": TABLE,
    "model": "the values of each of the two packages",
    "options": "of commands, and of Kafka's clients",
    "totals": "how a total grows, and the statement that adds to it",
}

# Classes and aliases of types that are defined in several modules, and why each of them may.
SHARED_TYPE_NAMES = {
    "App": PER_FRAMEWORK,
    "AppResponse": PER_FRAMEWORK,
    "Extractor": PER_FRAMEWORK,
    "Guard": PER_FRAMEWORK,
    "GuardedResponse": PER_FRAMEWORK,
    "Headers": PER_FRAMEWORK,
    "LoggedResponse": PER_FRAMEWORK,
    "RequestLog": PER_FRAMEWORK,
}


def repeated(found: Mapping[str, list[str]]) -> dict[str, list[str]]:
    return {name: places for name, places in found.items() if len(places) > 1}


def types_in(tree: ast.Module) -> Iterator[str]:
    """Yields the classes and aliases of types that a module defines at its top level."""
    for node in tree.body:
        match node:
            case ast.ClassDef():
                yield node.name
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                variable = isinstance(value, ast.Call) and ast.unparse(value.func) in ("TypeVar", "ParamSpec")
                if name[0].isupper() and not name.isupper() and not variable:
                    yield name


def test_no_two_types_have_one_name() -> None:
    """Both packages are one distribution, and a reader searches all of it."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for module in modules().values():
        for name in types_in(module.tree):
            found[name].append(module.name)
    assert {name: places for name, places in repeated(found).items() if name not in SHARED_TYPE_NAMES} == {}
    assert set(SHARED_TYPE_NAMES) - set(repeated(found)) == set(), "not shared any more: delete their lines"


def test_no_two_modules_have_one_name() -> None:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for module in modules().values():
        if module.path.name not in ("__init__.py", "__main__.py"):  # chapters and folders stand above
            found[module.path.stem].append(module.name)
    assert {name: places for name, places in repeated(found).items() if name not in SHARED_MODULE_NAMES} == {}
    assert set(SHARED_MODULE_NAMES) - set(repeated(found)) == set(), "not shared any more: delete their lines"


def test_a_module_is_named_for_its_content() -> None:
    assert [name for name in modules() if BANNED_MODULE_NAMES & set(name.split("."))] == []


def test_a_mutex_is_not_called_a_lock() -> None:
    """A lock denies requests; threads wait for a mutex."""
    found = [
        f"{module.path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for module in modules().values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        if re.search(r"lock\b.*= .*\bR?Lock\(\)", ast.unparse(node))
    ]
    assert found == []


@pytest.mark.parametrize("name", gatekeeper.__all__)
def test_public_names_carry_no_unit(name: str) -> None:
    public = getattr(gatekeeper, name)
    words = [word for word in dir(public) if not word.startswith("_")]
    if callable(public):
        words += inspect.signature(public).parameters
    assert [word for word in words if re.search(r"_(s|ms|us|ns)$", word)] == []


# Words that point at a value without saying what it is.
DEICTIC = {
    *("after", "asked", "at", "before", "found", "given", "here", "it", "known", "meant", "of", "one"),
    *("others", "said", "so", "such", "that", "there", "these", "this", "those", "told", "wanted", "what"),
    *("which", "why"),
}
PART_MAX = 0.01


def bindings(tree: ast.AST) -> Iterator[str]:
    """Yields the names that assignments, loops, parameters, exceptions and patterns bind."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs) and node.name:
            yield node.name


def function_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def part(names: list[str], is_wrong: Callable[[str], bool]) -> float:
    return sum(map(is_wrong, names)) / len(names)


def is_deictic(name: str) -> bool:
    return name.strip("_") in DEICTIC


def test_values_are_named_by_what_they_are() -> None:
    names = [name for module in modules().values() for name in bindings(module.tree)]
    assert part(names, is_deictic) <= PART_MAX, Counter(filter(is_deictic, names)).most_common(10)


def test_functions_are_named_by_what_they_do() -> None:
    names = [name for module in modules().values() for name in function_names(module.tree)]
    wrong = [name for name in names if name.rstrip("_").endswith("_of")]
    assert len(wrong) <= PART_MAX * len(names), wrong


def test_a_name_that_points_is_found() -> None:
    tree = ast.parse("def size_of(what):\n    for one in what:\n        found, rows = one\n")
    assert sorted(filter(is_deictic, bindings(tree))) == ["found", "one", "what"]
    assert [*function_names(tree)] == ["size_of"]
