"""Locks from the analyzer's database, SQLite or PostgreSQL. The only module here that uses SQLAlchemy."""

from __future__ import annotations

import os
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from gatekeeper.model import Cursor, GateStatus, SourceError, Update
from gatekeeper.view.cooperative import CooperativeYield, drain, in_batches
from gatekeeper.view.lock_tuples import EPOCH, ChangeTuple, PackedChanges

try:
    import sqlalchemy as sa
except ImportError as missing:
    raise ImportError("gatekeeper.sources.sql needs SQLAlchemy: pip install 'gatelock[sql]'") from missing

from gatekeeper.sources.postgres_sessions import set_up_sessions

__all__ = ["SqlSource"]

# With a flush every 0.1 s a lock mostly reaches the last of many gates within half a second.
NEXT_POLL_S = 0.3
ROWS_AT_ONCE = 50  # fetched from the driver between two pauses
CHANGES_MAX = 10_000  # in one answer; more only if a snapshot would not be shorter

CONNECT_S = 3
STATEMENT_MS = 2_000  # enforced by the server; SQLite waits as long for a file that is being written to
FETCH_S = 6.0  # enforced here, for a server that was stopped: it enforces no time-outs
REPORT_S = 1.0  # for reporting status, on which no decision depends and for which the next fetch waits
IDLE_MS = 5_000  # a gate that is stopped in mid-fetch must not hold back the database's vacuum

MILLISECOND = timedelta(milliseconds=1)

# The columns that a gate reads; a test compares them with the analyzer's schema.
OPS = ("set", "clear")
NOT_ENFORCED = ("notify", "shadow")  # actions of locks that no gate gets
LOCK_COLUMNS = ("scope", "key", "resource", "policy", "kind", "action", "status", "reason", "detail",
                "began_ms", "until_ms", "on_stale", "slow_limit", "slow_ms")  # fmt: skip


def _table(name: str, *columns: str) -> sa.TableClause:
    return sa.table(name, *map(sa.column, columns))


feed = _table("feed", "version", "mark", "pruned_to")
feed_versions = _table("feed_versions", "version", "mark")
lock_changes = _table("lock_changes", "version", "number", "op", *LOCK_COLUMNS)
locks = _table("locks", *LOCK_COLUMNS)
offsets = _table("offsets", "beat_ms", "behind_ms")
gates = _table("gates", "instance", "number", "at_ms", "first_ms", "told")
TABLES = (feed, feed_versions, lock_changes, locks, offsets, gates)

NOW_MS = {
    "postgresql": sa.literal_column("(extract(epoch from clock_timestamp()) * 1000)::bigint", sa.BigInteger),
    # unixepoch('subsec') is too new for the SQLite of many Pythons; a Julian day has milliseconds, too.
    "sqlite": sa.literal_column(
        "cast(round((julianday('now') - 2440587.5) * 86400000) as integer)", sa.BigInteger
    ),
}
# Idempotent: an older status that arrives late changes nothing. Without `excluded`: naming a column of it
# needs the right to read that column, and with it what all other gates reported.
UPSERT_STATUS = """
    INSERT INTO gates (instance, number, at_ms, first_ms, told)
    VALUES (:instance, :number, {now}, {now}, :told)
    ON CONFLICT (instance) DO UPDATE
    SET number = :number, at_ms = {now}, told = :told WHERE gates.number < :number
"""


