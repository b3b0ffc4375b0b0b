"""Up, down and up again; nothing counted is lost by the way, and nobody else's database is touched."""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import Script, ScriptDirectory

from analyzer.errors import SchemaBehind, StoreAway
from analyzer.store.database import migrate, revisions
from analyzer.store.database.engine import open_engine, writing
from analyzer.store.database.schema import feed, metadata
from tests.support.servers.child import free_port
from tests.support.servers.postgres import dsn_of

ROOT = Path(__file__).parents[2]
on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    """An empty database, to look at."""
    engine = open_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def alembic_says(database_url: str) -> Callable[..., str]:
    """What one of alembic's commands prints, called as in the root of the repository."""

    def call(act: Callable[..., object], *words: str, x: tuple[str, ...] = (), **options: object) -> str:
        printed = io.StringIO()
        given = argparse.Namespace(x=[f"database={database_url}", *x])
        config = Config(
            toml_file=ROOT / "pyproject.toml", cmd_opts=given, output_buffer=printed, stdout=printed
        )
        act(config, *words, **options)
        return printed.getvalue()

    return call


def tables(engine: sa.Engine) -> set[str]:
    return set(sa.inspect(engine).get_table_names())


def contents(engine: sa.Engine) -> dict[str, list[tuple[object, ...]]]:
    with engine.connect() as db:
        return {
            table.name: [tuple(row) for row in db.execute(sa.select(table).order_by(*table.primary_key))]
            for table in metadata.sorted_tables
        }


def fill(engine: sa.Engine, name: str) -> None:
    """One row, with something in each column."""
    table = metadata.tables[name]
    something = {sa.Text: "x", sa.BigInteger: 7, sa.LargeBinary: b"x"}
    with writing(engine) as db:
        db.execute(sa.insert(table).values({c.name: something[type(c.type)] for c in table.c}))


# Up and down


def test_up_down_and_up_again(database_url: str, engine: sa.Engine) -> None:
    for _ in range(2):
        migrate.upgrade(database_url)
        assert revisions.current(database_url) == revisions.head()
        assert tables(engine) == {*metadata.tables, "alembic_version"}
        assert migrate.check(database_url) == []
        migrate.downgrade(database_url, "base")
        assert revisions.current(database_url) is None
        assert tables(engine) == {"alembic_version"}


def test_upgrading_again_changes_nothing(database_url: str, engine: sa.Engine) -> None:
    migrate.upgrade(database_url)
    fill(engine, "buckets")
    before = contents(engine)
    migrate.upgrade(database_url)
    assert contents(engine) == before


@pytest.mark.parametrize("counted", ["buckets", "offsets", "rejects", "events"])
def test_a_downgrade_that_would_drop_counts_refuses_and_loses_nothing(
    database_url: str, engine: sa.Engine, counted: str
) -> None:
    migrate.upgrade(database_url)
    fill(engine, counted)
    before = contents(engine)
    with pytest.raises(RuntimeError, match=f"^{counted} holds 1 rows .* `-x drop-counts=yes`$"):
        migrate.downgrade(database_url, "base")
    assert revisions.current(database_url) == revisions.head()
    assert contents(engine) == before


def test_a_downgrade_that_is_told_so_drops_counts(
    database_url: str, engine: sa.Engine, alembic_says: Callable[..., str]
) -> None:
    migrate.upgrade(database_url)
    fill(engine, "buckets")
    with pytest.raises(RuntimeError, match="buckets holds 1 rows"):
        alembic_says(command.downgrade, "base", x=("drop-counts=no",))
    alembic_says(command.downgrade, "base", x=("drop-counts=yes",))
    assert tables(engine) == {"alembic_version"}


def test_locks_totals_and_plans_may_go_because_they_can_be_made_again(
    database_url: str, engine: sa.Engine
) -> None:
    migrate.upgrade(database_url)
    for name in ("totals", "locks", "plans", "leases", "lock_changes", "feed_versions"):
        fill(engine, name)
    migrate.downgrade(database_url, "base")
    assert tables(engine) == {"alembic_version"}


