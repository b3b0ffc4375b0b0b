"""PostgreSQL: how it is opened, bounded and locked, and expressions that it has in another form."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from analyzer.kernel.database.timeouts import IDLE_IN_TRANSACTION_MS, Timeouts
from analyzer.kernel.errors import BackupFailed, DatabaseUnusable
from analyzer.kernel.tables.billing_tables import CLOSED
from gatekeeper.sources.postgres_sessions import set_up_sessions

CONNECT_S = 5
# Of a URL, what `pg_dump` needs as well.
OF_CONNECTION = ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword", "service", "passfile")
STEP_S = 0.05  # flushes wait for rows alone, and steps skip the rows that flushes hold
NOW_MS = "(extract(epoch from clock_timestamp()) * 1000)::bigint"
# The triggers that refuse changes of closed days, by "table.trigger".
GUARDS = frozenset(
    {
        *(f"{table}.{name}" for table in CLOSED for name in ("closed_days", "closed_days_kept")),
        *(
            f"{table}.{table}_{end}"
            for table in ("corrections", "deleted_days", "chain_entries")
            for end in ("kept", "not_truncated")
        ),
    }
)
TRIGGERS = sa.text(
    "select relname || '.' || tgname from pg_trigger join pg_class on pg_class.oid = tgrelid "
    "where not tgisinternal and tgenabled <> 'D' and pg_table_is_visible(tgrelid)"
)
OPEN_CONNECTIONS = sa.text("select count(*) from pg_stat_activity where application_name = :name")
CONNECTIONS_MAX = sa.text("select current_setting('max_connections')::int")


def open_engine(url: sa.URL, timeouts: Timeouts) -> sa.Engine:
    """Returns an engine for writers: READ COMMITTED, fully durable; the server's defaults are overridden."""
    engine = sa.create_engine(
        url,
        isolation_level="READ COMMITTED",
        pool_size=2,
        connect_args={
            # Without it the driver returns bytes from a database without an encoding.
            "client_encoding": "utf8",
            "connect_timeout": CONNECT_S,
            "tcp_user_timeout": IDLE_IN_TRANSACTION_MS,
            # tcp_user_timeout covers data that is not acknowledged. A client that only waits for an answer
            # has sent none, and by default the kernel checks after two hours whether the server is still
            # there.
            "keepalives_idle": 2,
            "keepalives_interval": 1,
            "keepalives_count": 3,
        },
    )
    settings: dict[str, str | int] = {
        "idle_in_transaction_session_timeout": timeouts.idle_ms,
        # Compiling a statement takes 0.1 s. `without_scans` makes short ones look expensive enough for that.
        "jit": "off",
        "lock_timeout": timeouts.lock_ms,
        "statement_timeout": timeouts.statement_ms,
        "synchronous_commit": "on",
        "timezone": "UTC",
    }
    set_up_sessions(engine, settings)
    sa.event.listen(engine, "connect", _require_utf8)
    return engine


def _require_utf8(connection: Any, _record: object) -> None:
    """Raises DatabaseUnusable if the database cannot hold every text."""
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        name = connection.info.dbname
        raise DatabaseUnusable(
            f"the database {name} has the encoding {encoding}, which cannot hold every caller's name",
            "create another one: createdb --encoding=UTF8 --template=template0 NAME, and write its name into "
            "[database] url",
        )


def file(_url: sa.URL) -> Path | None:
    """Returns None: a server has no file here."""
    return None


def remaking_command(name: str) -> str:
    """Returns the command that drops the database and creates it."""
    return f"dropdb --force {shlex.quote(name)} && createdb {shlex.quote(name)}"


def connection_counts(db: sa.Connection, client: str) -> tuple[int, int]:
    """Returns how many connections of clients of this name are open, and how many of all clients may be."""
    open_now: int = db.execute(OPEN_CONNECTIONS, {"name": client}).scalar_one()
    most: int = db.execute(CONNECTIONS_MAX).scalar_one()
    return open_now, most


def set_local(db: sa.Connection, parameters: Mapping[str, str | int]) -> None:
    """Sets parameters of the server for this transaction."""
    for name, value in parameters.items():
        literal = value if isinstance(value, int) else f"'{value}'"
        db.exec_driver_sql(f"set local {name} = {literal}")


def bounded(db: sa.Connection, timeout_ms: int) -> AbstractContextManager[None]:
    """Sets the time-outs of this transaction; 0: none."""
    set_local(db, {"statement_timeout": timeout_ms, "idle_in_transaction_session_timeout": timeout_ms})
    return nullcontext()


def lock_table(db: sa.Connection, table: str, mode: str) -> None:
    """Locks a table until commit."""
    db.exec_driver_sql(f"lock table {table} in {mode} mode")


def lock_number(db: sa.Connection, number: int) -> None:
    """Waits until no other transaction has the advisory lock of this number."""
    db.execute(sa.select(sa.func.pg_advisory_xact_lock(number)))


def empty(db: sa.Connection, table: sa.Table) -> None:
    """Deletes all rows at once, with their space."""
    db.execute(sa.text(f"truncate table {table.name}"))


def notify(db: sa.Connection, channel: str) -> None:
    """Notifies the listeners of a channel when this transaction commits."""
    db.execute(sa.select(sa.func.pg_notify(channel, "")))


def insert(table: sa.Table) -> postgresql.Insert:
    """Returns an INSERT that takes ON CONFLICT."""
    return postgresql.insert(table)


def triggers(db: sa.Connection) -> set[str]:
    """Returns the triggers that are enabled, by "table.trigger"."""
    return set(db.scalars(TRIGGERS))


def by_bytes(text: sa.ColumnElement[str]) -> sa.ColumnElement[str]:
    """Returns a text that is compared by its bytes, in any locale of the database."""
    return sa.collate(text, "C")


def series(from_s: sa.BindParameter[int], until_s: sa.BindParameter[int], step_s: int) -> Any:
    """Returns a table with the column `at_s`: from a parameter to another one in steps."""
    step = sa.literal(step_s, sa.BigInteger)
    return sa.func.generate_series(from_s, until_s, step).table_valued("at_s").render_derived()


def copy(engine: sa.Engine, folder: Path) -> None:
    """Copies by `pg_dump`, which reads one snapshot. Its password is not among its arguments."""
    program, url = shutil.which("pg_dump"), engine.url
    if program is None:
        raise BackupFailed("pg_dump is not installed: install the PostgreSQL client of the server's version")
    parameters = {
        "host": url.host, "port": url.port, "user": url.username, "dbname": url.database,
        **{name: value for name, value in url.query.items() if name in OF_CONNECTION},
    }  # fmt: skip
    connection = " ".join(f"{name}={_quoted(value)}" for name, value in parameters.items() if value)
    environment = {**os.environ, **({} if url.password is None else {"PGPASSWORD": str(url.password)})}
    command = [program, "--format=custom", f"--file={folder / 'gatelock.dump'}", f"--dbname={connection}"]
    dumped = subprocess.run(  # noqa: S603 - a program of PostgreSQL
        command, env=environment, capture_output=True, text=True, check=False
    )
    if dumped.returncode:
        reason = (dumped.stderr.strip().splitlines() or ["no reason was given"])[0]
        raise BackupFailed(f"pg_dump failed: {reason}")


def _quoted(value: object) -> str:
    """Returns a value of a connection string, as libpq reads it."""
    text = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"
