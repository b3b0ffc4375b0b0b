"""What docstrings show is so."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import analyzer.core

MODULES = [f"analyzer.core.{module.name}" for module in pkgutil.iter_modules(analyzer.core.__path__)]


@pytest.mark.parametrize("name", [*MODULES, "gatekeeper.identity"])
def test_every_example_gives_what_it_shows(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
