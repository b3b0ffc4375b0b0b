"""How each command starts: at once, with help, with the file that was meant; and what is said if not."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from typer.main import get_command

from analyzer.cli import app
from analyzer.store.database.schema import rejects

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


def commands_of(group: Any, *words: str) -> Iterator[str]:
    """Every command below `group`, groups included, as it is typed."""
    for name, command in group.commands.items():
        yield " ".join([*words, name])
        if hasattr(command, "commands"):
            yield from commands_of(command, *words, name)


EACH = sorted(commands_of(get_command(app)))
COMMANDS = [each for each in EACH if not any(other.startswith(f"{each} ") for other in EACH)]
NEEDED = {  # what a command cannot do without
    "import": "access.log --source access.log",
    "gaps accept": "access-log[0] --to next --reason WHY",
    "gates forget": "shop",
    "locks suspend": "--for 1h --reason WHY",
    "locks resume": "--reason WHY",
    "rejects show": "access-log[0]@1",
    "rejects retry": "--why WHY",
    "sources retire": "shop --reason WHY",
    "tokens create": "shop --scope read",
    "tokens revoke": "shop",
}
CONFIGURED = [each for each in COMMANDS if each != "demo"]  # that one brings its own
STORING = [each for each in CONFIGURED if each not in ("check", "doctor")]  # and not without a database
A_REJECT = {
    "cluster": "c", "topic_id": "t", "partition": 3, "offset": 1, "source": "s", "topic": "access-log",
    "reason": "bad-json", "sample": b"{", "value_bytes": 1, "at_ms": 0,
}  # fmt: skip
READING = [each for each in STORING if each not in ("run", "serve", "import", "db upgrade")]


def asked(command: str) -> list[str]:
    return [*command.split(), *NEEDED.get(command, "").split()]


def test_help_is_there_at_once() -> None:
    """Nothing that takes long to import is: a command imports what it needs when it is called."""
    code = "import sys; sys.argv[1:] = ['--help']; import analyzer.cli as c\ntry: c.main()\n"
    code += "finally: print('\\n', *sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout
    assert "Exit codes: 0 fine, 1 found something, 2 wrong usage, 3 cannot reach." in told
    assert {name.partition(".")[0] for name in told.splitlines()[-1].split()}.isdisjoint(HEAVY)


@pytest.mark.parametrize("command", EACH)
def test_every_command_says_what_it_does_in_the_list_too(gatelock: Gatelock, command: str) -> None:
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


@pytest.mark.parametrize("command", CONFIGURED)
def test_a_configuration_that_is_not_there_is_2(gatelock: Gatelock, command: str) -> None:
    told = gatelock("--config", "/nowhere/gatelock.toml", *asked(command))
    assert told.exit_code == 2
    assert told.stderr == (
        "/nowhere/gatelock.toml: there is no such file; name one with --config or $GATELOCK_CONFIG\n"
    )


def test_the_file_may_be_named_before_or_behind_the_command(gatelock: Gatelock, tmp_path: Path) -> None:
    named = tmp_path / "named.toml"
    named.write_text('[[sources]]\ntopic = "t"\n[sources.fields]\nuser = "user"\n')
    for arguments in (["--config", str(named), "check"], ["check", "--config", str(named)]):
        assert gatelock(*arguments).output.startswith(f"{named}: nothing is wrong\n")


@pytest.mark.parametrize("command", [each for each in CONFIGURED if each != "check"])
def test_a_faulty_configuration_is_2_with_every_fault(
    gatelock: Gatelock, configure: Configure, command: str
) -> None:
    configure('[database]\nurl = "mysql://ada:s3cret@db/x"\n[kafka]\ngroup = "x"\n')
    told = gatelock(*asked(command))
    assert told.exit_code == 2
    assert "gatelock.toml:2: [database] url" in told.stderr
    assert 'did you mean "group_id"?' in told.stderr
    assert "s3cret" not in told.stderr


AWAY = """
    [database]
    url = "postgresql+psycopg://ada:s3cret@127.0.0.1:1/gatelock"
    [analyzer]
    http = "127.0.0.1:0"
    [[sources]]
    file = "access.log"
    format = "combined"
