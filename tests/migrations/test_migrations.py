"""The tables are made, dropped and made again: no count is lost, and databases of others are left alone."""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import Script, ScriptDirectory

from analyzer.kernel.database import migrate, revisions
from analyzer.kernel.database.dialects import dialect_of
from analyzer.kernel.database.engine import writing
from analyzer.kernel.errors import SchemaBehind, StoreAway
from analyzer.kernel.model import CountRow
from analyzer.kernel.tables.schema import feed, metadata
from tests.support.servers.child import free_port
from tests.support.servers.postgres import dsn_of
from tests.support.stored_counts import put_counts
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)


@pytest.fixture
def run_alembic(database_url: str) -> Callable[..., str]:
    """Runs one of Alembic's commands, as in the root of the repository, and returns what it prints."""

    def run(function: Callable[..., object], *words: str, x: tuple[str, ...] = (), **options: object) -> str:
        printed = io.StringIO()
        arguments = argparse.Namespace(x=[f"database={database_url}", *x])
        config = Config(
            toml_file=ROOT / "pyproject.toml", cmd_opts=arguments, output_buffer=printed, stdout=printed
        )
        function(config, *words, **options)
        return printed.getvalue()

    return run


def tables(engine: sa.Engine) -> set[str]:
    return set(sa.inspect(engine).get_table_names())


def contents(engine: sa.Engine) -> dict[str, list[tuple[object, ...]]]:
    with engine.connect() as db:
        return {
            table.name: [tuple(row) for row in db.execute(sa.select(table).order_by(*table.primary_key))]
            for table in metadata.sorted_tables
        }


def fill(engine: sa.Engine, name: str) -> None:
    """Inserts a row into the table `name`, with a value in each column."""
    table = metadata.tables[name]
    value_of = {sa.Text: "x", sa.BigInteger: 7, sa.SmallInteger: 7, sa.LargeBinary: b"x"}
    with writing(engine) as db:
        if name == "buckets":
            put_counts(db, [CountRow("caller", "user:ann", "", "requests", 60, 0, 1, 0)])
            return
        db.execute(sa.insert(table).values({c.name: value_of[type(c.type)] for c in table.c}))


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


@pytest.mark.parametrize("counted", ["buckets", "offsets", "rejects", "events", "callers"])
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


def test_a_downgrade_drops_counts_when_the_operator_permits_it(
    database_url: str, engine: sa.Engine, run_alembic: Callable[..., str]
) -> None:
    migrate.upgrade(database_url)
    fill(engine, "buckets")
    with pytest.raises(RuntimeError, match="buckets holds 1 rows"):
        run_alembic(command.downgrade, "base", x=("drop-counts=no",))
    run_alembic(command.downgrade, "base", x=("drop-counts=yes",))
    assert tables(engine) == {"alembic_version"}


def test_a_downgrade_drops_tables_that_can_be_filled_again(database_url: str, engine: sa.Engine) -> None:
    migrate.upgrade(database_url)
    for name in ("totals", "locks", "plans", "leases", "lock_changes", "feed_versions"):
        fill(engine, name)
    migrate.downgrade(database_url, "base")
    assert tables(engine) == {"alembic_version"}


def test_an_upgrade_that_fails_leaves_nothing_behind(database_url: str, engine: sa.Engine) -> None:
    """A foreign table has the name of one of ours, and earlier tables of the migration exist by then."""
    with writing(engine) as db:
        db.exec_driver_sql("create table rejects (what text)")
    with pytest.raises(sa.exc.DBAPIError, match="already exists"):
        migrate.upgrade(database_url)
    assert tables(engine) == {"rejects"}


def test_every_database_begins_with_a_different_mark(database_url: str, engine: sa.Engine) -> None:
    """Otherwise a gate that holds version 0 of one would take another database for the same."""
    marks = set()
    for _ in range(3):
        migrate.upgrade(database_url)
        with engine.connect() as db:
            row = db.execute(sa.select(feed)).one()
        assert (row.version, row.pruned_to) == (0, 0)
        marks.add(row.mark)
        migrate.downgrade(database_url, "base")
    assert len(marks) == 3


# The migrated tables and schema.py


def comparable(index: Mapping[str, Any]) -> dict[str, object]:
    """Returns the index with its condition as text: equal SQLAlchemy conditions compare unequal."""
    options = {name: str(value) for name, value in index.get("dialect_options", {}).items()}
    return {**index, "dialect_options": options}


def described(engine: sa.Engine) -> dict[str, object]:
    """Returns columns, keys, indexes and constraints by table, except of Alembic's."""
    inspector = sa.inspect(engine)
    return {
        name: {
            "columns": [{**column, "type": repr(column["type"])} for column in inspector.get_columns(name)],
            "key": inspector.get_pk_constraint(name),
            "indexes": sorted(
                map(comparable, inspector.get_indexes(name)), key=lambda index: str(index["name"])
            ),
            "unique": inspector.get_unique_constraints(name),
            "foreign": inspector.get_foreign_keys(name),
            "checks": inspector.get_check_constraints(name),
        }
        for name in sorted(inspector.get_table_names())
        if name != "alembic_version"
    }


