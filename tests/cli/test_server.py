"""Commands with `--server`: the output and exit codes that they have beside the database."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.config.settings import load
from analyzer.faces.acts import ACTS, Act, List
from analyzer.faces.live_callers import LiveQuery
from analyzer.faces.signals.health import Health
from analyzer.faces.signals.metrics import Metrics
from analyzer.faces.tui.live_board import ActRequest, BoardAway
from analyzer.faces.tui.server_board import ServerBoard
from analyzer.faces.wiring import web_application
from analyzer.flush.sql_store import SqlStore
from analyzer.judging.locks.lock_feed import new_mark
from analyzer.judging.locks.suspension import suspend
from analyzer.kernel.database.audit_log import entries
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.tables.schema import overrides
from analyzer.kernel.tokens import create
from gatekeeper.client import ApiConnection
from tests.cli.test_acts import ALTERNATIVES, ARGUMENTS, PLAN
from tests.house.commands import COMMANDS
from tests.store.flushing import a_row, flush, now_s

Gatelock = Callable[..., Any]
pytestmark = pytest.mark.parametrize("database", ["sqlite"])

REASON = ("--reason", "INC-311")
# Times, ids and names of operators differ between two runs.
VARYING = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\d]*(Z|[+-]\d\d:\d\d)|\b[0-9a-f]{8,32}\b|\b[\w.-]+@[\w.-]+|token ops"
    r'|"(heard_s|behind_s|age_s|rate)":[0-9.e-]+|\d+\.\d+ requests/s|\b\d+\.\d+\b'
)


@pytest.fixture
def counted(engine: sa.Engine) -> str:
    """60 requests of acme, which a limit locks, an override and a suspension; returns the override's id."""
    store = SqlStore(engine, "here")
    store.activate(PLAN)
    flush(store, PLAN, [a_row(60, now_s(engine)), a_row(7, now_s(engine), "user:ann")])
    suspend(engine, 60_000, "ann", "before", new_mark)
    return "5f0c9a2e"


@pytest.fixture
def twin(
    gatelock: Gatelock, counted: str, engine: sa.Engine, tmp_path: Path, monkeypatch: Any
) -> Iterator[Any]:
    """A copy of the database behind a server; runs a command against it."""
    gatelock("callers", "limit", "user:ann", "--amount", "9", "--policy", "daily", "--reason", "before")
    token = create(engine, "ops", "admin", None, "ann", "tests")
    engine.dispose()
    url = str(engine.url)
    copy = tmp_path / "copy.db"
    shutil.copy(url.partition("///")[2], copy)
    file = tmp_path / "server.toml"
    file.write_text(f'[database]\nurl = "sqlite:///{copy}"\n[analyzer]\nhttp = "127.0.0.1:0"\n')
    behind = open_engine(f"sqlite:///{copy}")
    monkeypatch.setenv("GATELOCK_TOKEN", token)
    with web_application(load(file), behind, Health(Metrics("1"), lambda: 0.0), dict) as address:
        assert address is not None

        def ran(*command: str) -> Any:
            return gatelock(*command, "--server", f"http://127.0.0.1:{address[1]}")

        ran.engine = behind  # type: ignore[attr-defined] # the database of the server
        ran.url = f"http://127.0.0.1:{address[1]}"  # type: ignore[attr-defined]
        yield ran
    behind.dispose()


def same(result: Any) -> tuple[int, str, str]:
    """Returns the parts of a result that may not differ."""
    return result.exit_code, VARYING.sub("#", result.stdout), VARYING.sub("#", result.stderr)


def commands(engine: sa.Engine) -> Iterator[list[str]]:
    with engine.connect() as db:
        (id_,) = db.execute(sa.select(overrides.c.id)).scalars()
    for row in ACTS:
        if isinstance(row, List):
            words = row.words.split() if tuple(row.words.split()) in COMMANDS else ALTERNATIVES[row.words]
            yield words
            yield [*words, "--json"]
        elif row.words in ARGUMENTS:
            arguments = [*row.words.split(), *ARGUMENTS[row.words].replace("ID", id_).split(), *REASON]
            if row.has_dry_run:
                yield [*arguments, "--dry-run"]
                yield [*arguments, "--dry-run", "--json"]
    yield from (
        ["explain", "api_key:acme"], ["explain", "api_key:acme", "--json"], ["explain", "api_key:acmee"],
        ["policies", "simulate", "--policy", "daily", "--limit", "20"],
        ["policies", "simulate", "--policy", "daily", "--limit", "20", "--json", "--all"],
        ["policies", "simulate", "--limit", "20"],
        ["policies", "simulate", "--policy", "dayly", "--limit", "1"],
        ["policies", "simulate", "--policy", "daily", "--limit", "20", "--since", "soon"],
        ["top", "--once"], ["top", "--json", "--filter", "ann"], ["top", "--once", "--filter", "mallory"],
        ["locks", "list", "--policy", "dayly"], ["locks", "list", "api_key:acmee"],
        ["locks", "lock", "user:ann", "--for", "soon", *REASON], ["locks", "lock", "--for", "1h", *REASON],
        ["locks", "lock", "user:ann", "--for", "1h", "--status", "99", *REASON],
        ["locks", "lock", "user:ann", "--for", "1h", "--action", "slow", *REASON],
        ["locks", "unlock", "user:eve", *REASON], ["callers", "end", "00000000", *REASON],
        ["callers", "forget", "api_key:acme", *REASON],
    )  # fmt: skip


