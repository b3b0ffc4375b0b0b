"""What users see in an IDE: each public class describes its parameters and shows an example that runs."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator

import pytest

# Their `__all__` is what the library promises; everything else may change.
PUBLIC = (
    "gatekeeper",
    "gatekeeper.adapters.asgi",
    "gatekeeper.adapters.django",
    "gatekeeper.adapters.fastapi",
    "gatekeeper.adapters.flask",
    "gatekeeper.adapters.queued_requests",
    "gatekeeper.adapters.wsgi",
    "gatekeeper.limits",
    "gatekeeper.limits.redis",
    "gatekeeper.requestlog.asgi",
    "gatekeeper.requestlog.file",
    "gatekeeper.requestlog.kafka",
    "gatekeeper.requestlog.wsgi",
    "gatekeeper.sources.file",
    "gatekeeper.sources.fixed",
    "gatekeeper.sources.http",
    "gatekeeper.sources.shared_poller",
    "gatekeeper.sources.sql",
    "gatekeeper.testing",
)


def public_classes() -> Iterator[tuple[str, type]]:
    seen: set[type] = set()
    for module in PUBLIC:
        for name in getattr(importlib.import_module(module), "__all__", ()):
            value = getattr(importlib.import_module(module), name)
            if inspect.isclass(value) and value not in seen:
                seen.add(value)
                yield f"{module}.{name}", value


# Not described yet; gets shorter with each commit and then goes.
UNREVIEWED = (
    "gatekeeper.Decision",
    "gatekeeper.Gate",
    "gatekeeper.Lock",
    "gatekeeper.Refused",
    "gatekeeper.SourceError",
    "gatekeeper.adapters",
    "gatekeeper.requestlog",
    "gatekeeper.sources",
    "gatekeeper.testing",
)
CLASSES = {name: each for name, each in public_classes() if not name.startswith(UNREVIEWED)}


def described(text: str) -> set[str]:
    """The names in the sections Args and Attributes (Google's style) of a docstring."""
    sections = re.findall(r"^(?:Args|Attributes):\n((?:(?:[ ]{4}.*)?\n?)+)", text, re.MULTILINE)
    return {name for section in sections for name in re.findall(r"^ {4}(\w+): \S", section, re.MULTILINE)}


def parameters_of(public: type) -> set[str]:
    if public.__init__ is object.__init__ and not hasattr(public, "_fields"):  # type: ignore[misc]
        return set()
    if getattr(public, "_is_protocol", False) or issubclass(public, Exception):
        return set()
    return {
        name
        for name, parameter in inspect.signature(public).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }


@pytest.mark.parametrize("name", CLASSES)
def test_each_constructor_parameter_is_described_once(name: str) -> None:
    public = CLASSES[name]
    assert parameters_of(public) - described(inspect.getdoc(public) or "") == set()


@pytest.mark.parametrize("name", CLASSES)
def test_a_public_class_shows_an_example(name: str) -> None:
    public = CLASSES[name]
    if getattr(public, "_is_protocol", False):
        return
    assert ">>> " in (inspect.getdoc(public) or ""), "tests/house/test_documented.py runs it"
