"""Until when series get no lock by a policy: rows, so that a restart forgets nothing.

Written by the command that clears a lock, with the lock that keeps flushes out, and read by each judgement.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.kernel.database.engine import NowMs
from analyzer.kernel.database.row_parameters import in_parts, rows_given, store_given
from analyzer.kernel.tables.schema import hold_offs
from gatekeeper.model import LockKey

KEPT_MS = 3_600_000  # after their end, for commands that show why a caller was not locked
KEY = (hold_offs.c.scope, hold_offs.c.key, hold_offs.c.resource, hold_offs.c.policy)
COLUMNS = (*KEY, hold_offs.c.until_ms, hold_offs.c.who, hold_offs.c.reason, hold_offs.c.at_ms)


class HoldOff(NamedTuple):
    """A lock that is not set before a time, and the act that caused it."""

    at: LockKey
    until_ms: int
    who: str
    reason: str
    at_ms: int


def store(db: sa.Connection, rows: Iterable[HoldOff]) -> None:
    """Stores hold-offs in place of those of the same locks; the transaction keeps flushes out."""
    given_rows = sorted([*key, until_ms, who, reason, at_ms] for key, until_ms, who, reason, at_ms in rows)
    for parameters in in_parts(db.dialect.name, COLUMNS, given_rows):
        db.execute(store_given(db.dialect.name, COLUMNS), parameters)


def in_force(db: sa.Connection, keys: Collection[LockKey], now_ms: int) -> dict[LockKey, float]:
    """Returns until when locks at `keys` are held off, in seconds since 1970."""
    until_s: dict[LockKey, float] = {}
    for parameters in in_parts(db.dialect.name, KEY, sorted(set(keys))):
        for *key, until_ms in db.execute(_in_force(db.dialect.name), parameters | {"now_ms": now_ms}):
            until_s[LockKey(*key)] = until_ms / 1000
    return until_s


def of_series(db: sa.Connection, scope: str, key: str) -> list[HoldOff]:
    """Returns the hold-offs of a series that have not ended."""
    statement = sa.select(*COLUMNS).where(hold_offs.c.scope == scope, hold_offs.c.key == key)
    rows = db.execute(statement.where(hold_offs.c.until_ms > NowMs()).order_by(*KEY))
    return [HoldOff(LockKey(*row[:4]), *row[4:]) for row in rows]


def outdated(now_ms: int) -> sa.ColumnElement[bool]:
    """Returns the condition for hold-offs that ended long ago."""
    return hold_offs.c.until_ms < now_ms - KEPT_MS


@lru_cache
def _in_force(dialect: str) -> sa.Select[Any]:
    keys = rows_given(dialect, KEY)
    match = sa.and_(*(column == keys.c[column.name] for column in KEY))
    lasts = hold_offs.c.until_ms > sa.bindparam("now_ms", type_=sa.BigInteger)
    return sa.select(*KEY, hold_offs.c.until_ms).join_from(keys, hold_offs, match).where(lasts)
