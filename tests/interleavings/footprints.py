"""Footprints: which tables a statement touches and how, and whether the order of two of them can matter.

Read from the text of the SQL, by table: a table that is named at all is touched. So two statements may count
as dependent that are not, which costs orders, and never the reverse. Rows are distinguished only where a
parameter is a part of the primary key of every row that the statement can write: see ROW_PARAMETERS.

The rules are those of PostgreSQL at READ COMMITTED. A plain read sees what was committed when it began: a
write that is not committed commutes with it, the commit of that write does not. A write waits for the row
lock of another write. Two commits commute: rows that both have changed have put the two in an order before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import lru_cache
from types import MappingProxyType

from analyzer.kernel.tables.schema import metadata


class Mode(Enum):
    """A way in which a step touches a table."""

    READ = "read"
    READ_SNAPSHOT = "read snapshot"  # as it was when the snapshot was taken
    SHARE = "share"  # locks rows against writes
    WRITE = "write"  # writes rows, or locks them for update
    MISS = "miss"  # would write, and has found no row
    LOCK = "lock"  # the whole table, in EXCLUSIVE mode: lets plain reads through, and nothing else
    DROP = "drop"  # or truncate; also its commit
    COMMIT = "commit"  # makes writes visible, and releases their locks
    RELEASE = "release"  # releases locks against writes


Footprint = frozenset[tuple[str, Mode]]

EVERY_TABLE = "*"
CLOCK = "(clock)"  # the database's clock, as if it were a table
NOTHING: Footprint = frozenset()

LOCKING = (Mode.SHARE, Mode.WRITE, Mode.MISS, Mode.LOCK)
ORDERED = {  # pairs of modes whose order matters
    *((Mode.DROP, other) for other in Mode),
    *((Mode.COMMIT, other) for other in (Mode.READ, *LOCKING)),
    *((Mode.WRITE, other) for other in (*LOCKING, Mode.RELEASE)),
    *((Mode.LOCK, other) for other in (*LOCKING, Mode.RELEASE)),
}
ORDERED |= {(second, first) for first, second in ORDERED}

TABLES = sorted(metadata.tables)
# Columns may have the name of a table, as `brakes.locks` has: behind a dot, in an assignment, or in the list
# of an insert.
NAMED = re.compile(rf"(?<!\.)\b({'|'.join(TABLES)})\b(?! =)")
INSERTED = re.compile(r"(\binsert into \w+) \([^)]*\)")
WRITTEN = re.compile(r"\b(insert into|(?<!for )update|delete from) (\w+)")
FOR_UPDATE = re.compile(r"\bfor (?:no key )?update\b(?: of (\w+))?")
FOR_SHARE = re.compile(r"\bfor (?:key )?share\b")
LOCKED = re.compile(r"^lock table (\w+) in (?:share update |share row )?exclusive mode$")
DROPPED = re.compile(r"^(?:drop|truncate) table (\w+)$")
KNOWN = ("select", "insert into", "update", "delete from", "with")
HARMLESS = ("savepoint ", "release savepoint ", "set local ", "select set_config(", "select pg_notify(")
LOCKS = re.compile(r"^select .* for update\b")
WRITES_LAST = re.compile(r"^(?:with \w+ as \(select .*\) )?(?:insert into|update|delete from) ")
# By table, the parameters that may be in the primary key: of an update of one row, or of an upsert. A text is
# one value unless it has the separator of many.
ROW_PARAMETERS = {
    "offsets": ("at_partition",),
    "day_counts": ("given_partition",),
    "buckets": ("given_bucket_s",),
    "totals": ("given_key",),
    "locks": ("key", "given_key"),
    "lock_history": ("given_key",),
    "feed_versions": ("version",),
    "lock_changes": ("version",),
    "events": ("id",),
}
SEPARATOR = "given_between"
ROWS = "#"  # between a table and the parameter
SEQUENCE = re.compile(r"\bnextval\('(\w+)'\)")
NOW = "clock_timestamp()"


def footprint_of(statement: str, parameters: Mapping[str, object] = MappingProxyType({})) -> Footprint:
    """Returns the footprint of a statement. Raises ValueError for a kind of statement that is not known."""
    footprint = _of_tables(statement)
    for table, names in ROW_PARAMETERS.items():
        if (table, Mode.WRITE) in footprint:
            values = [parameters[name] for name in names if name in parameters]
            if values and is_one_value(values[0], str(parameters.get(SEPARATOR, ROWS))):
                footprint = footprint - {(table, Mode.WRITE)} | {(f"{table}{ROWS}{values[0]}", Mode.WRITE)}
    return footprint


def is_one_value(value: object, separator: str) -> bool:
    return isinstance(value, int) or (isinstance(value, str) and separator not in value)


@lru_cache(maxsize=1_000)
def _of_tables(statement: str) -> Footprint:
    text = " ".join(statement.lower().split())
    if text.startswith(HARMLESS):
        return NOTHING
    if locked := LOCKED.match(text):
        return frozenset({(locked[1], Mode.LOCK)})
    if dropped := DROPPED.match(text):
        return frozenset({(dropped[1], Mode.DROP)})
    if not text.startswith(KNOWN):
        raise ValueError(f"which tables does it touch, and how? {text}")
    named = set(NAMED.findall(INSERTED.sub(r"\1", text)))
    written = {table for _, table in WRITTEN.findall(text)} & named
    shared = named if FOR_SHARE.search(text) else set()
    for found in FOR_UPDATE.finditer(text):
        written |= {found[1]} if found[1] else named
    modes = {table: Mode.WRITE if table in written else Mode.SHARE for table in written | shared}
    modes |= {found[1]: Mode.WRITE for found in SEQUENCE.finditer(text)}  # of a mutation; visible at once
    if NOW in text:
        modes[CLOCK] = Mode.READ
    return frozenset((dict.fromkeys(named, Mode.READ) | modes).items())


def without_rows(statement: str, footprint: Footprint) -> Footprint:
    """Returns the footprint of a statement that has neither written, locked nor returned a row, nor waited.

    It has changed nothing, and so commutes with another one that has changed nothing. It may depend on a
    write: of a row that it skipped because it was locked.
    """
    text = " ".join(statement.lower().split())
    if not WRITES_LAST.match(text) and not LOCKS.match(text):
        return footprint
    return frozenset((table, Mode.MISS if mode is Mode.WRITE else mode) for table, mode in footprint)


def commit_of(footprints: Iterable[Footprint]) -> Footprint:
    """Returns the footprint of the commit, or of the rollback, of a transaction of these statements."""
    footprints = list(footprints)
    lesser = (Mode.SHARE, Mode.MISS)
    shared = (table for footprint in footprints for table, mode in footprint if mode in lesser)
    ended = dict.fromkeys(shared, Mode.RELEASE)
    for footprint in footprints:
        ended |= {table: Mode.COMMIT for table, mode in footprint if mode in (Mode.WRITE, Mode.LOCK)}
    for footprint in footprints:
        ended |= {table: mode for table, mode in footprint if mode is Mode.DROP}
    return frozenset(ended.items())


def of_snapshot(footprint: Footprint, *, is_first: bool) -> Footprint:
    """Returns the footprint of a statement in a read-only snapshot, which its first statement takes.

    The first one reads, so to speak, every table that the snapshot will read: it may be any. For the others
    all is settled by then, except that a table may be dropped, and that the clock advances.
    """
    clock = {(CLOCK, mode) for table, mode in footprint if table == CLOCK}
    if is_first:
        return frozenset({(EVERY_TABLE, Mode.READ), *clock})
    return frozenset(clock | {(table, Mode.READ_SNAPSHOT) for table in tables_of(footprint)})


def reading_all(tables: Iterable[str], first: Footprint) -> Footprint:
    """Returns the footprint of the first statement of a snapshot; `first` is what it was before it ended."""
    return first - {(EVERY_TABLE, Mode.READ)} | {(table, Mode.READ) for table in tables}


def tables_of(footprint: Footprint) -> set[str]:
    return {table.split(ROWS)[0] for table, _ in footprint} - {CLOCK}


@lru_cache(maxsize=100_000)
def are_dependent(one: Footprint, other: Footprint) -> bool:
    """Whether the order of two neighbouring steps of different transactions can matter."""
    return any(
        (mode, other_mode) in ORDERED and _overlap(table, other_table)
        for table, mode in one
        for other_table, other_mode in other
    )


def _overlap(one: str, other: str) -> bool:
    if one == other or EVERY_TABLE in (one, other):
        return True
    tables = one.split(ROWS, maxsplit=1)[0], other.split(ROWS, maxsplit=1)[0]
    return tables[0] == tables[1] and (ROWS not in one or ROWS not in other)


def tables_written(footprints: Iterable[Footprint]) -> set[str]:
    """Returns the tables that may have changed."""
    return {
        table.split(ROWS)[0]
        for footprint in footprints
        for table, mode in footprint
        if mode in (Mode.WRITE, Mode.DROP)
    }
