"""Locks out of the analyzer's database, SQLite or PostgreSQL. The only file here that knows SQLAlchemy."""

from __future__ import annotations

import os
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from gatekeeper.model import Change, Clear, Cursor, GateStatus, Lock, LockKey, Rate, Set, SourceError, Update
from gatekeeper.view.cooperative import CooperativeYield, drain, in_batches
from gatekeeper.view.lock_tuples import EPOCH, PackedChanges

try:
    import sqlalchemy as sa
except ImportError as missing:
    raise ImportError("gatekeeper.sources.sql needs SQLAlchemy: install gatelock[sql]") from missing

NEXT_POLL_S = 0.3  # with a flush every 0.1 s a lock reaches the last of many gates in half a second, mostly
ROWS_AT_ONCE = 50  # out of the driver, between two looks at whether others wait
CHANGES_MAX = 10_000  # in one answer; when more are waiting, all locks are the shorter one

CONNECT_S = 3
STATEMENT_MS = 2_000  # kept by the server; SQLite waits as long for a file that is being written to
FETCH_S = 6.0  # kept by us, for a server that has stopped: it keeps no time-outs
REPORT_S = 1.0  # for telling of ourselves: nothing depends on it, and the next question waits meanwhile
IDLE_MS = 5_000  # a process that was stopped in mid-fetch must not hold back the database's vacuum

MILLISECOND = timedelta(milliseconds=1)

# The feed's tables as a gate sees them; a test compares them with the analyzer's schema.
OPS = ("set", "clear")
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
    # unixepoch('subsec') is younger than the SQLite of many a Python; a Julian day holds milliseconds too.
    "sqlite": sa.literal_column(
        "cast(round((julianday('now') - 2440587.5) * 86400000) as integer)", sa.BigInteger
    ),
}
# What an older one says that comes later changes nothing. Without `excluded`: to name a column of it takes
# the right to read that column, and so what everybody told.
UPSERT_STATUS = """
    INSERT INTO gates (instance, number, at_ms, first_ms, told)
    VALUES (:instance, :number, {now}, {now}, :told)
    ON CONFLICT (instance) DO UPDATE
    SET number = :number, at_ms = {now}, told = :told WHERE gates.number < :number
"""


