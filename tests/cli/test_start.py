"""How the program starts: at once, with help, and with the file that was meant."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

Gatelock = Callable[..., Any]
Configure = Callable[[str], Path]

HEAVY = (
    "alembic",
    "fastapi",
    "kafka",
    "prometheus_client",
    "pydantic_settings",
    "rich",
    "sqlalchemy",
    "uvicorn",
)
COMMANDS = (
    "run",
    "check",
    "usage",
    "audit",
    "import",
    "demo",
    "locks list",
    "db upgrade",
    "db check",
    "db current",
)


def test_help_is_there_at_once() -> None:
    """Nothing that takes long to import is: a command imports what it needs when it is called."""
    code = "import sys; sys.argv[1:] = ['--help']; import analyzer.cli as c\ntry: c.main()\n"
    code += "finally: print('\\n', *sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout
    assert "Exit codes: 0 fine, 1 found something, 2 wrong usage, 3 cannot reach." in told
    assert {name.partition(".")[0] for name in told.splitlines()[-1].split()}.isdisjoint(HEAVY)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_what_it_does(gatelock: Gatelock, command: str) -> None:
    told = gatelock(*command.split(), "--help")
    assert told.exit_code == 0
    name, _, rest = command.partition(" ")
    listed = gatelock(*([name] if rest else []), "--help").output
    (line,) = [line for line in listed.splitlines() if line.startswith(f"  {rest or name} ")]
    assert not line.endswith("...")


def test_the_version_is_said(gatelock: Gatelock) -> None:
    assert gatelock("--version").output == f"gatelock {version('gatelock')}\n"


def test_completion_is_offered(process: Gatelock, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the shell's script asks for it: which shell it is cannot be told where there is none."""
    monkeypatch.setenv("_GATELOCK_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "gatelock us")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert process().stdout.split() == ["usage"]


def test_without_a_command_there_is_help(process: Gatelock) -> None:
    told = process()
    assert told.returncode == 2
    assert "Usage: gatelock" in told.stdout + told.stderr


@pytest.mark.parametrize(
    "arguments",
    [["ran"], ["usage", "--wdith", "day"], ["usage", "--width", "week"], ["import", "x"], ["locks", "show"]],
)
def test_wrong_usage_is_2(process: Gatelock, arguments: list[str]) -> None:
    told = process(*arguments)
    assert told.returncode == 2
    assert "Traceback" not in told.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_configuration_that_is_not_there_is_2(gatelock: Gatelock, command: str) -> None:
    if command == "demo":  # it brings its own
        return
    more = ["x", "--source", "y"] if command == "import" else []
    told = gatelock("--config", "/nowhere/gatelock.toml", *command.split(), *more)
    assert told.exit_code == 2
    assert told.stderr == (
        "/nowhere/gatelock.toml: there is no such file; name one with --config or $GATELOCK_CONFIG\n"
    )


def test_the_file_may_be_named_before_or_behind_the_command(gatelock: Gatelock, tmp_path: Path) -> None:
    named = tmp_path / "named.toml"
    named.write_text('[[sources]]\ntopic = "t"\n[sources.fields]\nuser = "user"\n')
    for arguments in (["--config", str(named), "check"], ["check", "--config", str(named)]):
        assert gatelock(*arguments).output.startswith(f"{named}: nothing is wrong\n")


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in ("check", "demo")])
def test_a_faulty_configuration_is_2_with_every_fault(
    gatelock: Gatelock, configure: Configure, command: str
) -> None:
    configure('[database]\nurl = "mysql://ada:s3cret@db/x"\n[kafka]\ngroup = "x"\n')
    more = ["x", "--source", "y"] if command == "import" else []
    told = gatelock(*command.split(), *more)
    assert told.exit_code == 2
    assert "gatelock.toml:2: [database] url" in told.stderr
    assert 'did you mean "group_id"?' in told.stderr
    assert "s3cret" not in told.stderr


AWAY = """
    [database]
    url = "postgresql+psycopg://ada:s3cret@127.0.0.1:1/gatelock"
    [analyzer]
    http = "off"
    [[sources]]
    file = "access.log"
    format = "combined"
"""


@pytest.mark.parametrize("command", ["usage", "audit", "locks list", "db upgrade", "db check", "db current"])
def test_a_database_that_cannot_be_reached_is_3_and_one_sentence(
    gatelock: Gatelock, configure: Configure, command: str
) -> None:
    configure(AWAY)
    told = gatelock(*command.split())
    assert (told.exit_code, told.stdout) == (3, "")
    assert told.stderr.startswith("cannot reach the database: ")
    assert told.stderr.count("\n") == 1
    assert "127.0.0.1" in told.stderr
    assert "s3cret" not in told.stderr


@pytest.mark.parametrize("command", ["run", "import access.log --source access.log"])
def test_the_loop_does_not_begin_without_a_database(
    process: Gatelock, configure: Configure, tmp_path: Path, command: str
) -> None:
    configure(AWAY)
    (tmp_path / "access.log").touch()
    told = process(*command.split())
    assert (told.returncode, told.stdout) == (3, "")
    assert told.stderr.splitlines()[-1].startswith("cannot reach the database: ")
    assert "Traceback" not in told.stderr
    assert "s3cret" not in told.stderr


@pytest.mark.parametrize("command", ["usage", "audit", "locks list", "db check", "db current"])
def test_reading_makes_no_database(gatelock: Gatelock, tmp_path: Path, command: str) -> None:
    told = gatelock(*command.split())
    assert told.exit_code == 3
    assert "there is no file gatelock.db" in told.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_database_whose_driver_is_not_installed_is_one_clear_sentence() -> None:
    code = "import sys; sys.modules['psycopg'] = None; sys.argv[1:] = ['db', 'current']\n"
    code += "import analyzer.cli as c; c.main()"
    url = {"GATELOCK_DATABASE__URL": "postgresql+psycopg://ada:s3cret@localhost/gatelock"}
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=os.environ | url
    )
    assert told.returncode == 2
    assert told.stderr == "PostgreSQL needs psycopg 3: pip install 'gatelock[postgres]'\n"
