"""The start of every command: fast, with help, with the right file, or with an error in one sentence."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.faces.cli.command_table import COMMANDS as COMMAND_TABLE
from analyzer.faces.cli.command_table import Command, CommandGroup
from analyzer.kernel.tables.schema import rejects

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


def called_as(entries: Iterable[Command | CommandGroup], *words: str) -> Iterator[str]:
    """Every command as it is typed, groups included."""
    for entry in entries:
        yield " ".join([*words, entry.name])
        if isinstance(entry, CommandGroup):
            yield from called_as(entry.commands, *words, entry.name)


EVERY = sorted(called_as([entry for heading in COMMAND_TABLE for entry in heading.entries]))
COMMANDS = [name for name in EVERY if not any(other.startswith(f"{name} ") for other in EVERY)]
REQUIRED = {  # arguments that a command requires
    "alerts contact": "api_key:acme --email it@acme.example --reason WHY",
    "alerts remove": "5f0c9a2e --reason WHY",
    "alerts resend": "--dead --reason WHY",
    "alerts test": "ops",
    "callers forget": "api_key:acme --reason WHY",
    "callers limit": "api_key:acme --amount +50 --policy daily --reason WHY",
    "callers set --file": "callers.csv",
    "callers set": "api_key:acme --plan pro",
    "callers list": "api_key:acme",
    "restore days": "--reason WHY",
    "restore check": "--from reports",
    "backup": "--to backups",
    "billing days close": "2026-11-20 --reason WHY",
    "billing days correct": "2026-11-20 --caller api_key:acme --amount -5 --reason WHY",
    "billing days list": "2026-11-20",
    "explain": "api_key:acme",
    "callers allow": "api_key:acme --reason WHY",
    "callers end": "abc",
    "upkeep jobs run": "roll-up",
    "upkeep import": "access.log --source access.log",
    "look": "access.log",
    "upkeep sources resume": "access-log[0] --to next --reason WHY",
    "upkeep gates forget": "shop",
    "locks unlock": "api_key:acme --reason WHY",
    "locks extend": "api_key:acme --for 1h --reason WHY",
    "locks lock": "api_key:acme --for 1h --reason WHY",
    "locks suspend": "--for 1h --reason WHY",
    "locks resume": "--reason WHY",
    "policies enforce": "daily --reason WHY",
    "policies list": "daily",
    "upkeep rejects list": "access-log[0]@1",
    "upkeep rejects retry": "--why WHY",
    "upkeep replay list": "1",
    "upkeep replay drop": "1 --reason WHY",
    "upkeep replay start --resume": "1",
    "upkeep replay start": "access.log --source access.log",
    "upkeep replay swap": "1 --reason WHY",
    "billing report reconcile": "day 2026-11-20 --from https://localhost --format lago",
    "billing report statement": "api_key:acme --month 2026-11",
    "billing report send": "day 2026-11-20 --to https://localhost --format lago",
    "billing report write": "day 2026-11-20",
    "upkeep sources retire": "shop --reason WHY",
    "upkeep tokens create": "shop --scope read",
    "upkeep tokens revoke": "shop",
}
CONFIGURED = [
    name for name in COMMANDS if name not in ("demo", "init", "look")
]  # these read no configuration
STORING = [name for name in CONFIGURED if name not in ("check", "doctor")]  # they need the database
A_REJECT = {
    "cluster": "c", "topic_id": "t", "partition": 3, "offset": 1, "source": "s", "topic": "access-log",
    "reason": "bad-json", "sample": b"{", "value_bytes": 1, "at_ms": 0,
}  # fmt: skip
READING = [name for name in STORING if name not in ("run", "serve", "upkeep import", "upkeep db upgrade")]


def test_there_are_few_commands_and_few_words_at_the_top() -> None:
    assert len(COMMANDS) <= 61
    assert len([entry for heading in COMMAND_TABLE for entry in heading.entries]) <= 18


def arguments_of(command: str) -> list[str]:
    return [*command.split(), *REQUIRED.get(command, "").split()]


def test_help_imports_nothing_heavy() -> None:
    """A command imports what it needs when it is called."""
    code = "import sys; sys.argv[1:] = ['--help']; import analyzer.faces.cli as c\ntry: c.main()\n"
    code += "finally: print('\\n', *sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout
    assert "Exit codes: 0 success, 1 problem found, 2 wrong usage, 3 not reachable, 4 an" in result
    assert {name.partition(".")[0] for name in result.splitlines()[-1].split()}.isdisjoint(HEAVY)


def test_without_click_the_extra_is_named() -> None:
    program = "import sys; sys.modules['click'] = None; import analyzer.faces.cli"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr == "gatelock: click is not installed; pip install 'gatelock[analyzer]'\n"


@pytest.mark.parametrize("command", EVERY)
def test_every_command_is_described_in_the_list_of_commands(gatelock: Gatelock, command: str) -> None:
    result = gatelock(*command.split(), "--help")
    assert result.exit_code == 0
    *group, name = command.split()
    listed = gatelock(*group, "--help").output
    (line,) = [line for line in listed.splitlines() if line.startswith(f"  {name} ")]
    assert not line.endswith("...")


def test_the_version_is_printed(gatelock: Gatelock) -> None:
    assert gatelock("--version").output == f"gatelock {version('gatelock')}\n"


def test_completion_is_offered(process: Gatelock, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the variables that the shell's script sets; without a shell it cannot be detected."""
    monkeypatch.setenv("_GATELOCK_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "gatelock us")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert process().stdout.split() == ["plain,usage"]


def test_without_a_command_the_help_is_printed(process: Gatelock) -> None:
    result = process()
    assert result.returncode == 2
    assert "Usage: gatelock" in result.stdout + result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["ran"],
        ["usage", "--wdith", "day"],
        ["usage", "--width", "fortnight"],
        ["upkeep", "import", "x"],
        ["locks", "show"],
    ],
)
def test_wrong_usage_exits_with_2(gatelock: Gatelock, arguments: list[str]) -> None:
    result = gatelock(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", CONFIGURED)
def test_a_missing_configuration_exits_with_2(gatelock: Gatelock, command: str) -> None:
    result = gatelock("--config", "/nowhere/gatelock.toml", *arguments_of(command))
    assert result.exit_code == 2
    assert result.stderr == (
        "/nowhere/gatelock.toml: does not exist; name one with --config or $GATELOCK_CONFIG\n"
    )


def test_the_file_may_be_named_before_or_after_the_command(gatelock: Gatelock, tmp_path: Path) -> None:
    named = tmp_path / "named.toml"
    named.write_text('[[sources]]\ntopic = "t"\n[sources.fields]\nuser = "user"\n')
    for arguments in (["--config", str(named), "check"], ["check", "--config", str(named)]):
        assert gatelock(*arguments).output.startswith(f"{named}: nothing is wrong\n")


@pytest.mark.parametrize("command", [name for name in CONFIGURED if name != "check"])
def test_an_invalid_configuration_exits_with_2_and_every_fault(
    gatelock: Gatelock, configure: Configure, command: str
) -> None:
    configure('[database]\nurl = "mysql://ada:s3cret@db/x"\n[kafka]\ngroup = "x"\n')
    result = gatelock(*arguments_of(command))
    assert result.exit_code == 2
    assert "gatelock.toml:2: [database] url" in result.stderr
    assert 'did you mean "group_id"?' in result.stderr
    assert "s3cret" not in result.stderr


UNREACHABLE = """
    [database]
    url = "postgresql+psycopg://ada:s3cret@127.0.0.1:1/gatelock"
    [analyzer]
    http = "127.0.0.1:0"
    [[sources]]
    file = "access.log"
    format = "combined"
"""


@pytest.mark.parametrize("command", [*READING, "upkeep db upgrade"])
def test_an_unreachable_database_exits_with_3_and_one_sentence(
    gatelock: Gatelock, configure: Configure, command: str
) -> None:
    configure(UNREACHABLE)
    result = gatelock(*arguments_of(command))
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("cannot reach the database: ")
    assert result.stderr.endswith("; check [database] url, or name another configuration with --config\n")
    assert result.stderr.count("\n") == 1
    assert "127.0.0.1" in result.stderr
    assert "s3cret" not in result.stderr


@pytest.mark.parametrize("command", ["run", "serve", "upkeep import"])
def test_the_loop_does_not_start_without_a_database(
    gatelock: Gatelock, configure: Configure, tmp_path: Path, command: str
) -> None:
    configure(UNREACHABLE)
    (tmp_path / "access.log").touch()
    result = gatelock(*arguments_of(command))
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.splitlines()[-1].startswith("cannot reach the database: ")
    assert "Traceback" not in result.stderr
    assert "s3cret" not in result.stderr


@pytest.mark.parametrize("command", READING)
def test_reading_does_not_create_a_database(gatelock: Gatelock, tmp_path: Path, command: str) -> None:
    result = gatelock(*arguments_of(command))
    assert result.exit_code == 3
    assert f"the file {tmp_path / 'gatelock.db'} does not exist" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [*READING, "upkeep db upgrade"])
