"""Opens the database, and knows what differs between SQLite and PostgreSQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import ColumnElement

from analyzer.errors import NotInstalled, StoreAway

Engine = sa.Engine  # for rooms that know no SQL and only hand it on

# An analyzer that was stopped in mid-flush must not hold the others up for longer than this.
IDLE_IN_TRANSACTION_MS = 5_000
STATEMENT_MS = 2_000
CONNECT_S = 5
REFUSED = {"25006", "42501"}  # the server behind our address is a standby now; a right is missing
DAMAGED = {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}  # the driver has no class for these

READ_ONLY = {"gatelock_reads": True}  # an execution option: this transaction is one snapshot, writes nothing


def open_engine(url: str | sa.URL, *, statement_ms: int = STATEMENT_MS) -> sa.Engine:
    """An engine for the analyzer's writers: READ COMMITTED and full durability on PostgreSQL whatever the
    server's defaults are, WAL with FULL and BEGIN IMMEDIATE on SQLite. `statement_ms` 0 means no limit,
    for commands that read much. Raises NotInstalled."""
    url = sa.make_url(url)
    if url.get_backend_name() == "sqlite":
        return _open_sqlite(url)
    try:
        return _open_postgresql(url, statement_ms)
    except ImportError as missing:
        raise NotInstalled("PostgreSQL needs psycopg 3: pip install 'gatelock[postgres]'") from missing


def _open_postgresql(url: sa.URL, statement_ms: int) -> sa.Engine:
    options = {
        "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_MS,
        "lock_timeout": STATEMENT_MS,
        "statement_timeout": statement_ms,
        "synchronous_commit": "on",
        "timezone": "UTC",
    }
    return sa.create_engine(
        url,
        isolation_level="READ COMMITTED",
        pool_size=2,
        connect_args={
            "connect_timeout": CONNECT_S,
            "tcp_user_timeout": IDLE_IN_TRANSACTION_MS,
            # That one is for what was sent and not acknowledged. Who only waits for an answer has sent
            # nothing, and by default the kernel asks after two hours whether the machine is still there.
            "keepalives_idle": 2,
            "keepalives_interval": 1,
            "keepalives_count": 3,
            "options": " ".join(f"-c {name}={value}" for name, value in options.items()),
        },
    )


def _open_sqlite(url: sa.URL) -> sa.Engine:
    engine = sa.create_engine(url, connect_args={"timeout": STATEMENT_MS / 1000})

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # the driver begins nothing by itself; see `begin`
        _turn_to_wal(connection)
        connection.execute("pragma synchronous = full")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        # A deferred transaction that reads first and then writes fails at once when somebody else wrote in
        # between, whatever the time-out: writers take the file's lock at the beginning.
        reads = connection.get_execution_options().get("gatelock_reads")
        connection.exec_driver_sql("begin" if reads else "begin immediate")

    return engine


def _turn_to_wal(connection: sqlite3.Connection) -> None:
    """Where several open a new file at once, one turns it; the others are told at once that it is locked,
    whatever the time-out. For a transaction SQLite does wait."""
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
        connection.execute("begin exclusive")
        connection.execute("rollback")


@contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """One snapshot for all statements inside. Raises StoreAway."""
    options: dict[str, Any] = dict(READ_ONLY)
    if engine.dialect.name == "postgresql":
        options |= {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    with reaching(), engine.connect().execution_options(**options) as connection, connection.begin():
        yield connection


@contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """One transaction, committed at the end. Raises StoreAway; whether it was committed is then not known."""
    with reaching(), engine.begin() as connection:
        yield connection


@contextmanager
def reaching() -> Iterator[None]:
    """Turn what a driver raises when the database is away, busy, full, damaged or closed to us into
    StoreAway; a mistake of ours in a statement stays what it is."""
    try:
        yield
    except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
        if _is_away(error):
            raise StoreAway(sentence(error)) from error
        raise


def _is_away(error: sa.exc.DBAPIError | sa.exc.TimeoutError) -> bool:
    if isinstance(error, sa.exc.TimeoutError) or error.connection_invalidated:
        return True
    if getattr(error.orig, "sqlstate", None) in REFUSED:
        return True
    if getattr(error.orig, "sqlite_errorcode", None) in DAMAGED:
        return True
    if getattr(error.orig, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR:
        return False  # no such table: SQLite's driver has one class for this and for a full disk
    return isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError)


def sentence(error: BaseException) -> str:
    """The driver's words without SQLAlchemy's additions, on one line."""
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) and error.orig is not None else error
    lines = filter(None, (" ".join(line.split()) for line in str(cause).splitlines()))
    return " ".join(line if line[-1] in ".,:;!?" else f"{line};" for line in lines).removesuffix(";")


def insert(connection: sa.Connection, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    """An insert that can say ON CONFLICT, in this database's dialect."""
    return insert_into(connection.dialect.name, table)


def insert_into(dialect: str, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


class NowMs(ColumnElement[int]):
    """The database's clock, whole milliseconds since 1970 UTC; goes on within a transaction."""

    inherit_cache = True
    _traverse_internals: list[Any] = []  # noqa: RUF012 - without it each statement is compiled each time
    type = sa.BigInteger()


@compiles(NowMs, "postgresql")
def _now_postgresql(_element: NowMs, _compiler: Any, **_kw: Any) -> str:
    return "(extract(epoch from clock_timestamp()) * 1000)::bigint"


@compiles(NowMs, "sqlite")
def _now_sqlite(_element: NowMs, _compiler: Any, **_kw: Any) -> str:
    return "cast(round((julianday('now') - 2440587.5) * 86400000) as integer)"
