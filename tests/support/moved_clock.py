"""A clock that tests move, for `gatelock` processes and for a database of PostgreSQL.

Both compute the time of day with an offset. Durations are measured as ever.
"""

from __future__ import annotations

import time
from pathlib import Path

import psycopg
from psycopg import sql

from tests.support.servers.postgres import dsn_of

# Found before the function of pg_catalog, because the path names that last.
FUNCTION = """
create schema moved;
create table moved.clock (by_s bigint not null);
create function moved.clock_timestamp() returns timestamptz volatile language sql as
  'select pg_catalog.clock_timestamp() + by_s * interval ''1 second'' from moved.clock';
"""
COMMAND = """
import sys, time
from pathlib import Path

offset, time_s, time_ns = Path({file!r}), time.time, time.time_ns
time.time = lambda: time_s() + int(offset.read_text())
time.time_ns = lambda: time_ns() + int(offset.read_text()) * 1_000_000_000
sys.argv[1:] = {arguments!r}
from analyzer.faces.cli import main
main()
"""


class MovedClock:
    """A clock that differs from the machine's by an offset in whole seconds.

    Args:
        folder: For a file with the offset, which processes read.
        url: Of a new database, which is not upgraded yet.
        begin_s: The time that the clock has at first.
    """

    def __init__(self, folder: Path, url: str, begin_s: int) -> None:
        self._file, self._dsn = folder / "clock", dsn_of(url)
        with psycopg.connect(self._dsn) as db:
            db.execute(FUNCTION)
            db.execute("insert into moved.clock values (0)")
            path = sql.SQL("alter database {} set search_path = moved, public, pg_catalog")
            db.execute(path.format(sql.Identifier(db.info.dbname)))
        self.move_to(begin_s)

    def now_s(self) -> float:
        return time.time() + self._offset_s

    def move_to(self, at_s: int) -> None:
        """Moves the clock to a time."""
        self._offset_s = at_s - int(time.time())
        new = self._file.with_suffix(".new")  # no process reads half of it
        new.write_text(str(self._offset_s))
        new.replace(self._file)
        with psycopg.connect(self._dsn) as db:
            db.execute("update moved.clock set by_s = %s", (self._offset_s,))

    def code_of(self, *arguments: str) -> str:
        """Returns the Python code of a command `gatelock` that has this clock."""
        return COMMAND.format(file=str(self._file), arguments=list(arguments))
