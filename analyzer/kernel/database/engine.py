"""Opens the database; the differences between SQLite and PostgreSQL are here."""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import ColumnElement

from analyzer.kernel.database import refused_transactions
from analyzer.kernel.errors import DatabaseReplaced, DatabaseUnusable, NotInstalled, StoreAway, StoreRefused
from gatekeeper.sources.postgres_sessions import set_up_sessions

Engine = sa.Engine  # for packages that only pass it on and must not import SQLAlchemy

# An analyzer that was stopped in mid-flush must not block the others for longer than this.
IDLE_IN_TRANSACTION_MS = 5_000
STATEMENT_MS = 2_000
# Of commands and other batches, which compute for long between two statements, on a machine that may have
# little time for them.
BATCH_MS = 60_000
BATCH_BUSY_MS = 30_000
CONNECT_S = 5
REFUSED = {"25006", "42501"}  # read-only (the server has become a standby); insufficient privilege
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS)  # no descriptor is left to connect with
PRIVATE = 0o600
DAMAGED = {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}  # sqlite3 has no separate exception class for these
ROWS_AT_ONCE = 1_000  # fetched at a time, so that a long list needs constant memory

BOUND_MS = "gatelock_bound_ms"  # execution option: the time-out of `slow_reading`
INSTRUCTIONS = 10_000  # of SQLite between two looks at the clock: a few milliseconds
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
    if url.get_backend_name() == "sqlite":
        return _open_sqlite(url, busy_ms)
    try:
        return _open_postgresql(url, statement_ms, idle_ms)
    except ImportError as missing:
        raise NotInstalled("PostgreSQL needs psycopg 3: pip install 'gatelock[postgres]'") from missing


def _open_postgresql(url: sa.URL, statement_ms: int, idle_ms: int) -> sa.Engine:
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
        "idle_in_transaction_session_timeout": idle_ms,
        # Compiling a statement takes 0.1 s. `without_scans` makes short ones look expensive enough for that.
        "jit": "off",
        "lock_timeout": STATEMENT_MS,
        "statement_timeout": statement_ms,
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
            f"the database {name} has the encoding {encoding}, which cannot hold every caller's name; create "
            f"another one: createdb --encoding=UTF8 --template=template0 NAME, and write its name into "
            "[database] url"
        )


def open_batch_engine(url: str | sa.URL) -> sa.Engine:
    """Returns an engine for commands and other batches, which wait longer than a flush may."""
    return open_engine(url, idle_ms=BATCH_MS, busy_ms=BATCH_BUSY_MS)


def _open_sqlite(url: sa.URL, busy_ms: int) -> sa.Engine:
    engine = sa.create_engine(url, connect_args={"timeout": busy_ms / 1000})

    @sa.event.listens_for(engine, "do_connect")
    def create(*_arguments: object) -> None:
        create_private(Path(url.database or ""))

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # the driver begins no transaction; see `begin`
        _switch_to_wal(connection)
        connection.execute("pragma synchronous = full")
        record.info["file"] = _inode(url)

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        # A deferred transaction that reads first and then writes fails at once when another one wrote in
        # between, regardless of the time-out: writers take the file's lock at the beginning.
        _require_same_file(url, connection.info.get("file"))
        reads = connection.get_execution_options().get("gatelock_reads")
        connection.exec_driver_sql("begin" if reads else "begin immediate")

    return engine


def _inode(url: sa.URL) -> tuple[int, int] | None:
    """Returns device and number of a SQLite file; None in memory, or when there is no file."""
    try:
        status = Path(url.database).stat() if url.database and url.database != ":memory:" else None
    except FileNotFoundError:
        return None
    return None if status is None else (status.st_dev, status.st_ino)


def _require_same_file(url: sa.URL, opened: tuple[int, int] | None) -> None:
    """Raises DatabaseReplaced if the file at the path is not the one that a connection has opened.

    Not opened again: other connections of this process may still hold the deleted file, whose write-ahead log
    has the name that the new file's would have.
    """
    if opened is not None and _inode(url) != opened:
        raise DatabaseReplaced(
            f"the file {Path(url.database or '').absolute()} was replaced or deleted while it was open, so "
            "nothing more is stored; start again, and stop analyzers before you replace the file"
        )


