"""Fixtures for settings: a clean environment, and a loader of configuration text."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from analyzer.config.settings import Settings, load


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Removes GATELOCK_ variables and the machine's secret files from the environment."""
    for name in os.environ:
        if name.upper().startswith("GATELOCK_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def read(tmp_path: Path) -> Callable[[str], Settings]:
    """Loads the settings of a file with this text."""

    def read(text: str) -> Settings:
        file = tmp_path / "gatelock.toml"
        file.write_text(dedent(text))
        return load(file)

    return read
