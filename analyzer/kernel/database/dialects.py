"""The databases by SQLAlchemy's name of their dialect: what each does in another way than the other.

Code elsewhere asks an entry for what it can do, and never for its name. A new database is an entry here with
its module, a scheme in `config/tables/database.py`, and a run of the tests on it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from analyzer.kernel.database import postgresql_dialect, sqlite_dialect
from analyzer.kernel.database.timeouts import Timeouts


class Dialect(NamedTuple):
    """One database.

    Attributes:
        open: Returns an engine for writers, with these time-outs. Raises ImportError without its driver.
        file: Returns the path of the file; None for a server, which gates reach as well.
        remaking_command: Returns the shell's command that empties the database of this name.
        connection_counts: Returns how many connections of clients of a name are open, and how many of all
            clients may be; None for a file.
        reading_options: Execution options of a transaction that is one snapshot.
        bounded: Ends statements of this transaction that take longer than a number of milliseconds; 0: none.
        set_local: Sets parameters of a server for this transaction. A file has none.
        has_one_writer: Whether a transaction that writes excludes all others, which wait without a queue.
        lock_table: Locks a table in a mode of PostgreSQL; nothing where there is one writer.
        lock_number: Waits until this transaction is the only one with this number.
        empty: Deletes all rows of a table.
        notify: Wakes the listeners of a channel at the commit; None: clients must look.
        step_s: How long a transaction of a job should take.
        insert: Returns an INSERT that takes ON CONFLICT.
        takes_arrays: Whether many rows are passed as an array for each column, and an upsert returns rows.
        has_statistics: Whether it weighs by statistics which of two indexes to read.
        has_lateral: Whether a subquery may name the other rows of its join.
        has_row_places: Whether rows can be deleted by their places, without their keys.
        ordered_join: The words between two tables of which the first is read first.
        now_ms: Its clock in milliseconds since 1970 UTC; advances within a transaction.
        greatest: Returns the larger of two values of a row.
        position: Returns where a text is in a text, and bytes in bytes, from 1; 0: nowhere.
        by_bytes: Returns a text that is compared by its bytes.
        guards: The triggers that refuse changes of closed days, by "table.trigger".
        triggers: Returns the triggers that are enabled, by "table.trigger".
        copy: Writes a consistent copy of the database into a folder while others write. Raises BackupFailed.
        series: Returns a table with the column `at_s`: from a parameter to another one in steps.
    """

    open: Callable[[sa.URL, Timeouts], sa.Engine]
    file: Callable[[sa.URL], Path | None]
    remaking_command: Callable[[str], str]
    connection_counts: Callable[[sa.Connection, str], tuple[int, int]] | None
    reading_options: Mapping[str, Any]
    bounded: Callable[[sa.Connection, int], AbstractContextManager[None]]
    set_local: Callable[[sa.Connection, Mapping[str, str | int]], None]
    has_one_writer: bool
    lock_table: Callable[[sa.Connection, str, str], None]
    lock_number: Callable[[sa.Connection, int], None]
    empty: Callable[[sa.Connection, sa.Table], None]
    notify: Callable[[sa.Connection, str], None] | None
    step_s: float
    insert: Callable[[sa.Table], postgresql.Insert | sqlite.Insert]
    takes_arrays: bool
    has_statistics: bool
    has_lateral: bool
    has_row_places: bool
    ordered_join: str
    now_ms: str
    greatest: Callable[..., sa.ColumnElement[Any]]
    position: Callable[..., sa.ColumnElement[int]]
    by_bytes: Callable[[sa.ColumnElement[str]], sa.ColumnElement[str]]
    guards: Collection[str]
    triggers: Callable[[sa.Connection], set[str]]
    copy: Callable[[sa.Engine, Path], None]
    series: Callable[[sa.BindParameter[int], sa.BindParameter[int], int], Any]


DIALECTS: dict[str, Dialect] = {
    "sqlite": Dialect(
        open=sqlite_dialect.open_engine,
        file=sqlite_dialect.file,
        remaking_command=sqlite_dialect.remaking_command,
        connection_counts=None,
        reading_options={},
        bounded=sqlite_dialect.bounded,
        set_local=sqlite_dialect.set_local,
        has_one_writer=True,
        lock_table=sqlite_dialect.lock_table,
        lock_number=sqlite_dialect.lock_number,
        empty=sqlite_dialect.empty,
        notify=None,
        step_s=sqlite_dialect.STEP_S,
        insert=sqlite_dialect.insert,
        takes_arrays=False,
        has_statistics=False,
        has_lateral=False,
        has_row_places=False,
        ordered_join=" CROSS JOIN ",
        now_ms=sqlite_dialect.NOW_MS,
        greatest=sa.func.max,
        position=sa.func.instr,
        by_bytes=sqlite_dialect.by_bytes,
        guards=sqlite_dialect.GUARDS,
        triggers=sqlite_dialect.triggers,
        copy=sqlite_dialect.copy,
        series=sqlite_dialect.series,
    ),
    "postgresql": Dialect(
        open=postgresql_dialect.open_engine,
        file=postgresql_dialect.file,
        remaking_command=postgresql_dialect.remaking_command,
        connection_counts=postgresql_dialect.connection_counts,
        reading_options={"isolation_level": "REPEATABLE READ", "postgresql_readonly": True},
        bounded=postgresql_dialect.bounded,
        set_local=postgresql_dialect.set_local,
        has_one_writer=False,
        lock_table=postgresql_dialect.lock_table,
        lock_number=postgresql_dialect.lock_number,
        empty=postgresql_dialect.empty,
        notify=postgresql_dialect.notify,
        step_s=postgresql_dialect.STEP_S,
        insert=postgresql_dialect.insert,
        takes_arrays=True,
        has_statistics=True,
        has_lateral=True,
        has_row_places=True,
        ordered_join=" JOIN ",
        now_ms=postgresql_dialect.NOW_MS,
        greatest=sa.func.greatest,
        position=sa.func.pg_catalog.position,
        by_bytes=postgresql_dialect.by_bytes,
        guards=postgresql_dialect.GUARDS,
        triggers=postgresql_dialect.triggers,
        copy=postgresql_dialect.copy,
        series=postgresql_dialect.series,
    ),
}


def dialect_of(database: sa.Connection | sa.Engine) -> Dialect:
    """Returns the entry of the database that a connection or an engine is of."""
    return DIALECTS[database.dialect.name]


def dialect_at(url: str | sa.URL) -> Dialect:
    """Returns the entry of the database at a URL."""
    return DIALECTS[sa.make_url(url).get_backend_name()]
