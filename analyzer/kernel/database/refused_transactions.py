"""Causes for which a database that was reached refuses or ends a transaction, with what an operator does."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

AGAIN = "nothing of it was stored; try again in a minute, or ask for less at once"
# By SQLSTATE of PostgreSQL.
OF_POSTGRESQL: Mapping[str, str] = {
    "25006": (
        "the database can only be read: it is a standby, or default_transaction_read_only is on; name the "
        "primary in [database] url, or switch that setting off"
    ),
    "25P03": f"the database ended the transaction, because this machine was too busy to continue it; {AGAIN}",
    "57014": f"the database ended a statement that took too long; {AGAIN}",
    "55P03": f"another transaction has held the same rows for too long; {AGAIN}",
    "40P01": f"the database ended a transaction that waited in a circle; {AGAIN}",
}
OF_SQLITE: Mapping[int, str] = {
    sqlite3.SQLITE_BUSY: (
        f"the database file is busy, because another process has been writing to it for too long; {AGAIN}"
    ),
    sqlite3.SQLITE_READONLY: (
        "the database can only be read; give this user the right to write to the file and its folder"
    ),
    sqlite3.SQLITE_FULL: "the disk of the database is full; free some space",
}
# By a part of PgBouncer's message.
OF_POOLERS: Mapping[str, str] = {
    "statement pooling mode": (
        "the pooler gives a session away after each statement; set pool_mode = transaction or session in "
        "pgbouncer.ini, for this database"
    ),
    "unsupported startup parameter": (
        "the pooler refuses a parameter of [database] url; take it away there, and set it for the role: "
        "alter role NAME set PARAMETER = VALUE"
    ),
}


def explain(message: str, sqlstate: str | None, sqlite_code: int | None) -> str | None:
    """Returns why a transaction was refused or ended, what to do, and the driver's `message`.

    None: the database was not reached, or refuses for another reason, which the message says alone.

    Example:
        >>> explain("database is locked", None, 5)  # doctest: +ELLIPSIS
        'the database file is busy, because another process ... at once (database is locked)'
    """
    # SQLite's extended codes have the code in their lowest byte.
    sentence = OF_POSTGRESQL.get(sqlstate or "") or OF_SQLITE.get((sqlite_code or 0) & 0xFF)
    sentence = sentence or next((text for part, text in OF_POOLERS.items() if part in message), None)
    return None if sentence is None else f"{sentence} ({message})"
