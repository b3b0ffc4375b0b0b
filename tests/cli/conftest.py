"""Fixtures for commands: an empty working directory, a configuration, and ways to run a command."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.kernel.database.engine import open_engine
from tests.support.command_line import run_command
from tests.support.gatelock_processes import run_gatelock

Gatelock = Callable[..., Any]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty working directory, without GATELOCK_ variables and the machine's secret files."""
    for name in os.environ:
        if name.upper().startswith("GATELOCK_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def gatelock() -> Gatelock:
    """Runs a command in this process and returns its result."""

    def gatelock(*arguments: str) -> Any:
        result = run_command(arguments)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return gatelock


@pytest.fixture
def process() -> Gatelock:
    """Runs a command in a process and waits for its end."""

    return run_gatelock


@pytest.fixture
def configure(tmp_path: Path) -> Callable[[str], Path]:
    """Writes ./gatelock.toml."""

    def configure(text: str) -> Path:
        file = tmp_path / "gatelock.toml"
        file.write_text(dedent(text))
        return file

    return configure


@pytest.fixture
def configuration() -> str:
    """The text of ./gatelock.toml besides [database]."""
    return ""


@pytest.fixture
def engine(migrated_url: str, configure: Callable[[str], Path], configuration: str) -> Iterator[sa.Engine]:
    """The database that ./gatelock.toml names."""
    configure(f'[database]\nurl = "{migrated_url}"\n{configuration}')
    engine = open_engine(migrated_url)
    yield engine
    engine.dispose()
