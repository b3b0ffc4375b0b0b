"""Brings a database's tables to this program's version, and says which version they are of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from analyzer.errors import SchemaBehind
from analyzer.store.engine import open_engine, reaching, reading
from analyzer.store.schema import metadata

LOCK = 7_165_310  # an advisory lock on PostgreSQL: of analyzers that start together one migrates


def upgrade(url: str | sa.URL, to: str = "head") -> None:
    """Bring the tables to `to`. Safe to call from many processes at once; again changes nothing.
    Raises StoreAway."""
    with _migrating(url) as config:
        command.upgrade(config, to)


def downgrade(url: str | sa.URL, to: str) -> None:
    """Take the tables back to `to`. Raises RuntimeError rather than drop a table that holds something."""
    with _migrating(url) as config:
        command.downgrade(config, to)


def current(url: str | sa.URL) -> str | None:
    """The version of the tables; None for a database without any. Raises StoreAway."""
    engine = open_engine(url)
    try:
        with reading(engine) as connection:
            return MigrationContext.configure(connection).get_current_revision()
    finally:
        engine.dispose()


def head() -> str:
    """The version that this program needs."""
    script = ScriptDirectory.from_config(_config(None)).get_current_head()
    if script is None:
        raise RuntimeError("this installation has no migrations")
    return script


def check(url: str | sa.URL) -> list[str]:
    """What differs between the database's tables and schema.py, in words; nothing when they agree.
    Raises StoreAway."""
    engine = open_engine(url)
    try:
        with reading(engine) as connection:
            context = MigrationContext.configure(connection)
            return [str(difference) for difference in compare_metadata(context, metadata)]
    finally:
        engine.dispose()


def require_head(url: str | sa.URL) -> None:
    """Make sure that the tables are this program's: a database without any gets them, one of another
    version is left alone. Raises SchemaBehind, StoreAway."""
    have = current(url)
    if have is None:
        upgrade(url)
    elif have != head():
        cure = "run `gatelock db upgrade`" if have in _known() else "it was upgraded by a newer one, run that"
        raise SchemaBehind(f"the database is at version {have}, this program needs {head()}: {cure}")


def _known() -> set[str]:
    return {script.revision for script in ScriptDirectory.from_config(_config(None)).walk_revisions()}


@contextmanager
def _migrating(url: str | sa.URL) -> Iterator[Config]:
    engine = open_engine(url, statement_ms=0)
    try:
        with reaching(), engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql("set local lock_timeout = 0")
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))
            yield _config(connection)
    finally:
        engine.dispose()


def _config(connection: sa.Connection | None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(folder()))
    config.attributes["connection"] = connection
    return config


def folder() -> Path:
    """Where the migrations are: beside this package in a source tree, inside it in a wheel."""
    shipped = Path(str(resources.files("analyzer"))) / "_migrations"
    return shipped if shipped.is_dir() else Path(str(resources.files("analyzer"))).parent / "migrations"