def test_migrated_tables_are_the_tables_of_the_schema(database_url: str, engine: sa.Engine) -> None:
    """Including the order and collation of columns and the names of keys and indexes."""
    metadata.create_all(engine)
    created = described(engine)
    metadata.drop_all(engine)
    migrate.upgrade(database_url)
    assert described(engine) == created
    assert len(created) == len(metadata.tables)


def changed(engine: sa.Engine, *statements: str) -> None:
    with writing(engine) as db:
        for statement in statements:
            db.exec_driver_sql(statement)


# The sentences of `gatelock upkeep db upgrade --check`


def test_nothing_differs_after_an_upgrade(database_url: str) -> None:
    migrate.upgrade(database_url)
    assert migrate.check(database_url) == []


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("drop table brakes", "the table brakes is missing: restore the database from a backup"),
        (
            "create table colours (name text)",
            "the table colours is none of Gatelock's: move it to another database, or drop it",
        ),
        (
            "alter table leases add column colour text",
            "the column colour of the table leases is none of Gatelock's: drop it with "
            "`ALTER TABLE leases DROP COLUMN colour`",
        ),
        (
            "alter table leases drop column until_ms",
            "the column until_ms of the table leases, of the type BIGINT, is missing: "
            "restore the database from a backup",
        ),
        (
            "drop index ix_locks_until_ms",
            "the index ix_locks_until_ms of the table locks is missing: create it with "
            "`CREATE INDEX ix_locks_until_ms ON locks (until_ms)`",
        ),
        (
            "create index mine on locks (began_ms)",
            "the index mine of the table locks is none of Gatelock's, or has other columns: drop it with "
            "`DROP INDEX mine`",
        ),
    ],
)
def test_a_difference_is_a_sentence_with_a_cure(
    migrated_url: str, migrated: sa.Engine, statement: str, sentence: str
) -> None:
    changed(migrated, statement)
    assert migrate.check(migrated_url) == [sentence]


@on_postgresql
@pytest.mark.parametrize(
    ("statement", "part"),
    [
        ("alter table leases alter column holder type bigint using 0", "type BIGINT, and needs TEXT: "),
        ("alter table leases alter column holder drop not null", "permits NULL, and must not: "),
        ("alter table tokens alter column until_ms set not null", "does not permit NULL, and must: "),
        ("alter table leases add constraint one unique (holder)", "one of the table leases is none of Gate"),
    ],
)
def test_a_changed_column_is_a_sentence(
    migrated_url: str, migrated: sa.Engine, statement: str, part: str
) -> None:
    """SQLite cannot change a column."""
    changed(migrated, statement)
    [sentence] = migrate.check(migrated_url)
    assert part in sentence


ON_DAYS = {  # a statement that takes away a trigger, and its name
    "sqlite": ("drop trigger days_closed_update", "days_closed_update"),
    "postgresql": ("alter table days disable trigger closed_days", "closed_days"),
}


def test_a_closed_day_without_its_guard_is_a_sentence(
    database: str, migrated_url: str, migrated: sa.Engine
) -> None:
    statement, name = ON_DAYS[database]
    changed(migrated, statement)
    [sentence] = migrate.check(migrated_url)
    assert sentence.startswith(f"the trigger {name} of the table days is missing or disabled, and what is")


def test_all_triggers_of_the_migration_are_guards_of_closed_days(migrated: sa.Engine) -> None:
    with migrated.connect() as db:
        assert dialect_of(db).triggers(db) == dialect_of(db).guards


def test_the_commands_of_sentences_about_indexes_work(database_url: str, engine: sa.Engine) -> None:
    migrate.upgrade(database_url)
    changed(engine, "drop index ix_gaps_open", "create index mine on locks (began_ms)")
    changed(engine, *(sentence.split("`")[1] for sentence in migrate.check(database_url)))
    assert migrate.check(database_url) == []


# The files


def scripts() -> list[Script]:
    return list(ScriptDirectory.from_config(Config(toml_file=ROOT / "pyproject.toml")).walk_revisions())[::-1]


def test_one_migration_makes_all_tables_before_the_first_release() -> None:
    """From the tag of the first release on, migrations are numbered and kept: docs/decisions/0069."""
    [script] = scripts()
    assert Path(script.path).name == revisions.UNRELEASED_FILE
    assert (script.revision, script.down_revision) == (revisions.head(), None)


def test_another_text_of_the_migration_is_another_version(tmp_path: Path) -> None:
    text = (ROOT / "migrations/versions" / revisions.UNRELEASED_FILE).read_text()
    copies = {tmp_path / "equal.py": text, tmp_path / "edited.py": text.replace("hash", "digest", 1) + "#"}
    for path, content in copies.items():
        path.write_text(content)
    equal, edited = map(revisions.unreleased_revision, copies)
    assert equal == revisions.head() != edited
    assert re.fullmatch(r"unreleased_[0-9a-f]{12}", edited)


# Databases of other versions


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