class SqlSource:
    """The feed of the database at `url`: sqlite:///path, or postgresql+psycopg://user@host/database.

    Needs SELECT on feed, feed_versions, lock_changes, locks and offsets, and nothing else. Of several
    PostgreSQL hosts it reads the primary, unless the URL has a target_session_attrs of its own: a
    replica may lag, and nothing in its answers would say so.

    Gates report nothing unless asked to: with `report_status` true as the role that reads, which then may
    also INSERT and UPDATE in the table gates and SELECT its columns instance and number; or with the URL
    of somebody who may do that alone.
    """

    def __init__(self, url: str, *, report_status: bool | str = False) -> None:
        self.wants_status = bool(report_status)
        self._status_source = SqlSource(report_status) if isinstance(report_status, str) else None
        self._url = sa.make_url(url)
        self._name = self._url.render_as_string(hide_password=True)
        self._line: socket.socket | None = None  # a second handle of the connection's, to cut it by
        self._engine = self._open()
        self._pid = os.getpid()
        self._inherited: tuple[sa.Engine, ...] = ()

    def fetch(self, since: Cursor | None) -> Update:
        with self._reaching(), self._cut_when_late(FETCH_S), self._snapshot() as db:
            read = _read(db, since)
        return _update_of(read)  # after the transaction: to take over many locks may take long

    def report_status(self, status: GateStatus) -> None:
        """Write it into the row of this instance, where the newest stays however often one comes. Raises
        SourceError."""
        from gatekeeper.telemetry import status_json

        if self._status_source is not None:
            self._status_source.report_status(status)
            return
        row = {"instance": status.instance, "number": status.number, "told": status_json.dump(status)}
        with self._reaching(), self._cut_when_late(REPORT_S), self._writing() as db:
            db.execute(sa.text(UPSERT_STATUS.format(now=NOW_MS[db.dialect.name])), row)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Say of whatever goes wrong inside where it did, and begin anew after it. Raises SourceError."""
        if self._pid != os.getpid():
            self._leave_to_the_parent()
        pool = self._engine.pool
        try:
            yield
        except (sa.exc.SQLAlchemyError, OSError) as error:
            self._let_go()  # in whatever state the connection is: the next fetch makes a new one
            raise SourceError(f"{self._name}: {_explain(error)}") from error
        except SourceError as error:
            raise SourceError(f"{self._name}: {error}") from error
        finally:
            if self._engine.pool is not pool:
                pool.dispose()  # it was closed while a connection of it was in use, which is back by now

    def close(self) -> None:
        self._let_go()
        if self._status_source is not None:
            self._status_source.close()

    def _let_go(self) -> None:
        self._engine.dispose()
        self._hang_up()

    def _leave_to_the_parent(self) -> None:
        # Kept, not collected: a driver that closes its connection says goodbye in the parent's name.
        self._inherited = (*self._inherited, self._engine)
        self._hang_up()
        self._engine = self._open()
        self._pid = os.getpid()

    def _open(self) -> sa.Engine:
        match self._url.get_backend_name():
            case "sqlite":
                return _open_sqlite(self._url)
            case "postgresql":
                engine = _open_postgresql(self._url)
                sa.event.listen(engine, "do_connect", self._connect)
                return engine
        raise ValueError(f"{self._name}: expected SQLite or PostgreSQL")

    def _connect(self, dialect: Any, _record: object, cargs: list[Any], cparams: dict[str, Any]) -> Any:
        connection = dialect.connect(*cargs, **cparams)
        self._hang_up()
        self._line = socket.socket(fileno=os.dup(connection.fileno()))
        return connection

    def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()

    @contextmanager
    def _cut_when_late(self, longest_s: float) -> Iterator[None]:
        """Cut the connection when what is inside takes too long. A server that was stopped, with its
        machine alive, keeps no time-out and acknowledges every packet."""
        if self._engine.dialect.name == "sqlite":
            yield
            return
        timer = threading.Timer(longest_s, self._cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()  # at most a moment; afterwards nobody else touches the line

    def _cut(self) -> None:
        if self._line is not None:
            with suppress(OSError):
                self._line.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def _snapshot(self) -> Iterator[sa.Connection]:
        """One snapshot for all statements inside: pruning between two of them would take away changes
        that we have not seen, and we would never look back."""
        with self._engine.connect() as db:
            if db.dialect.name == "sqlite":
                db.exec_driver_sql("begin")
            else:
                db.execution_options(postgresql_readonly=True)
            yield db

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        """Where each statement is committed by itself, without waiting until it is on a disk."""
        if self._engine.dialect.name == "sqlite":
            with _open_sqlite(self._url, writes=True).connect() as db:
                # To bring the write-ahead log home is the analyzer's work, not that of a request's machine.
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
    # Read-only: a mistaken path must not become an empty database, and the last one who closes a
    # writable connection would have to bring the write-ahead log home, on the request's machine.
    address = f"{Path(url.database).absolute().as_uri()}?mode={'rw' if writes else 'ro'}"
    timeout_s = REPORT_S if writes else STATEMENT_MS / 1000

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(address, uri=True, timeout=timeout_s, isolation_level=None)

    # Opened for each fetch, which then takes 0.7 ms: an open one would go on reading a file that was
    # replaced by a backup, and SQLite's connections must not cross a fork.
    return sa.create_engine("sqlite://", creator=connect, poolclass=sa.NullPool)


def _open_postgresql(url: sa.URL) -> sa.Engine:
    options = {
        "statement_timeout": STATEMENT_MS,
        "synchronous_commit": "off",  # all that is written is what the gate tells of itself, time and again
        "idle_in_transaction_session_timeout": IDLE_MS,
        "timezone": "UTC",
    }
    arguments = {
        "application_name": "gatelock gate",
        "connect_timeout": CONNECT_S,
        "tcp_user_timeout": STATEMENT_MS,
        "target_session_attrs": "primary",
    }
    arguments = {name: value for name, value in arguments.items() if name not in url.query}
    try:
        return sa.create_engine(
            url,
            isolation_level="REPEATABLE READ",
            pool_size=1,
            max_overflow=0,
            pool_timeout=CONNECT_S,
            use_native_hstore=False,  # asking for a type that we do not read is one more thing to wait for
            connect_args=arguments | {"options": " ".join(f"-c {name}={to}" for name, to in options.items())},
        )
    except ImportError as missing:
        raise ImportError("a gate on PostgreSQL needs psycopg 3: install gatelock[postgres]") from missing


SqlRow = Sequence[Any]  # op, then the columns of LOCK
SqlRows = list[tuple[SqlRow, ...]]  # in parts


class FeedPosition(NamedTuple):
    """Where the feed stands, and what it called the version that the gate holds."""

    version: int
    mark: str
    pruned_to: int
    held_mark: str | None  # None: it knows of no such version
    now_ms: int
    behind_ms: int | None  # None: no partition was ever followed, so there is no log to be behind of


class FeedRows(NamedTuple):
    """What the database said."""

    standing: FeedPosition
    since: Cursor | None  # None: `rows` are all locks
    rows: SqlRows


def _read(db: sa.Connection, since: Cursor | None) -> FeedRows:
    standing = _feed_position(db, since)
    rows: SqlRows | None = None
    if since is not None and _has_changes_since(standing, since):
        # Mostly there is nothing new: then this one row is all that is asked for.
        rows = [] if since.version == standing.version else _rows_after(db, since.version)
    if since is None or rows is None:
        return FeedRows(standing, None, _rows_of_locks(db))
    return FeedRows(standing, since, rows)


def _update_of(read: FeedRows) -> Update:
    standing, since, rows = read
    if len(rows) > 1:  # to close what they came by took its time, too
        CooperativeYield().take(at_once=True)
    ops = () if since is None else tuple(row[0] for part in rows for row in part)
    return Update(
        at=Cursor(standing.version, standing.mark),
        since=since and since.version,
        snapshot=since is None,
        now=EPOCH + standing.now_ms * MILLISECOND,
        behind=max(0, standing.behind_ms or 0) / 1000,
        next_poll=NEXT_POLL_S,
        changes=PackedChanges(_change(*row) for part in drain(rows) for row in part if row[0] in OPS),
        unknown=tuple(f"op {op}" for op in ops if op not in OPS),
    )


def _feed_position(db: sa.Connection, since: Cursor | None) -> FeedPosition:
    now_ms = NOW_MS[db.dialect.name]
    held = -1 if since is None else since.version
    # The newest version's mark stands in the feed's own row; version 0 has no other.
    held_mark = sa.case(
        (feed.c.version == held, feed.c.mark),
        else_=sa.select(feed_versions.c.mark).where(feed_versions.c.version == held).scalar_subquery(),
    )
    # Null, and so left out, where nobody follows the partition.
    behind_ms = sa.select(sa.func.max(now_ms - offsets.c.beat_ms + offsets.c.behind_ms)).scalar_subquery()
    row = db.execute(
        sa.select(feed.c.version, feed.c.mark, feed.c.pruned_to, held_mark, now_ms, behind_ms)
    ).first()
    if row is None:
        raise SourceError("the feed was never begun: run `gatelock db upgrade`")
    return FeedPosition(*row)


def _has_changes_since(standing: FeedPosition, since: Cursor) -> bool:
    """Whether `since` is of this history, and everything after it is still there."""
    return since.version >= standing.pruned_to and since.mark == standing.held_mark


def _rows_after(db: sa.Connection, version: int) -> SqlRows | None:
    """The changes after `version`, in order; None when they are too many."""
    of = lock_changes.c
    statement = (
        sa.select(of.op, *(of[name] for name in LOCK_COLUMNS))
        .where(of.version > version)
        .order_by(of.version, of.number)
        .limit(CHANGES_MAX + 1)
    )
    rows = _fetch_all(db.execute(statement))
    return rows if sum(map(len, rows)) <= CHANGES_MAX else None


def _rows_of_locks(db: sa.Connection) -> SqlRows:
    # Those too that have ended by the clock over there, which may be wrong: nobody would tell of them again.
    return _fetch_all(db.execute(sa.select(sa.literal("set"), *(locks.c[name] for name in LOCK_COLUMNS))))


def _fetch_all(found: sa.CursorResult[Any]) -> SqlRows:
    return list(in_batches(_with_pauses_up_to_timeout(found)))


def _with_pauses_up_to_timeout(found: sa.CursorResult[Any]) -> Iterator[SqlRow]:
    """The rows, with pauses, unless that takes too long: the server keeps its time-outs meanwhile."""
    breath, end_s = CooperativeYield(), time.monotonic() + STATEMENT_MS / 1000
    for some in found.partitions(ROWS_AT_ONCE):
        yield from map(tuple, some)
        if time.monotonic() < end_s:
            breath.take()


def _change(op: str, *columns: Any) -> Change:
    fields = dict(zip(LOCK_COLUMNS, columns, strict=True))
    if op == "clear":
        return Clear(LockKey(*columns[:4]))
    began = EPOCH + fields.pop("began_ms") * MILLISECOND
    until = EPOCH + fields.pop("until_ms") * MILLISECOND
    limit, period_ms = fields.pop("slow_limit"), fields.pop("slow_ms")
    slow = Rate(limit, period_ms / 1000) if limit > 0 and period_ms > 0 else None
    return Set(Lock(began=began, until=until, slow=slow, **fields))


def _explain(error: Exception) -> str:
    """What the driver said, on one line, without SQLAlchemy's additions and without the URL's password."""
    cause = getattr(error, "orig", None) or error
    words = " ".join(str(cause).split())
    lacks_tables = "no such table" in words or "does not exist" in words
    return f"{words} (has `gatelock db upgrade` been run there?)" if lacks_tables else words
