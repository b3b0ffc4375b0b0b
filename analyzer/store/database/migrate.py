"""Migrates the tables to the version of this program, and compares them with schema.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from alembic import command, context, op
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext

from analyzer.store.database.engine import database_errors, open_engine, reading
from analyzer.store.database.revisions import folder
from analyzer.store.database.schema import metadata

LOCK = 7_165_310  # PostgreSQL advisory lock: of analyzers that start together, one migrates


def upgrade(url: str | sa.URL, to: str = "head") -> None:
    """Migrates the tables to `to`. Idempotent, and safe to call from several processes. Raises StoreAway."""
    with _migrating(url) as config:
        command.upgrade(config, to)


def downgrade(url: str | sa.URL, to: str) -> None:
    """Migrates the tables back to `to`. Raises RuntimeError rather than drop a table that has rows."""
    with _migrating(url) as config:
        command.downgrade(config, to)


def keep_rows_of(*tables: str) -> None:
    """Guards a migration that drops these tables: raises RuntimeError when one has rows.

    `-x drop-counts=yes` overrides it.
    """
    if context.get_x_argument(as_dictionary=True).get("drop-counts") == "yes" or context.is_offline_mode():
        return
    for table in tables:
        rows = op.get_bind().execute(sa.select(sa.func.count()).select_from(sa.table(table))).scalar_one()
        if rows:
            raise RuntimeError(
                f"{table} holds {rows} rows that a downgrade would drop; "
                "keep a copy, then say so with `-x drop-counts=yes`"
            )


def check(url: str | sa.URL) -> list[str]:
    """Returns the differences between the database's tables and schema.py as text. Raises StoreAway."""
    engine = open_engine(url)
    try:
        with reading(engine) as connection:
            found = compare_metadata(MigrationContext.configure(connection), metadata)
            return [str(difference) for difference in found]
    finally:
        engine.dispose()


@contextmanager
def _migrating(url: str | sa.URL) -> Iterator[Config]:
    engine = open_engine(url, statement_ms=0)
    try:
        with database_errors(), engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql("set local lock_timeout = 0")
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))
            yield _config(connection)
    finally:
        engine.dispose()


def _config(connection: sa.Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(folder()))
    config.attributes["connection"] = connection
    return config
