"""Causes for which a database that was reached refuses or ends a transaction, with what an operator does."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import NamedTuple

AGAIN = "nothing of it was stored; try again in a minute, or ask for less at once"


class ExplainedRefusal(NamedTuple):
    """The cause for which a database refuses or ends a transaction, and what to do."""

    what: str
    cure: str


# By SQLSTATE of PostgreSQL.
OF_POSTGRESQL: Mapping[str, ExplainedRefusal] = {
    "25006": ExplainedRefusal(
        "the database can only be read: it is a standby, or default_transaction_read_only is on",
        "name the primary in [database] url, or switch that setting off",
    ),
    "25P03": ExplainedRefusal(
        "the database ended the transaction, because this machine was too busy to continue it", AGAIN
    ),
    "57014": ExplainedRefusal("the database ended a statement that took too long", AGAIN),
    "55P03": ExplainedRefusal("another transaction has held the same rows for too long", AGAIN),
    "40P01": ExplainedRefusal("the database ended a transaction that waited in a circle", AGAIN),
}
OF_SQLITE: Mapping[int, ExplainedRefusal] = {
    sqlite3.SQLITE_BUSY: ExplainedRefusal(
        "the database file is busy, because another process has been writing to it for too long", AGAIN
    ),
    sqlite3.SQLITE_READONLY: ExplainedRefusal(
        "the database can only be read", "give this user the right to write to the file and its folder"
    ),
    sqlite3.SQLITE_FULL: ExplainedRefusal("the disk of the database is full", "free some space"),
}
# By a part of PgBouncer's message.
OF_POOLERS: Mapping[str, ExplainedRefusal] = {
    "statement pooling mode": ExplainedRefusal(
        "the pooler gives a session away after each statement",
        "set pool_mode = transaction or session in pgbouncer.ini, for this database",
    ),
    "unsupported startup parameter": ExplainedRefusal(
        "the pooler refuses a parameter of [database] url",
        "take it away there, and set it for the role: alter role NAME set PARAMETER = VALUE",
    ),
}


def explain(message: str, sqlstate: str | None, sqlite_code: int | None) -> ExplainedRefusal | None:
    """Returns why a transaction was refused or ended, and what to do with the driver's `message`.

    None: the database was not reached, or refuses for another reason, which the message says alone.

    Example:
        >>> explain("database is locked", None, 5).what
        'the database file is busy, because another process has been writing to it for too long'
    """
    # SQLite's extended codes have the code in their lowest byte.
    refusal = OF_POSTGRESQL.get(sqlstate or "") or OF_SQLITE.get((sqlite_code or 0) & 0xFF)
    refusal = refusal or next((text for part, text in OF_POOLERS.items() if part in message), None)
    return None if refusal is None else refusal._replace(cure=f"{refusal.cure} ({message})")
