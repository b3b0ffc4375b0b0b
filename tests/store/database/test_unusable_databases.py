"""Databases that must not be written: one without UTF-8, and a SQLite file that was replaced."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from analyzer.kernel.database import revisions
from analyzer.kernel.database.engine import open_engine, reading, writing
from analyzer.kernel.database.migrate import require_head, upgrade
from analyzer.kernel.errors import DatabaseReplaced, DatabaseUnusable, StoreAway
from analyzer.kernel.tables.schema import leases
from tests.support.servers.postgres import Postgres, dsn_of

on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


@pytest.fixture(params=["LATIN1", "SQL_ASCII"])
def encoded_url(postgres: Postgres, request: pytest.FixtureRequest) -> str:
    """The URL of an empty database with another encoding."""
    url = sa.make_url(postgres.url).set(database=f"test_{request.param.lower()}")
    with psycopg.connect(dsn_of(postgres.url), autocommit=True) as connection:
        connection.execute(f"drop database if exists {url.database}".encode())
        create = f"create database {url.database} encoding '{request.param}' template template0"
        connection.execute(f"{create} lc_collate 'C' lc_ctype 'C'".encode())
    return url.render_as_string(hide_password=False)


@pytest.mark.parametrize("act", [upgrade, require_head, revisions.current])
def test_a_database_that_cannot_hold_every_name_is_refused(
    encoded_url: str, act: Callable[[str], object]
) -> None:
    with pytest.raises(DatabaseUnusable, match=r"has the encoding (LATIN1|SQL_ASCII), .*createdb --encoding"):
        act(encoded_url)
    with psycopg.connect(dsn_of(encoded_url)) as connection:
        tables = connection.execute("select count(*) from pg_tables where schemaname = 'public'").fetchone()
    assert tables == (0,)


@pytest.mark.parametrize("command", [["upkeep", "db", "upgrade"], ["run"], ["doctor"]])
def test_commands_refuse_it_in_a_sentence(
    encoded_url: str, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    from tests.support.command_line import run_command

    monkeypatch.chdir(tmp_path)
    Path("gatelock.toml").write_text(
        f'[database]\nurl = "{encoded_url}"\n[[sources]]\nfile = "access.log"\nformat = "combined"\n'
    )
    result = run_command(command)
    assert result.exit_code in (1, 2)
    assert isinstance(result.exception, SystemExit)
    assert "which cannot hold every caller's name" in result.output
    assert "createdb --encoding=UTF8" in result.output


@on_sqlite
def test_nothing_is_written_to_a_file_that_was_replaced(
    engine: sa.Engine, migrated_url: str, tmp_path: Path
) -> None:
    path = Path(sa.make_url(migrated_url).database or "")
    lease = sa.insert(leases).values(name="work", holder="here", until_ms=1)
    with writing(engine) as db:
        db.execute(lease)
    backup = tmp_path / "backup.db"
    with closing(sqlite3.connect(path)) as one, closing(sqlite3.connect(backup)) as other:
        one.backup(other)
    backup.rename(path)
    for _ in range(2):
        with pytest.raises(DatabaseReplaced, match="was replaced or deleted"), writing(engine) as db:
            db.execute(lease.values(name="more"))
    with pytest.raises(StoreAway), reading(engine) as db:
        db.execute(sa.select(leases))
    engine.dispose()
    for file in path.parent.glob(f"{path.name}-*"):
        file.unlink()
    again = open_engine(migrated_url)
    with reading(again) as db:
        assert db.execute(sa.select(leases.c.name)).scalars().all() == ["work"]
    again.dispose()


@on_sqlite
def test_a_copy_beside_the_file_changes_nothing(engine: sa.Engine, migrated_url: str, tmp_path: Path) -> None:
    path = Path(sa.make_url(migrated_url).database or "")
    with writing(engine) as db:
        db.execute(sa.insert(leases).values(name="work", holder="here", until_ms=1))
    shutil.copyfile(path, tmp_path / "copy.db")
    with writing(engine) as db:
        db.execute(sa.update(leases).values(until_ms=2))