def test_each_command_answers_as_it_does_beside_the_database(
    gatelock: Gatelock, twin: Any, engine: sa.Engine
) -> None:
    differing = [
        (command, same(gatelock(*command)), same(twin(*command)))
        for command in commands(engine)
        if same(gatelock(*command)) != same(twin(*command))
    ]
    assert differing == []


def test_each_act_changes_what_it_changes_beside_the_database(
    gatelock: Gatelock, twin: Any, engine: sa.Engine
) -> None:
    with engine.connect() as db:
        (id_,) = db.execute(sa.select(overrides.c.id)).scalars()
    for words in sorted(ARGUMENTS, key=lambda words: words == "callers forget"):
        (row,) = (row for row in ACTS if row.words == words)
        assert isinstance(row, Act)
        command = [*words.split(), *ARGUMENTS[words].replace("ID", id_).split(), *REASON, "--json"]
        command += ["--yes"] if row.foresee else []
        assert same(twin(*command)) == same(gatelock(*command)), words
    acts, acts_of_server = (
        [(entry.act, VARYING.sub("#", entry.about)) for entry in entries(database)]
        for database in (engine, twin.engine)
    )
    assert acts_of_server == acts
    assert {entry.who for entry in entries(twin.engine)} >= {"token ops"}


def test_the_screen_of_top_reads_explains_and_acts_over_a_server(twin: Any) -> None:
    with ApiConnection(twin.url) as connection:
        board = ServerBoard(connection)
        assert board.look(LiveQuery()).rows[0].caller == "api_key:acme"
        assert board.explain("api_key:acme", 80)[0].startswith("api_key:acme is locked")
        asked = ActRequest("locks lock", {"caller": "user:ann", "for": "2h"}, "INC-311")
        assert board.act(asked, only_shown=True)[0].startswith("set: caller user:ann")
        assert "locks lock" not in {entry.act for entry in entries(twin.engine)}
        board.act(asked, only_shown=False)
        assert next(iter(entries(twin.engine))).act == "locks lock"
        with pytest.raises(BoardAway, match="write a length"):
            board.act(asked._replace(texts={"caller": "user:ann", "for": "soon"}), only_shown=True)


def test_a_long_list_is_read_page_by_page(gatelock: Gatelock, twin: Any) -> None:
    rows = "".join(f"caller,user:u{number:04},\n" for number in range(1_100))
    Path("locks.csv").write_text(f"scope,key,resource\n{rows}")
    result = twin("locks", "lock", "--file", "locks.csv", "--for", "1h", *REASON)
    assert (result.exit_code, result.stderr) == (
        2,
        "--file reads a file beside the database: leave out --server\n",
    )
    Path("gatelock.toml").write_text(Path("server.toml").read_text())
    assert gatelock("locks", "lock", "--file", "locks.csv", "--for", "1h", *REASON).exit_code == 0
    here, there = gatelock("locks", "list", "--json"), twin("locks", "list", "--json")
    assert here.stdout == there.stdout
    assert len(there.stdout.splitlines()) > 1_100


def test_a_server_that_is_away_and_a_wrong_token_have_their_exit_codes(
    gatelock: Gatelock, twin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = gatelock("locks", "list", "--server", "http://127.0.0.1:1")
    assert (
        away.exit_code,
        "cannot reach the server: http://127.0.0.1:1: Connection refused" in away.stderr,
    ) == (3, True)
    assert gatelock("locks", "list", "--server", "ftp://x").exit_code == 2
    monkeypatch.setenv("GATELOCK_TOKEN", "gatelock_wrong")
    refused = twin("locks", "list")
    assert (refused.exit_code, refused.stdout) == (2, "")
    monkeypatch.delenv("GATELOCK_TOKEN")
    Path("token").write_text("gatelock_wrong\n")
    assert "never made" in twin("locks", "list", "--token-file", "token").stderr
    assert "token file" in twin("locks", "list", "--token-file", "missing").stderr


@pytest.mark.parametrize(
    "words", ["run", "check", "billing audit", "upkeep db upgrade", "upkeep rejects list"]
)
def test_a_command_that_asks_no_server_says_so(gatelock: Gatelock, words: str, database: str) -> None:
    result = gatelock(*words.split(), "--server", "https://gatelock.example:8321")
    assert result.exit_code == 2
    assert f"`{words}` does not ask a server: run it beside the database" in result.stderr


def test_the_output_of_a_list_is_one_object_a_line(twin: Any) -> None:
    assert all(json.loads(line)["scope"] for line in twin("locks", "list", "--json").stdout.splitlines())