def test_a_file_that_is_not_a_database_exits_with_3_and_one_sentence(
    gatelock: Gatelock, tmp_path: Path, command: str
) -> None:
    (tmp_path / "gatelock.db").write_text("a page of something else " * 100)
    result = gatelock(*arguments_of(command))
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("cannot reach the database: file is not a database; ")


def test_the_doctor_finds_a_file_that_is_not_a_database(gatelock: Gatelock, tmp_path: Path) -> None:
    (tmp_path / "gatelock.db").write_text("a page of something else " * 100)
    result = gatelock("doctor")
    assert result.exit_code == 3
    assert "sqlite:///gatelock.db cannot be reached: file is not a database; check" in result.stdout


@pytest.mark.parametrize("database", ["postgresql"])
def test_a_missing_database_privilege_is_named_and_exits_with_3(
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
        result = gatelock("upkeep", "tokens", "create", "shop", "--scope", "read")
        assert (result.exit_code, result.stdout) == (3, "")
        assert "permission denied for table tokens" in result.stderr
    finally:
        with engine.begin() as db:
            db.exec_driver_sql(f"drop owned by {role}")
            db.exec_driver_sql(f"drop role {role}")


@pytest.mark.parametrize("command", ["usage", "upkeep rejects list --json", "upkeep rejects list --raw"])
@pytest.mark.parametrize("database", ["sqlite"])
def test_an_output_that_cannot_be_written_exits_with_3_and_one_sentence(
    engine: sa.Engine, process: Gatelock, command: str
) -> None:
    with engine.begin() as db:
        db.execute(sa.insert(rejects).values(A_REJECT))
    with Path("/dev/full").open("w") as full:
        result = process(*command.split(), stdout=full)
    assert result.returncode == 3
    assert result.stderr == "the output cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("usage --from soon", "'soon' is not a time: write 2026-11-20, "),
        ("upkeep events list --since 2026-13-01", "--since: '2026-13-01' is not a time: write 2026-11-20, "),
        ("usage --to 2026-11-20T10:00", "'2026-11-20T10:00' lacks its time zone: write 2026-11-20, "),
        ("usage --from today --to yesterday", "--from today is not before --to yesterday"),
        ("demo --kafka localhost", "--kafka localhost: write host and port, as in localhost:9092"),
        ("demo --database mysql://x", "--database: write sqlite:///PATH or postgresql+psycopg://"),
    ],
)
@pytest.mark.usefixtures("engine")
def test_invalid_arguments_exit_with_2_and_the_accepted_forms(
    gatelock: Gatelock, arguments: str, sentence: str
) -> None:
    result = gatelock(*arguments.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(sentence)
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    [
        "locks suspend --for 1h",
        "locks resume",
        "upkeep sources resume access-log[0] --to next",
        "upkeep sources retire shop",
    ],
)
def test_a_blank_reason_exits_with_2(gatelock: Gatelock, command: str) -> None:
    result = gatelock(*command.split(), "--reason", " ")
    assert result.exit_code == 2
    assert result.stderr == "--reason: write a reason; it is kept with your name\n"


