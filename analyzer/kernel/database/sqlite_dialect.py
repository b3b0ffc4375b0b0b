"""SQLite: how its file is opened, bounded and locked, and expressions that it has in another form."""

from __future__ import annotations

import os
import shlex
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from analyzer.kernel.database.timeouts import Timeouts
from analyzer.kernel.errors import BackupFailed, DatabaseReplaced
from analyzer.kernel.tables.billing_tables import CLOSED

STEP_S = 0.02  # there is one writer: a flush waits for it
NOW_MS = "cast(round((julianday('now') - 2440587.5) * 86400000) as integer)"
PRIVATE = 0o600
# The triggers that refuse changes of closed days, by "table.trigger".
GUARDS = frozenset(
    {
        *(f"{table}.{table}_closed_{act}" for table in CLOSED for act in ("insert", "update", "delete")),
        *(
            f"{table}.{table}_kept_{act}"
            for table in ("corrections", "deleted_days", "chain_entries")
            for act in ("update", "delete")
        ),
        "deleted_days.deleted_days_old",
    }
) - {"days.days_closed_insert"}
TRIGGERS = sa.text("select tbl_name || '.' || name from sqlite_schema where type = 'trigger'")
INSTRUCTIONS = 10_000  # between two looks at the clock: a few milliseconds


def open_engine(url: sa.URL, timeouts: Timeouts) -> sa.Engine:
    """Returns an engine for writers: BEGIN IMMEDIATE, a write-ahead log, fully durable."""
    engine = sa.create_engine(url, connect_args={"timeout": timeouts.busy_ms / 1000})

    @sa.event.listens_for(engine, "do_connect")
    def create(*_arguments: object) -> None:
        create_private(Path(url.database or ""))

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # the driver begins no transaction; see `begin`
        _switch_to_wal(connection)
        connection.execute("pragma synchronous = full")
        connection.execute("pragma secure_delete = on")  # a forgotten name must not stay in free pages
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


def file(url: sa.URL) -> Path | None:
    """Returns the path of the file."""
    return Path(url.database or "").absolute()


def remaking_command(name: str) -> str:
    """Returns the command that removes the file, its write-ahead log and its index."""
    return f"rm -f {' '.join(shlex.quote(f'{name}{suffix}') for suffix in ('', '-wal', '-shm'))}"


def set_local(_db: sa.Connection, _parameters: Mapping[str, str | int]) -> None:
    """Does nothing: a file has no parameters of a server."""


def bounded(db: sa.Connection, timeout_ms: int) -> AbstractContextManager[None]:
    """Has SQLite interrupt statements of this transaction once the time is over; 0: never."""
    return _interrupted_after(db, timeout_ms) if timeout_ms else nullcontext()


@contextmanager
def _interrupted_after(db: sa.Connection, timeout_ms: int) -> Iterator[None]:
    connection: Any = db.connection.driver_connection
    end_s = time.monotonic() + timeout_ms / 1000
    connection.set_progress_handler(lambda: time.monotonic() > end_s, INSTRUCTIONS)
    try:
        yield
    finally:
        connection.set_progress_handler(None, 0)


def lock_table(_db: sa.Connection, _table: str, _mode: str) -> None:
    """Does nothing: a transaction that writes has the whole file."""


def lock_number(_db: sa.Connection, _number: int) -> None:
    """Does nothing: a transaction that writes has the whole file."""


def empty(db: sa.Connection, table: sa.Table) -> None:
    """Deletes all rows."""
    db.execute(sa.delete(table))


def insert(table: sa.Table) -> sqlite.Insert:
    """Returns an INSERT that takes ON CONFLICT."""
    return sqlite.insert(table)


def triggers(db: sa.Connection) -> set[str]:
    """Returns the triggers, by "table.trigger"."""
    return set(db.scalars(TRIGGERS))


def by_bytes(text: sa.ColumnElement[str]) -> sa.ColumnElement[str]:
    """Returns the text: SQLite compares by bytes."""
    return text


def series(from_s: sa.BindParameter[int], until_s: sa.BindParameter[int], step_s: int) -> Any:
    """Returns a table with the column `at_s`: from a parameter to another one in steps."""
    times = sa.select(from_s.label("at_s")).cte(f"times_{step_s}", recursive=True)
    return times.union_all(sa.select(times.c.at_s + step_s).where(times.c.at_s + step_s <= until_s))


def copy(engine: sa.Engine, folder: Path) -> None:
    """Copies by SQLite's backup API in one step: with a write-ahead log no writer waits for it."""
    with engine.connect() as db, closing(sqlite3.connect(folder / "gatelock.db")) as written:
        source: Any = db.connection.driver_connection
        source.backup(written)
        written.execute("pragma journal_mode = delete").fetchall()  # one file, without a log next to it
        [found] = written.execute("pragma quick_check(1)").fetchone()
    if found != "ok":
        raise BackupFailed(f"the copy is damaged: {found}")
