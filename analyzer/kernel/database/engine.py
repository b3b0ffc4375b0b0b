"""Opens the database, and its transactions; `dialects` has the differences between databases."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import ColumnElement

from analyzer.kernel.database import refused_transactions
from analyzer.kernel.database.dialects import DIALECTS, dialect_at, dialect_of
from analyzer.kernel.database.timeouts import IDLE_IN_TRANSACTION_MS, STATEMENT_MS, Timeouts
from analyzer.kernel.errors import NotInstalled, StoreAway, StoreRefused

Engine = sa.Engine  # for packages that only pass it on and must not import SQLAlchemy

# Of commands and other batches, which compute for long between two statements, on a machine that may have
# little time for them.
BATCH_MS = 60_000
BATCH_BUSY_MS = 30_000
REFUSED = {"25006", "42501"}  # read-only (the server has become a standby); insufficient privilege
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS)  # no descriptor is left to connect with
DAMAGED = {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}  # sqlite3 has no separate exception class for these
ROWS_AT_ONCE = 1_000  # fetched at a time, so that a long list needs constant memory

BOUND_MS = "gatelock_bound_ms"  # execution option: the time-out of `slow_reading`
# In the info of a connection: called with it at the end of `writing`; returns what comes after the commit.
AT_COMMIT = "gatelock_at_commit"
READ_ONLY = {"gatelock_reads": True}  # execution option: this transaction is one snapshot without writes


def open_engine(
    url: str | sa.URL,
    *,
    statement_ms: int = STATEMENT_MS,
    idle_ms: int = IDLE_IN_TRANSACTION_MS,
    busy_ms: int = STATEMENT_MS,
) -> sa.Engine:
    """Returns an engine for writers: READ COMMITTED on PostgreSQL, BEGIN IMMEDIATE on SQLite, fully durable.

    The server's defaults are overridden. Raises NotInstalled. The connections raise DatabaseUnusable in a
    database that is not UTF-8, DatabaseReplaced when their SQLite file was replaced.

    Args:
        url: In the form of SQLAlchemy.
        statement_ms: Time-out of a statement on PostgreSQL; 0 for none.
        idle_ms: Longest time between two statements of a transaction on PostgreSQL.
        busy_ms: How long SQLite waits for a file that another process writes to.
    """
    url = sa.make_url(url)
    try:
        return dialect_at(url).open(url, Timeouts(statement_ms, idle_ms, busy_ms, lock_ms=STATEMENT_MS))
    except ImportError as missing:
        raise NotInstalled("PostgreSQL needs psycopg 3: pip install 'gatelock[postgres]'") from missing


def open_batch_engine(url: str | sa.URL) -> sa.Engine:
    """Returns an engine for commands and other batches, which wait longer than a flush may."""
    return open_engine(url, idle_ms=BATCH_MS, busy_ms=BATCH_BUSY_MS)


@contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Opens a read-only transaction: one snapshot for all statements inside. Raises StoreAway."""
    options: dict[str, Any] = {**READ_ONLY, **dialect_of(engine).reading_options}
    with database_errors(), engine.connect().execution_options(**options) as connection, connection.begin():
        yield connection


@contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Opens a transaction that commits at the end. Raises StoreAway; the outcome is then unknown."""
    with database_errors(), engine.begin() as connection:
        connection.info.pop(AT_COMMIT, None)  # of a transaction that failed
        yield connection
        at_commit = connection.info.pop(AT_COMMIT, None)
        after_commit = None if at_commit is None else at_commit(connection)
    if after_commit is not None:
        after_commit()


@contextmanager
def slow_writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Opens a transaction of a batch, which commits at the end: its statements, and what is computed between
    two of them, may take `BATCH_MS`. Raises StoreAway; the outcome is then unknown.
    """
    with writing(engine) as db:
        dialect_of(db).set_local(
            db, {"idle_in_transaction_session_timeout": BATCH_MS, "statement_timeout": BATCH_MS}
        )
        yield db