def test_a_missing_database_driver_exits_with_2_and_one_sentence() -> None:
    code = "import sys; sys.modules['psycopg'] = None\n"
    code += "sys.argv[1:] = ['upkeep', 'db', 'upgrade', '--check']\n"
    code += "import analyzer.faces.cli as c; c.main()"
    url = {"GATELOCK_DATABASE__URL": "postgresql+psycopg://ada:s3cret@localhost/gatelock"}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=os.environ | url
    )
    assert result.returncode == 2
    assert result.stderr == "PostgreSQL needs psycopg 3: pip install 'gatelock[postgres]'\n"


def test_an_upgrade_is_json(gatelock: Gatelock, configure: Callable[[str], Path]) -> None:
    configure('[database]\nurl = "sqlite:///gatelock.db"\n')
    done = [json.loads(gatelock("upkeep", "db", "upgrade", "--json").stdout) for _ in range(2)]
    assert [(one["database"], one["before"] == one["current"]) for one in done] == [
        ("sqlite:///gatelock.db", False),
        ("sqlite:///gatelock.db", True),
    ]
    assert done[0]["before"] is None


def test_a_value_that_is_not_offered_is_answered_with_those_that_are(process: Gatelock) -> None:
    result = process("usage", "--width", "fortnight")
    assert result.returncode == 2
    assert "Error: Invalid value for '--width': 'fortnight' is not one of 'minute', 'hour'," in result.stderr