def create_private(path: Path) -> None:
    """Creates an empty file that only its owner may read and write, unless there is one.

    SQLite would let every user of the machine read a new file. It gives the write-ahead log the mode of the
    file, so that `chmod 640` opens both to a group.
    """
    with suppress(OSError):  # it exists, or SQLite will say why it cannot be created
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, PRIVATE))


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Switches a file to WAL once.

    When several processes open a new file together, one of them switches it and the others fail at once,
    regardless of the time-out. For a transaction SQLite does wait.
    """
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
    """Opens a read-only transaction: one snapshot for all statements inside. Raises StoreAway."""
    options: dict[str, Any] = dict(READ_ONLY)
    if engine.dialect.name == "postgresql":
        options |= {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    with database_errors(), engine.connect().execution_options(**options) as connection, connection.begin():
        yield connection


@contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Opens a transaction that commits at the end. Raises StoreAway; the outcome is then unknown."""
    with database_errors(), engine.begin() as connection:
        yield connection


@contextmanager
def slow_writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Opens a transaction of a batch, which commits at the end: its statements, and what is computed between
    two of them, may take `BATCH_MS`. Raises StoreAway; the outcome is then unknown.
    """
    with writing(engine) as db:
        if db.dialect.name == "postgresql":
            for timeout in ("idle_in_transaction_session_timeout", "statement_timeout"):
                db.exec_driver_sql(f"set local {timeout} = {BATCH_MS}")
        yield db


@contextmanager
def slow_reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Opens a snapshot without time-outs, for a reader that pages through it. It blocks no flush.

    On an engine of `bounded_reads` its statements have a time-out.
    """
    with reading(engine) as db:
        bound_ms = db.get_execution_options().get(BOUND_MS, 0)
        if db.dialect.name == "postgresql":
            for timeout in ("statement_timeout", "idle_in_transaction_session_timeout"):
                db.exec_driver_sql(f"set local {timeout} = {bound_ms}")
            yield db
        elif bound_ms:
            with _interrupted_after(db, bound_ms):
                yield db
        else:
            yield db


def bounded_reads(engine: sa.Engine, timeout_ms: int) -> sa.Engine:
    """Returns the engine, with its connections, for slow readers that other programs ask for.

    A statement of `slow_reading` that takes longer raises StoreAway; on SQLite the whole transaction counts.
    """
    return engine.execution_options(**{BOUND_MS: timeout_ms})


@contextmanager
def _interrupted_after(db: sa.Connection, timeout_ms: int) -> Iterator[None]:
    """Has SQLite interrupt statements of this transaction once the time is over."""
    connection: Any = db.connection.driver_connection
    end_s = time.monotonic() + timeout_ms / 1000
    connection.set_progress_handler(lambda: time.monotonic() > end_s, INSTRUCTIONS)
    try:
        yield
    finally:
        connection.set_progress_handler(None, 0)


def without_scans(db: sa.Connection) -> None:
    """Keeps PostgreSQL from reading whole tables in this transaction.

    Statistics that are out of date make it expect a scan to be cheap.
    """
    if db.dialect.name == "postgresql":
        db.exec_driver_sql("set local enable_seqscan = off")


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
    return StoreAway(message) if explained is None else StoreRefused(explained)


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
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


class NowMs(ColumnElement[int]):
    """The database's clock in milliseconds since 1970 UTC; it advances within a transaction."""

    inherit_cache = True
    _traverse_internals: list[Any] = []  # noqa: RUF012 - without it each statement is compiled each time
    type = sa.BigInteger()


@compiles(NowMs, "postgresql")
def _now_postgresql(_element: NowMs, _compiler: Any, **_kw: Any) -> str:
    return "(extract(epoch from clock_timestamp()) * 1000)::bigint"


@compiles(NowMs, "sqlite")
def _now_sqlite(_element: NowMs, _compiler: Any, **_kw: Any) -> str:
    return "cast(round((julianday('now') - 2440587.5) * 86400000) as integer)"


def require_file(url: str) -> None:
    """Raises StoreAway if `url` is a SQLite file that does not exist: opening it would create one."""
    parsed = sa.make_url(url)
    path = Path(parsed.database or "")
    if parsed.get_backend_name() == "sqlite" and not path.exists():
        raise StoreAway(
            f"the file {path.absolute()} does not exist "
            "(`gatelock run` and `gatelock upkeep db upgrade` create it)"
        )
