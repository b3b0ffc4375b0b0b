"""Migrates the tables to the version of this program, and compares them with schema.py.

Each function that needs Alembic imports it: the import takes a second, and an analyzer that was killed must
be back within three.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import sqlalchemy as sa

from analyzer.kernel.database.dialects import dialect_of
from analyzer.kernel.database.engine import database_errors, open_engine, reading
from analyzer.kernel.database.revisions import current, folder, is_upgradable, schema_problem, stored_revision
from analyzer.kernel.database.schema_differences import difference_sentence, guard_sentence
from analyzer.kernel.errors import SchemaBehind
from analyzer.kernel.tables.schema import metadata

if TYPE_CHECKING:
    from alembic.config import Config

LOCK = 7_165_310  # PostgreSQL advisory lock: of analyzers that start together, one migrates


def require_head(url: str | sa.URL) -> list[str]:
    """Creates the tables where there are none, and checks that existing ones have the right version.

    Returns the names of the tables that it created. Raises SchemaBehind, StoreAway.
    """
    have = current(url)
    if have is None:
        upgrade(url)
        return sorted(metadata.tables)
    if problem := schema_problem(have, url):
        raise SchemaBehind(str(problem))
    return []


def upgrade(url: str | sa.URL) -> None:
    """Migrates the tables to this program's version. Idempotent, and safe to call from several processes.

    Changes nothing in a database that no migration leads from: of a newer, an unreleased or another program.
    Raises SchemaBehind for it, and StoreAway.
    """
    from alembic import command

    with _migrating(url) as (config, revision):
        if revision is not None and not is_upgradable(revision):
            raise SchemaBehind(str(schema_problem(revision, url)))
        command.upgrade(config, "head")


def downgrade(url: str | sa.URL, to: str) -> None:
    """Migrates the tables back to `to`: a version, or "base" for none.

    Raises RuntimeError if unrecoverable rows would be dropped, and StoreAway.
    """
    from alembic import command

    with _migrating(url) as (config, _):
        command.downgrade(config, to)


def require_empty(*tables: str) -> None:
    """Guards a migration that drops these tables: raises RuntimeError when one has rows.

    `-x drop-counts=yes` overrides it.
    """
    from alembic import context, op

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
    """Returns a sentence, with its cure, for each difference between the database's tables and schema.py.

    Of the triggers that keep closed days the names are compared. Raises StoreAway.
    """
    from alembic.autogenerate import compare_metadata
    from alembic.runtime.migration import MigrationContext

    engine = open_engine(url)
    try:
        with reading(engine) as connection:
            differences = compare_metadata(MigrationContext.configure(connection), metadata)
            of_tables = [difference_sentence(difference, connection.dialect) for difference in differences]
            present = dialect_of(connection).triggers(connection)
            return [*of_tables, *map(guard_sentence, sorted({*dialect_of(connection).guards} - present))]
    finally:
        engine.dispose()


@contextmanager
def _migrating(url: str | sa.URL) -> Iterator[tuple[Config, str | None]]:
    """Yields Alembic's configuration and the version of the tables; other processes wait."""
    engine = open_engine(url, statement_ms=0)
    try:
        with database_errors(), engine.begin() as connection:
            dialect = dialect_of(connection)
            dialect.set_local(connection, {"lock_timeout": 0})  # as long as it takes
            dialect.lock_number(connection, LOCK)
            yield _config(connection), stored_revision(connection)
    finally:
        engine.dispose()


def _config(connection: sa.Connection) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(folder()))
    config.attributes["connection"] = connection
    return config
