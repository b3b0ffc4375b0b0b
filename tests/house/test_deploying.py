"""The files for containers and systemd: their commands, ports and variables exist in the product."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from analyzer.config.settings import load
from analyzer.config.tables.analyzer import AnalyzerTable
from analyzer.faces.app import create_app
from tests.house.commands import COMMANDS
from tests.house.reading import ROOT

CONTAINER = ROOT / "deploy" / "container"
DOCKERFILE = (CONTAINER / "Dockerfile").read_text()
COMPOSE = (CONTAINER / "compose.yaml").read_text()
UNIT = (ROOT / "deploy" / "gatelock.service").read_text()
PORT = AnalyzerTable().http.rpartition(":")[2]


def instruction(name: str) -> str:
    (value,) = re.findall(rf"^{name} (.+)$", DOCKERFILE, re.MULTILINE)
    return str(value)


def test_the_image_runs_a_command_that_exists_as_another_user_than_root() -> None:
    assert json.loads(instruction("ENTRYPOINT")) == ["gatelock"]
    assert tuple(json.loads(instruction("CMD"))) in COMMANDS
    (command,) = re.findall(r"^ +command: (.+)$", COMPOSE, re.MULTILINE)
    assert tuple(json.loads(command)) in COMMANDS
    assert int(instruction("USER")) > 0


def test_the_port_and_the_probe_are_those_of_the_program() -> None:
    assert instruction("EXPOSE") == PORT
    address, path = re.findall(r"http://(127\.0\.0\.1:\d+)(/\w+)", DOCKERFILE)[0]
    assert address == AnalyzerTable().http
    assert path in {route.path for route in routes()}
    assert f'"127.0.0.1:{PORT}:{PORT}"' in COMPOSE


def routes() -> list[Any]:
    from types import SimpleNamespace

    # No request reads it.
    readers = ("health", "read_status", "count_unmet_locks", "read_fleet", "read_signals", "count_alerts")
    state: Any = SimpleNamespace(**dict.fromkeys(readers))
    return list(create_app(state).routes)


def test_the_extras_and_the_files_of_the_image_exist() -> None:
    (extras,) = re.findall(r"'\.\[(.+)\]'", DOCKERFILE)
    project = (ROOT / "pyproject.toml").read_text()
    assert all(f"\n{extra} = [" in project for extra in extras.split(","))
    allowed = re.findall(r"^!(.+)$", (CONTAINER / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
    assert all((ROOT / name).exists() for name in allowed)
    assert {"analyzer", "gatekeeper", "migrations", "deploy", "constraints.txt"} <= set(allowed)


def test_the_variables_are_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that names no key is a fault."""
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    found = re.findall(r"(GATELOCK_\w+__\w+)(?:=|: )(\S+)", DOCKERFILE + COMPOSE)
    assert len(found) == 3
    for name, value in found:
        monkeypatch.setenv(name, value.replace("${POSTGRES_PASSWORD}", "secret"))
    settings = load(None)
    assert settings.analyzer.http == f"0.0.0.0:{PORT}"
    assert settings.analyzer.name == "analyzer-1"
    assert settings.database.shown == "postgresql+psycopg://gatelock:***@database/gatelock"


def test_the_unit_of_systemd_starts_commands_that_exist() -> None:
    started = re.findall(r"^Exec\w+=\S+/gatelock --config \S+ (\w+)$", UNIT, re.MULTILINE)
    assert started == ["check", "run"]
    assert all((word,) in COMMANDS for word in started)