class SqlSource:
    """A LockSource that reads the lock feed from the analyzer's database. A `Gate` makes one from such a URL.

    A fetch takes 6 seconds at most. On SQLite the file is opened read-only for each fetch. On PostgreSQL one
    connection stays open. Of several hosts in the URL the primary is read, unless the URL has a
    `target_session_attrs`: a replica may lag, and nothing in its answers would show it.

    The database role needs SELECT on feed, feed_versions, lock_changes, locks and offsets. To report status
    it needs INSERT and UPDATE on gates, and SELECT on the columns instance and number of gates.

    Args:
        url: `sqlite:///PATH` or `postgresql+psycopg://USER:PASSWORD@HOST/DATABASE`. The source connects when
            it first fetches.
        report_status: Whether gates write their status into the table gates. False, the default: no. True:
            yes, with the role in `url`. A second URL: yes, with the role in that URL, which needs no rights
            on other tables.

    Raises:
        ValueError: The URL names neither database, or SQLite without a file.
        ImportError: The driver is not installed; pip install 'gatelock[postgres]'.

    Example:
        >>> from gatekeeper import Gate
        >>> source = SqlSource("sqlite:////var/lib/gatelock/gatelock.db")
        >>> with Gate(source, stale_after=10) as gate:
        ...     gate.allow("api_key:acme")  # the database does not exist; the gate admits the request
        True
    """

    def __init__(self, url: str, *, report_status: bool | str = False) -> None:
        self.wants_status = bool(report_status)
        self._status_source = SqlSource(report_status) if isinstance(report_status, str) else None
        self._url = sa.make_url(url)
        self._name = self._url.render_as_string(hide_password=True)
        self._socket: socket.socket | None = None  # a duplicate of the connection's, to shut it down
        self._engine = self._open()
        self._pid = os.getpid()
        self._inherited: tuple[sa.Engine, ...] = ()

    def fetch(self, since: Cursor | None) -> Update:
        """Returns what changed after `since`, or a snapshot. Raises SourceError."""
        with self._translate_errors(), self._shut_down_after(FETCH_S), self._snapshot() as db:
            rows = _read(db, since)
        return _make_update(rows)  # after the transaction, because converting many locks takes long

    def version_mark(self, version: int) -> str | None:
        """Returns the mark of a version whose later changes are stored, or None. Raises SourceError."""
        with self._translate_errors(), self._shut_down_after(FETCH_S), self._snapshot() as db:
            position = _feed_position(db, Cursor(version, ""))
        return position.held_mark if version >= position.pruned_to else None

    def report_status(self, status: GateStatus) -> None:
        """Stores the status in the row of its instance, unless a newer one is there. Raises SourceError."""
        from gatekeeper.telemetry import status_json

        if self._status_source is not None:
            self._status_source.report_status(status)
            return
        row = {"instance": status.instance, "number": status.number, "told": status_json.dump(status)}
        with self._translate_errors(), self._shut_down_after(REPORT_S), self._writing() as db:
            db.execute(sa.text(UPSERT_STATUS.format(now=NOW_MS[db.dialect.name])), row)

    def close(self) -> None:
        """Closes the connections. A later fetch opens new ones."""
        self._disconnect()
        if self._status_source is not None:
            self._status_source.close()

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raises SourceError, with the database's name, for any error inside; reconnects after it."""
        if self._pid != os.getpid():
            self._leave_to_parent()
        pool = self._engine.pool
        try:
            yield
        except (sa.exc.SQLAlchemyError, OSError) as error:
            self._disconnect()  # the connection is in an unknown state
            raise SourceError(f"{self._name}: {_explain(error)}") from error
        except SourceError as error:
            raise SourceError(f"{self._name}: {error}") from error
        finally:
            # `close` was called while a connection was in use, which has been returned to the old pool by
            # now.
            if self._engine.pool is not pool:
                pool.dispose()

    def _disconnect(self) -> None:
        self._engine.dispose()
        self._close_socket()

    def _leave_to_parent(self) -> None:
        # Kept, not collected: a driver that closes its connection ends the parent's session on the server.
        self._inherited = (*self._inherited, self._engine)
        self._close_socket()
        self._engine = self._open()
        self._pid = os.getpid()

    def _open(self) -> sa.Engine:
        database = DATABASES.get(self._url.get_backend_name())
        if database is None:
            raise ValueError(f"{self._name}: expected a URL of SQLite or PostgreSQL")
        engine = database.open(self._url)
        if not database.is_file:
            sa.event.listen(engine, "do_connect", self._connect)
        return engine

    def _connect(self, dialect: Any, _record: object, cargs: list[Any], cparams: dict[str, Any]) -> Any:
        connection = dialect.connect(*cargs, **cparams)
        self._close_socket()
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        return connection

    def _close_socket(self) -> None:
        closing, self._socket = self._socket, None
        if closing is not None:
            closing.close()

    @contextmanager
    def _shut_down_after(self, longest_s: float) -> Iterator[None]:
        """Shuts the connection down when the statements inside take too long.

        A PostgreSQL server that was stopped (SIGSTOP) enforces no time-out while its machine acknowledges
        every packet.
        """
        if DATABASES[self._engine.dialect.name].is_file:
            yield
            return
        timer = threading.Timer(longest_s, self._shut_down)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()  # takes a moment at most; afterwards no other thread uses the socket

    def _shut_down(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def _snapshot(self) -> Iterator[sa.Connection]:
        """A read-only transaction with one snapshot for all statements inside.

        Pruning between two statements would remove changes that this gate has not seen and never asks for
        again.
        """
        with self._engine.connect() as db:
            if DATABASES[db.dialect.name].is_file:
                db.exec_driver_sql("begin")
            else:
                db.execution_options(postgresql_readonly=True)
            yield db

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        """A connection that commits each statement and does not wait for the disk."""
        if DATABASES[self._engine.dialect.name].is_file:
            with _open_sqlite(self._url, writes=True).connect() as db:
                # Checkpointing the write-ahead log is left to the analyzer.
                for pragma in ("synchronous = normal", "wal_autocheckpoint = 0"):
                    db.exec_driver_sql(f"pragma {pragma}")
                yield db
            return
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
            yield db


def _open_sqlite(url: sa.URL, *, writes: bool = False) -> sa.Engine:
    if not url.database or url.database == ":memory:":
        raise ValueError(
            f"{url}: expected the analyzer's file, as in sqlite:////var/lib/gatelock/gatelock.db"
        )
    # Read-only: a mistyped path must not create an empty database, and the last process that closes a
    # writable connection would have to checkpoint the write-ahead log.
    address = f"{Path(url.database).absolute().as_uri()}?mode={'rw' if writes else 'ro'}"
    timeout_s = REPORT_S if writes else STATEMENT_MS / 1000

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(address, uri=True, timeout=timeout_s, isolation_level=None)

    # Opened for each fetch, which takes 0.7 ms: an open connection would keep reading a file that a backup
    # has replaced, and SQLite's connections must not be used across a fork.
    return sa.create_engine("sqlite://", creator=connect, poolclass=sa.NullPool)


def _open_postgresql(url: sa.URL) -> sa.Engine:
    arguments = {
        "application_name": "gatelock gate",
        "connect_timeout": CONNECT_S,
        "tcp_user_timeout": STATEMENT_MS,
        "target_session_attrs": "primary",
    }
    arguments = {name: value for name, value in arguments.items() if name not in url.query}
    try:
        engine = sa.create_engine(
            url,
            isolation_level="REPEATABLE READ",
            pool_size=1,
            max_overflow=0,
            pool_timeout=CONNECT_S,
            use_native_hstore=False,  # saves a query when connecting
            connect_args=arguments,
        )
    except ImportError as missing:
        raise ImportError(
            "a gate on PostgreSQL needs psycopg 3: pip install 'gatelock[postgres]'"
        ) from missing
    settings: dict[str, str | int] = {
        "statement_timeout": STATEMENT_MS,
        "synchronous_commit": "off",  # the gate writes nothing but its status, which it reports again
        "idle_in_transaction_session_timeout": IDLE_MS,
        "timezone": "UTC",
    }
    set_up_sessions(engine, settings)
    return engine


class Database(NamedTuple):
    """A database that has locks.

    Attributes:
        open: Returns an engine that reads.
        is_file: Whether it is opened for each fetch, and no connection is kept.
    """

    open: Callable[[sa.URL], sa.Engine]
    is_file: bool


DATABASES: Mapping[str, Database] = {  # by the name of SQLAlchemy's dialect, as NOW_MS
    "sqlite": Database(_open_sqlite, is_file=True),
    "postgresql": Database(_open_postgresql, is_file=False),
}
SqlRow = tuple[Any, ...]  # op, then LOCK_COLUMNS
RowBatches = list[tuple[SqlRow, ...]]


class FeedPosition(NamedTuple):
    """The state of the feed.

    Attributes:
        version: Its newest version.
        mark: The mark of that version.
        pruned_to: Changes up to this version are no longer stored.
        held_mark: The mark of the version that the gate holds; None if the feed has no such version.
        now_ms: The database's time, in milliseconds since 1970.
        behind_ms: How far the analyzers are behind the log; None if no partition was ever followed.
    """

    version: int
    mark: str
    pruned_to: int
    held_mark: str | None
    now_ms: int
    behind_ms: int | None


class FeedRows(NamedTuple):
    """Rows read from the feed: the changes after `since`, or all locks when `since` is None."""

    position: FeedPosition
    since: Cursor | None
    batches: RowBatches


def _read(db: sa.Connection, since: Cursor | None) -> FeedRows:
    position = _feed_position(db, since)
    batches: RowBatches | None = None
    if since is not None and _has_changes_since(position, since):
        # Mostly nothing is new, and the position is the only row that is read.
        batches = [] if since.version == position.version else _rows_after(db, since.version)
    if since is None or batches is None:
        return FeedRows(position, None, _rows_of_locks(db))
    return FeedRows(position, since, batches)


def _make_update(read: FeedRows) -> Update:
    position, since, batches = read
    if len(batches) > 1:  # closing the cursor took its time, too
        CooperativeYield().pause_if_due(now=True)
    ops = () if since is None else tuple(row[0] for batch in batches for row in batch)
    return Update(
        at=Cursor(position.version, position.mark),
        since=since and since.version,
        snapshot=since is None,
        now=EPOCH + position.now_ms * MILLISECOND,
        behind=max(0, position.behind_ms or 0) / 1000,
        next_poll=NEXT_POLL_S,
        changes=PackedChanges(_pack_row(row) for batch in drain(batches) for row in batch if row[0] in OPS),
        unknown=tuple(f"op {op}" for op in ops if op not in OPS),
    )


def _feed_position(db: sa.Connection, since: Cursor | None) -> FeedPosition:
    version = -1 if since is None else since.version
    row = db.execute(_position_statement(NOW_MS[db.dialect.name]), {"held": version}).first()
    if row is None:
        raise SourceError("the feed has no row: run `gatelock upkeep db upgrade`")
    return FeedPosition(*row)


@lru_cache  # building it takes longer than executing it
def _position_statement(now_ms: sa.ColumnElement[int]) -> sa.Select[Any]:
    """Returns the query of the feed's position, by the clock `now_ms`, which tests replace."""
    version = sa.bindparam("held", type_=sa.BigInteger)
    # The newest version's mark is in the feed's own row; version 0 has no other.
    held_mark = sa.case(
        (feed.c.version == version, feed.c.mark),
        else_=sa.select(feed_versions.c.mark).where(feed_versions.c.version == version).scalar_subquery(),
    )
    # `beat_ms` is null, and so ignored by max, for a partition that no analyzer follows.
    behind_ms = sa.select(sa.func.max(now_ms - offsets.c.beat_ms + offsets.c.behind_ms)).scalar_subquery()
    return sa.select(feed.c.version, feed.c.mark, feed.c.pruned_to, held_mark, now_ms, behind_ms)


def _has_changes_since(position: FeedPosition, since: Cursor) -> bool:
    """Whether `since` belongs to this feed's history, and all later changes are still stored."""
    return since.version >= position.pruned_to and since.mark == position.held_mark


def _rows_after(db: sa.Connection, version: int) -> RowBatches | None:
    """The changes after `version`, in order; None when they are more than CHANGES_MAX, and more than there
    are locks."""
    columns = lock_changes.c
    statement = (
        sa.select(columns.op, *(columns[name] for name in LOCK_COLUMNS))
        .where(columns.version > version)
        .order_by(columns.version, columns.number)
    )
    batches = _fetch_all(db.execute(statement.limit(CHANGES_MAX)))
    if sum(map(len, batches)) < CHANGES_MAX or not _has_rows(db, statement.offset(CHANGES_MAX)):
        return batches
    # A gate that lags while very many locks are raised would get them all again with each snapshot, and lag
    # even further.
    locks_count = db.execute(sa.select(sa.func.count()).select_from(locks)).scalar_one()
    if _has_rows(db, statement.offset(max(CHANGES_MAX, locks_count))):
        return None
    return batches + _fetch_all(db.execute(statement.offset(CHANGES_MAX)))


def _has_rows(db: sa.Connection, statement: sa.Select[Any]) -> bool:
    """Whether the statement returns any row. An offset reads the index alone."""
    query = statement.with_only_columns(sa.literal(1)).limit(1)
    return db.execute(query).first() is not None


def _rows_of_locks(db: sa.Connection) -> RowBatches:
    # Including those that have ended by the database's clock, which may be wrong: no later change would set
    # them.
    all_locks = sa.select(sa.literal("set"), *(locks.c[name] for name in LOCK_COLUMNS))
    return _fetch_all(db.execute(all_locks.where(locks.c.action.not_in(NOT_ENFORCED))))


def _fetch_all(result: sa.CursorResult[Any]) -> RowBatches:
    return list(in_batches(_rows_with_pauses(result)))


def _rows_with_pauses(result: sa.CursorResult[Any]) -> Iterator[SqlRow]:
    """The rows, with pauses for as long as one statement may take: the server's time-outs run meanwhile."""
    cooperative_yield, end_s = CooperativeYield(), time.monotonic() + STATEMENT_MS / 1000
    for rows in result.partitions(ROWS_AT_ONCE):
        yield from map(tuple, rows)
        if time.monotonic() < end_s:
            cooperative_yield.pause_if_due()


def _pack_row(row: Sequence[Any]) -> ChangeTuple:
    (op, scope, key, resource, policy, kind, action, status, reason, detail,
     began_ms, until_ms, on_stale, slow_limit, slow_ms) = row  # fmt: skip
    if op == "clear":
        return scope, key, resource, policy
    slow = (slow_limit, slow_ms / 1000) if slow_limit > 0 and slow_ms > 0 else None
    # In the order of LockTuple.
    return (scope, key, policy, EPOCH + began_ms * MILLISECOND, EPOCH + until_ms * MILLISECOND, resource,
            kind, action, status, reason, detail, on_stale, slow, until_ms * 1_000_000)  # fmt: skip


def _explain(error: Exception) -> str:
    """The driver's message on one line, without SQLAlchemy's additions and the URL's password."""
    cause = getattr(error, "orig", None) or error
    message = " ".join(str(cause).split())
    lacks_tables = "no such table" in message or "does not exist" in message
    return f"{message} (has `gatelock upkeep db upgrade` been run there?)" if lacks_tables else message
