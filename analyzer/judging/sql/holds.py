"""Since when series are over the mark of a share policy: rows, so that a restart forgets nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from analyzer.judging.circumstances import Hold
from analyzer.kernel.database.row_parameters import delete_given, in_parts, rows_given, store_given
from analyzer.kernel.tables.schema import holds
from gatekeeper.model import LockKey

KEPT_MS = 3_600_000  # after the last look: of policies and series that are gone
KEY = (holds.c.scope, holds.c.key, holds.c.resource, holds.c.policy)
COLUMNS = (*KEY, holds.c.since_ms, holds.c.seen_ms)


def stored(db: sa.Connection, keys: Collection[LockKey]) -> dict[LockKey, Hold]:
    """Returns the holds at `keys`; the transaction holds the totals of their series."""
    by_key: dict[LockKey, Hold] = {}
    for parameters in in_parts(db.dialect.name, KEY, sorted(keys)):
        for *key, since_ms, seen_ms in db.execute(_stored(db.dialect.name), parameters):
            by_key[LockKey(*key)] = Hold(since_ms / 1000, seen_ms / 1000)
    return by_key


def replace(db: sa.Connection, previous: Collection[LockKey], current: Mapping[LockKey, Hold]) -> None:
    """Stores the holds that a look found, and deletes those of `previous` that it did not."""
    ended = sorted(key for key in previous if key not in current)
    for parameters in in_parts(db.dialect.name, KEY, ended):
        db.execute(delete_given(db.dialect.name, KEY), parameters)
    rows = sorted(
        [*key, round(hold.since_s * 1000), round(hold.seen_s * 1000)] for key, hold in current.items()
    )
    for parameters in in_parts(db.dialect.name, COLUMNS, rows):
        db.execute(store_given(db.dialect.name, COLUMNS), parameters)


def outdated(now_ms: int) -> sa.ColumnElement[bool]:
    """Returns the condition for holds whose series or policies are not judged any more."""
    return holds.c.seen_ms < now_ms - KEPT_MS


@lru_cache
def _stored(dialect: str) -> sa.Select[Any]:
    keys = rows_given(dialect, KEY)
    match = sa.and_(*(column == keys.c[column.name] for column in KEY))
    return sa.select(*COLUMNS).join_from(keys, holds, match)