NEWER, UNRELEASED, EARLIER, FOREIGN = "r9999", "unreleased_0123456789ab", "0030", "1975ea83b712"


@pytest.mark.parametrize("revision", [NEWER, UNRELEASED, EARLIER, FOREIGN])
@pytest.mark.parametrize("act", [migrate.upgrade, migrate.require_head])
def test_a_database_that_no_migration_leads_from_is_refused_and_left_alone(
    database_url: str, engine: sa.Engine, act: Callable[[str], object], revision: str
) -> None:
    migrate.upgrade(database_url)
    at_version(engine, revision)
    before = contents(engine)
    with pytest.raises(SchemaBehind, match=rf"at version {revision}, this program needs {revisions.head()}"):
        act(database_url)
    assert revisions.current(database_url) == revision
    assert contents(engine) == before


def test_a_database_of_an_unreleased_version_is_created_again_by_the_command_of_its_sentence(
    database: str, tmp_path: Path
) -> None:
    """The command has no password of the database's URL."""
    url = f"sqlite:///{tmp_path}/a b.db"
    if database == "postgresql":
        url = "postgresql+psycopg://ada:s3cret@db/counts"
    for revision in (UNRELEASED, EARLIER):
        sentence = str(revisions.schema_problem(revision, url))
        what, _, cure = sentence.partition(": ")
        assert "an unreleased version made them, and what they hold is not carried over" in what
        assert cure.endswith(", and run `gatelock upkeep db upgrade`")
        command = cure.split("`")[1]
        if database == "postgresql":
            assert command == "dropdb --force counts && createdb counts"
            continue
        migrate.upgrade(url)
        subprocess.run(["sh", "-ec", command], check=True)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("revision", "needed", "cure"),
    [
        (NEWER, "r0002", "run a newer program"),
        (NEWER, UNRELEASED, "run a newer program"),
        ("r0001", "r0002", "run `gatelock upkeep db upgrade`"),
        (FOREIGN, "r0002", "name another one in [database] url"),
        (None, "r0002", "run `gatelock upkeep db upgrade`"),
    ],
)
def test_a_version_has_its_cure(revision: str | None, needed: str, cure: str) -> None:
    sentence = str(revisions.schema_problem(revision, "sqlite:///gatelock.db", needed))
    assert sentence.partition(": ")[2] == cure


@pytest.mark.parametrize(
    "function", [revisions.current, migrate.check, migrate.upgrade, migrate.require_head]
)
def test_an_unreachable_database_raises_store_away(function: Callable[[str], object]) -> None:
    with pytest.raises(StoreAway):
        function(f"postgresql+psycopg://gatelock@127.0.0.1:{free_port()}/gatelock")


UPGRADE = "import sys; from analyzer.kernel.database.migrate import upgrade; upgrade(sys.argv[1])"


@on_postgresql
def test_three_processes_upgrade_an_empty_database_at_once(database_url: str, engine: sa.Engine) -> None:
    """One migrates; the others wait for it and then find the tables."""
    with writing(engine) as db:
        db.execute(sa.select(sa.func.pg_advisory_xact_lock(migrate.LOCK)))  # until all three wait
        children = [
            subprocess.Popen([sys.executable, "-c", UPGRADE, database_url], stderr=subprocess.PIPE, text=True)
            for _ in range(3)
        ]
        waiting = sa.text(
            "select count(*) from pg_locks join pg_database on pg_database.oid = database"
            " where locktype = 'advisory' and not granted and datname = current_database()"
        )
        wait_until(lambda: db.execute(waiting).scalar_one() == 3, within_s=60)
    assert [child.communicate(timeout=60)[1] for child in children] == ["", "", ""]
    assert [child.returncode for child in children] == [0, 0, 0]
    assert migrate.check(database_url) == []


# The command `alembic`, for developers who write migrations


def test_alembic_check_agrees(run_alembic: Callable[..., str]) -> None:
    run_alembic(command.upgrade, "head")
    assert "No new upgrade operations detected" in run_alembic(command.check)
    assert run_alembic(command.current).strip() == f"{revisions.head()} (head)"


def test_alembic_takes_a_scratch_database_when_none_is_named(tmp_path: Path) -> None:
    """`alembic check`, typed in the root of the repository without options."""
    for name in ("pyproject.toml", "migrations"):
        (tmp_path / name).symlink_to(ROOT / name)
    migrate.upgrade(f"sqlite:///{tmp_path}/scratch.db")
    check = [sys.executable, "-m", "alembic", "check"]
    result = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "No new upgrade operations detected" in result.stdout


@on_postgresql
def test_the_sql_that_alembic_prints_makes_the_same_tables(
    database_url: str, run_alembic: Callable[..., str]
) -> None:
    """For installations in which programs may not create tables."""
    script = run_alembic(command.upgrade, "head", sql=True)
    with psycopg.connect(dsn_of(database_url), autocommit=True) as connection:
        connection.execute(script.encode())
    assert migrate.check(database_url) == []
    assert revisions.current(database_url) == revisions.head()