def test_an_upgrade_that_fails_leaves_nothing_behind(database_url: str, engine: sa.Engine) -> None:
    """A table of somebody else's stands in the way, of which a part of ours come before."""
    with writing(engine) as db:
        db.exec_driver_sql("create table rejects (what text)")
    with pytest.raises(sa.exc.DBAPIError, match="already exists"):
        migrate.upgrade(database_url)
    assert tables(engine) == {"rejects"}


def test_every_database_begins_with_a_mark_of_its_own(database_url: str, engine: sa.Engine) -> None:
    """A gate that holds version 0 of one must not take another for it."""
    marks = set()
    for _ in range(3):
        migrate.upgrade(database_url)
        with engine.connect() as db:
            row = db.execute(sa.select(feed)).one()
        assert (row.version, row.pruned_to) == (0, 0)
        marks.add(row.mark)
        migrate.downgrade(database_url, "base")
    assert len(marks) == 3


# What the migrations make is what schema.py says


def written_out(index: Mapping[str, Any]) -> dict[str, object]:
    """With the conditions of a partial index as text: two of them are never equal as they come."""
    options = {name: str(value) for name, value in index.get("dialect_options", {}).items()}
    return {**index, "dialect_options": options}


def described(engine: sa.Engine) -> dict[str, object]:
    """All that a database knows of our tables, by name."""
    look = sa.inspect(engine)
    return {
        name: {
            "columns": [{**column, "type": repr(column["type"])} for column in look.get_columns(name)],
            "key": look.get_pk_constraint(name),
            "indexes": sorted(map(written_out, look.get_indexes(name)), key=lambda index: str(index["name"])),
            "unique": look.get_unique_constraints(name),
            "foreign": look.get_foreign_keys(name),
            "checks": look.get_check_constraints(name),
        }
        for name in sorted(look.get_table_names())
        if name != "alembic_version"
    }


def test_migrated_tables_are_the_tables_of_the_schema(database_url: str, engine: sa.Engine) -> None:
    """To the last detail: order and collation of columns, names of keys and indexes."""
    metadata.create_all(engine)
    made = described(engine)
    metadata.drop_all(engine)
    migrate.upgrade(database_url)
    assert described(engine) == made
    assert len(made) == len(metadata.tables)


def test_a_difference_is_told_in_words(database_url: str, engine: sa.Engine) -> None:
    assert any("add_table" in said and "buckets" in said for said in migrate.check(database_url))
    migrate.upgrade(database_url)
    with writing(engine) as db:
        db.exec_driver_sql("alter table leases add column colour text")
        db.exec_driver_sql("drop index ix_locks_until_ms")
    said = " ".join(migrate.check(database_url))
    assert "colour" in said
    assert "ix_locks_until_ms" in said


# The files


def scripts() -> list[Script]:
    return list(ScriptDirectory.from_config(Config(toml_file=ROOT / "pyproject.toml")).walk_revisions())[::-1]


def test_revisions_are_numbered_without_a_gap_and_have_one_head() -> None:
    found = scripts()
    assert [revision.revision for revision in found] == [f"{n:04}" for n in range(1, len(found) + 1)]
    assert [revision.down_revision for revision in found] == [None, *(each.revision for each in found[:-1])]
    assert revisions.head() == found[-1].revision


def test_a_revisions_file_has_its_number_and_a_name() -> None:
    for revision in scripts():
        assert re.fullmatch(rf"{revision.revision}_[a-z]+(_[a-z]+)*\.py", Path(revision.path).name)
    files = {Path(revision.path).name for revision in scripts()}
    assert files == {path.name for path in (ROOT / "migrations/versions").glob("*.py")}


def test_a_revision_says_what_it_does_in_a_sentence() -> None:
    for revision in scripts():
        first, *_ = (revision.module.__doc__ or "").splitlines()
        assert first.endswith(".")
        assert len(first) > 20


# Who may touch what


def test_an_empty_database_gets_the_tables(database_url: str) -> None:
    migrate.require_head(database_url)
    assert revisions.current(database_url) == revisions.head()


