"""Runs the migrations, for `gatelock upkeep db` and for the alembic command alike."""

from __future__ import annotations

from alembic import context

from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.tables.schema import metadata

config = context.config

SCRATCH = "sqlite:///scratch.db"  # for `alembic upgrade head`, `check` and `revision`: holds no data


def database_url() -> str:
    """`alembic -x database=URL ...` names another database than the scratch one."""
    return context.get_x_argument(as_dictionary=True).get("database", SCRATCH)


def run_offline() -> None:
    """Prints the SQL for an operator to apply: `alembic upgrade head --sql`."""
    context.configure(url=database_url(), target_metadata=metadata, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()


def run_online() -> None:
    connection = config.attributes.get("connection")
    if connection is not None:
        run_on(connection)
        return
    engine = open_engine(database_url(), statement_ms=0)
    try:
        with engine.begin() as connection:
            run_on(connection)
    finally:
        engine.dispose()


def run_on(connection: object) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=True,
    )
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    run_offline()
else:
    run_online()