"""


@pytest.mark.parametrize("command", [*READING, "db upgrade"])
def test_a_database_that_cannot_be_reached_is_3_and_one_sentence(
    gatelock: Gatelock, configure: Configure, command: str
) -> None:
    configure(AWAY)
    told = gatelock(*asked(command))
    assert (told.exit_code, told.stdout) == (3, "")
    assert told.stderr.startswith("cannot reach the database: ")
    assert told.stderr.endswith("; look at [database] url, or name another configuration with --config\n")
    assert told.stderr.count("\n") == 1
    assert "127.0.0.1" in told.stderr
    assert "s3cret" not in told.stderr


@pytest.mark.parametrize("command", ["run", "serve", "import"])
def test_the_loop_does_not_begin_without_a_database(
    process: Gatelock, configure: Configure, tmp_path: Path, command: str
) -> None:
    configure(AWAY)
    (tmp_path / "access.log").touch()
    told = process(*asked(command))
    assert (told.returncode, told.stdout) == (3, "")
    assert told.stderr.splitlines()[-1].startswith("cannot reach the database: ")
    assert "Traceback" not in told.stderr
    assert "s3cret" not in told.stderr


@pytest.mark.parametrize("command", READING)
def test_reading_makes_no_database(gatelock: Gatelock, tmp_path: Path, command: str) -> None:
    told = gatelock(*asked(command))
    assert told.exit_code == 3
    assert f"there is no file {tmp_path / 'gatelock.db'}" in told.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [*READING, "db upgrade"])
def test_a_file_that_is_no_database_is_3_and_one_sentence(
    gatelock: Gatelock, tmp_path: Path, command: str
) -> None:
    (tmp_path / "gatelock.db").write_text("a page of something else " * 100)
    told = gatelock(*asked(command))
    assert (told.exit_code, told.stdout) == (3, "")
    assert told.stderr.startswith("cannot reach the database: file is not a database; ")


def test_the_doctor_finds_a_file_that_is_no_database(gatelock: Gatelock, tmp_path: Path) -> None:
    (tmp_path / "gatelock.db").write_text("a page of something else " * 100)
    told = gatelock("doctor")
    assert told.exit_code == 3
    assert "sqlite:///gatelock.db cannot be reached: file is not a database; look at" in told.stdout


@pytest.mark.parametrize("database", ["postgresql"])
def test_a_right_that_is_missing_is_3_and_named(
    gatelock: Gatelock, configure: Configure, engine: sa.Engine
) -> None:
    role = f"reader_{secrets.token_hex(4)}"
    with engine.begin() as db:
        db.exec_driver_sql(f"create role {role} login password 'pw'")
        db.exec_driver_sql(f"grant select on all tables in schema public to {role}")
    try:
        url = engine.url.set(username=role, password="pw")
        configure(f'[database]\nurl = "{url.render_as_string(hide_password=False)}"\n')
        assert gatelock("usage").exit_code == 0
        told = gatelock("tokens", "create", "shop", "--scope", "read")
        assert (told.exit_code, told.stdout) == (3, "")
        assert "permission denied for table tokens" in told.stderr
    finally:
        with engine.begin() as db:
            db.exec_driver_sql(f"drop owned by {role}")
            db.exec_driver_sql(f"drop role {role}")


@pytest.mark.parametrize("command", ["usage", "rejects list --json", "rejects export"])
@pytest.mark.parametrize("database", ["sqlite"])
def test_an_output_that_cannot_be_written_is_3_and_one_sentence(engine: sa.Engine, command: str) -> None:
    with engine.begin() as db:
        db.execute(sa.insert(rejects).values(A_REJECT))
    with Path("/dev/full").open("w") as full:
        command_line = [sys.executable, "-m", "analyzer.cli", *command.split()]
        told = subprocess.run(command_line, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert told.returncode == 3
    assert told.stderr == "the output cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("usage --caller acme", "--caller acme: write the kind of name in front, as in api_key:acme"),
        ("locks list --caller acme", "--caller acme: write the kind of name in front, as in api_key:acme"),
        ("usage --from soon", "'soon' is no time: write 2026-11-20, "),
        ("events list --since 2026-13-01", "'2026-13-01' is no time: write 2026-11-20, "),
        ("usage --to 2026-11-20T10:00", "'2026-11-20T10:00' does not say its zone: write 2026-11-20, "),
        ("usage --from today --to yesterday", "--from today is not before --to yesterday"),
        ("demo --kafka localhost", "--kafka localhost: write host and port, as in localhost:9092"),
        ("demo --database mysql://x", "--database: write sqlite:///PATH or postgresql+psycopg://"),
    ],
)
def test_what_cannot_be_meant_is_2_with_what_to_write(
    gatelock: Gatelock, arguments: str, sentence: str
) -> None:
    told = gatelock(*arguments.split())
    assert (told.exit_code, told.stdout) == (2, "")
    assert told.stderr.startswith(sentence)
    assert told.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    ["locks suspend --for 1h", "locks resume", "gaps accept access-log[0] --to next", "sources retire shop"],
)
def test_a_reason_of_blanks_is_none(gatelock: Gatelock, command: str) -> None:
    told = gatelock(*command.split(), "--reason", " ")
    assert told.exit_code == 2
    assert told.stderr == "--reason: say why; it is kept with your name\n"


def test_a_database_whose_driver_is_not_installed_is_one_clear_sentence() -> None:
    code = "import sys; sys.modules['psycopg'] = None; sys.argv[1:] = ['db', 'current']\n"
    code += "import analyzer.cli as c; c.main()"
    url = {"GATELOCK_DATABASE__URL": "postgresql+psycopg://ada:s3cret@localhost/gatelock"}
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=os.environ | url
    )
    assert told.returncode == 2
    assert told.stderr == "PostgreSQL needs psycopg 3: pip install 'gatelock[postgres]'\n"