def test_a_database_of_this_version_is_left_alone(database_url: str, engine: sa.Engine) -> None:
    migrate.upgrade(database_url)
    before = contents(engine)
    migrate.require_head(database_url)
    assert contents(engine) == before


def at_version(engine: sa.Engine, version: str) -> None:
    with writing(engine) as db:
        db.execute(sa.text("update alembic_version set version_num = :v"), {"v": version})


def test_a_database_of_a_newer_version_is_left_alone(database_url: str, engine: sa.Engine) -> None:
    """`gatelock db upgrade` of this program would not help."""
    migrate.upgrade(database_url)
    at_version(engine, "9999")
    before = contents(engine)
    with pytest.raises(SchemaBehind, match=rf"at version 9999, .* needs {revisions.head()}: .* newer one"):
        migrate.require_head(database_url)
    assert revisions.current(database_url) == "9999"
    assert contents(engine) == before


def test_a_database_of_an_older_version_waits_for_its_operator(
    database_url: str,
) -> None:
    migrate.upgrade(database_url, "0001")
    with pytest.raises(SchemaBehind, match=r"at version 0001, .* needs 0003: run `gatelock db upgrade`$"):
        migrate.require_head(database_url)


@pytest.mark.parametrize("ask", [revisions.current, migrate.check, migrate.upgrade, migrate.require_head])
def test_a_database_that_is_away_is_said_to_be(ask: Callable[[str], object]) -> None:
    with pytest.raises(StoreAway):
        ask(f"postgresql+psycopg://nobody@127.0.0.1:{free_port()}/gatelock")


UPGRADE = "import sys; from analyzer.store.database.migrate import upgrade; upgrade(sys.argv[1])"


@on_postgresql
def test_three_processes_upgrade_an_empty_database_at_once(database_url: str, engine: sa.Engine) -> None:
    """Of three one migrates, however long it takes; the others wait, and find it done."""
    pause = threading.Event()
    with writing(engine) as db:
        db.execute(sa.select(sa.func.pg_advisory_xact_lock(migrate.LOCK)))  # so that all three are there
        children = [
            subprocess.Popen([sys.executable, "-c", UPGRADE, database_url], stderr=subprocess.PIPE, text=True)
            for _ in range(3)
        ]
        waiting = sa.text(
            "select count(*) from pg_locks join pg_database on pg_database.oid = database"
            " where locktype = 'advisory' and not granted and datname = current_database()"
        )
        while db.execute(waiting).scalar_one() < 3:
            assert all(child.poll() is None for child in children)
            pause.wait(0.05)
    assert [child.communicate(timeout=60)[1] for child in children] == ["", "", ""]
    assert [child.returncode for child in children] == [0, 0, 0]
    assert migrate.check(database_url) == []


# The command alembic, for those who write migrations


def test_alembic_check_agrees(alembic_says: Callable[..., str]) -> None:
    alembic_says(command.upgrade, "head")
    assert "No new upgrade operations detected" in alembic_says(command.check)
    assert alembic_says(command.current).strip() == f"{revisions.head()} (head)"


def test_alembic_takes_a_scratch_database_when_none_is_named(tmp_path: Path) -> None:
    """`alembic check`, typed in the root of the repository, and nothing more."""
    for name in ("pyproject.toml", "migrations"):
        (tmp_path / name).symlink_to(ROOT / name)
    migrate.upgrade(f"sqlite:///{tmp_path}/scratch.db")
    check = [sys.executable, "-m", "alembic", "check"]
    said = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert "No new upgrade operations detected" in said.stdout


@on_postgresql
def test_the_sql_that_alembic_prints_makes_the_same_tables(
    database_url: str, alembic_says: Callable[..., str]
) -> None:
    """For those whose programs may not make tables."""
    script = alembic_says(command.upgrade, "head", sql=True)
    with psycopg.connect(dsn_of(database_url), autocommit=True) as connection:
        connection.execute(script.encode())
    assert migrate.check(database_url) == []
    assert revisions.current(database_url) == revisions.head()