@contextmanager
def slow_reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Opens a snapshot without time-outs, for a reader that pages through it. It blocks no flush.

    On an engine of `bounded_reads` its statements have a time-out.
    """
    with reading(engine) as db:
        bound_ms = db.get_execution_options().get(BOUND_MS, 0)
        with dialect_of(db).bounded(db, bound_ms):
            yield db


def bounded_reads(engine: sa.Engine, timeout_ms: int) -> sa.Engine:
    """Returns the engine, with its connections, for slow readers that other programs ask for.

    A statement of `slow_reading` that takes longer raises StoreAway; on SQLite the whole transaction counts.
    """
    return engine.execution_options(**{BOUND_MS: timeout_ms})


def without_scans(db: sa.Connection) -> None:
    """Keeps PostgreSQL from reading whole tables in this transaction.

    Statistics that are out of date make it expect a scan to be cheap.
    """
    dialect_of(db).set_local(db, {"enable_seqscan": "off"})


def sort_in_memory(db: sa.Connection, megabytes: int) -> None:
    """Lets a server use so much memory for each sort or sum of this transaction, rather than the disk."""
    dialect_of(db).set_local(db, {"work_mem": f"{megabytes}MB"})


def commit_soon(db: sa.Connection) -> None:
    """Lets this transaction be lost if the server fails at once: what it writes comes again in seconds."""
    dialect_of(db).set_local(db, {"synchronous_commit": "off"})


@contextmanager
def database_errors() -> Iterator[None]:
    """Raises StoreAway for driver errors of a database that is away, busy, full, damaged or read-only, and
    when this process has no descriptor left to connect to it; StoreRefused if the cure is known.

    An error in a statement is a bug and passes unchanged.
    """
    try:
        yield
    except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
        if _is_away(error):
            raise _translate_error(error) from error
        raise
    except OSError as error:
        if error.errno in OUT_OF_FILES:
            raise StoreAway(f"cannot be connected to: {error.strerror}; see `ulimit -n`") from error
        raise


def _translate_error(error: sa.exc.DBAPIError | sa.exc.TimeoutError) -> StoreAway:
    cause, message = getattr(error, "orig", None), error_message(error)
    codes = getattr(cause, "sqlstate", None), getattr(cause, "sqlite_errorcode", None)
    explained = refused_transactions.explain(message, *codes)
    return StoreAway(message) if explained is None else StoreRefused(*explained)


def _is_away(error: sa.exc.DBAPIError | sa.exc.TimeoutError) -> bool:
    if isinstance(error, sa.exc.TimeoutError) or error.connection_invalidated:
        return True
    if getattr(error.orig, "sqlstate", None) in REFUSED:
        return True
    if getattr(error.orig, "sqlite_errorcode", None) in DAMAGED:
        return True
    if getattr(error.orig, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR:
        return False  # such as a missing table: SQLite's driver has one class for this and for a full disk
    return isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError)


def error_message(error: BaseException) -> str:
    """Returns the driver's message on one line, without SQLAlchemy's additions."""
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) and error.orig is not None else error
    lines = filter(None, (" ".join(line.split()) for line in str(cause).splitlines()))
    return " ".join(line if line[-1] in ".,:;!?" else f"{line};" for line in lines).removesuffix(";")


def insert(connection: sa.Connection, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    """Returns an INSERT with ON CONFLICT in the dialect of this connection."""
    return insert_into(connection.dialect.name, table)


def insert_into(dialect: str, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    """Returns an INSERT with ON CONFLICT in a dialect."""
    return DIALECTS[dialect].insert(table)


class NowMs(ColumnElement[int]):
    """The database's clock in milliseconds since 1970 UTC; it advances within a transaction."""

    inherit_cache = True
    _traverse_internals: list[Any] = []  # noqa: RUF012 - without it each statement is compiled each time
    type = sa.BigInteger()


@compiles(NowMs)
def _now_ms(_element: NowMs, compiler: Any, **_kw: Any) -> str:
    return DIALECTS[compiler.dialect.name].now_ms


def require_file(url: str) -> None:
    """Raises StoreAway if `url` is a SQLite file that does not exist: opening it would create one."""
    path = dialect_at(url).file(sa.make_url(url))
    if path is not None and not path.exists():
        raise StoreAway(
            f"the file {path} does not exist (`gatelock run` and `gatelock upkeep db upgrade` create it)"
        )
