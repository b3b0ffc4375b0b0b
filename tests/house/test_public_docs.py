"""Docstrings of the public API: each parameter is described once, and an example runs."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gatekeeper

# Their `__all__` is what the library promises; everything else may change.
PUBLIC = (
    "gatekeeper",
    "gatekeeper.adapters.asgi",
    "gatekeeper.adapters.caller_view_response",
    "gatekeeper.adapters.django",
    "gatekeeper.adapters.fastapi",
    "gatekeeper.adapters.flask",
    "gatekeeper.adapters.queued_requests",
    "gatekeeper.adapters.wsgi",
    "gatekeeper.clock",
    "gatekeeper.identity",
    "gatekeeper.limits",
    "gatekeeper.limits.redis",
    "gatekeeper.model",
    "gatekeeper.requestlog.asgi",
    "gatekeeper.requestlog.confluent",
    "gatekeeper.requestlog.file",
    "gatekeeper.requestlog.kafka",
    "gatekeeper.requestlog.wsgi",
    "gatekeeper.sources",
    "gatekeeper.sources.file",
    "gatekeeper.sources.fixed",
    "gatekeeper.sources.http",
    "gatekeeper.sources.shared_poller",
    "gatekeeper.sources.sql",
    "gatekeeper.telemetry.gate_counts",
    "gatekeeper.telemetry.prometheus",
    "gatekeeper.testing",
)


def public_values() -> Iterator[tuple[str, Any]]:
    """The classes and functions of the public API, by name."""
    seen: set[int] = set()
    for module in PUBLIC:
        for name in getattr(importlib.import_module(module), "__all__", ()):
            value = getattr(importlib.import_module(module), name)
            if (inspect.isclass(value) or inspect.isfunction(value)) and id(value) not in seen:
                seen.add(id(value))
                yield f"{module}.{name}", value


CLASSES: dict[str, type] = {name: value for name, value in public_values() if inspect.isclass(value)}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: value for name, value in public_values() if inspect.isfunction(value)
}


def described(text: str) -> list[str]:
    """The names in the sections Args and Attributes (Google's style) of a docstring."""
    sections = re.findall(r"^(?:Args|Attributes):\n((?:(?:[ ]{4}.*)?\n?)+)", text, re.MULTILINE)
    return [
        name for section in sections for name in re.findall(r"^ {4}\*{0,2}(\w+): \S", section, re.MULTILINE)
    ]


def parameters_of(public: type) -> set[str]:
    # mypy warns that a subclass may have another __init__; here it is of this very class.
    if public.__init__ is object.__init__ and not hasattr(public, "_fields"):  # type: ignore[misc]  # see above
        return set()
    if getattr(public, "_is_protocol", False) or issubclass(public, Exception):
        return set()
    return {
        name
        for name, parameter in inspect.signature(public).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }


def test_the_names_of_gatekeeper_are_imported_loaded_and_exported_alike() -> None:
    """Type checkers read the imports, programs MODULES, and `import *` reads `__all__`."""
    tree = ast.parse(inspect.getsource(gatekeeper))
    imported = {
        node.module: {alias.name for alias in node.names}
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("gatekeeper.")
    }
    loaded = {module: set(names) for module, names in gatekeeper.MODULES.items()}
    assert imported == loaded
    assert sorted(name for names in loaded.values() for name in names) == gatekeeper.__all__
    assert all(hasattr(gatekeeper, name) for name in gatekeeper.__all__)


@pytest.mark.parametrize("name", CLASSES)
def test_each_constructor_parameter_is_described_once(name: str) -> None:
    names = described(inspect.getdoc(CLASSES[name]) or "")
    assert parameters_of(CLASSES[name]) - set(names) == set()
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", CLASSES)
def test_a_public_class_shows_an_example(name: str) -> None:
    public = CLASSES[name]
    if getattr(public, "_is_protocol", False):
        return
    assert ">>> " in (inspect.getdoc(public) or ""), "tests/house/test_documented.py runs it"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_parameter_of_a_public_function_is_described_once(name: str) -> None:
    names = described(inspect.getdoc(FUNCTIONS[name]) or "")
    assert sorted(names) == sorted(inspect.signature(FUNCTIONS[name]).parameters)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_shows_an_example(name: str) -> None:
    assert ">>> " in (inspect.getdoc(FUNCTIONS[name]) or "")


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_is_described_first_by_what_it_is(name: str) -> None:
    first = (inspect.getdoc(CLASSES[name]) or "").splitlines()[0]
    assert first.endswith((".", ":")), "one sentence, understandable alone in an IDE"


def test_every_public_module_says_what_is_public() -> None:
    assert [name for name in PUBLIC if not hasattr(importlib.import_module(name), "__all__")] == []
