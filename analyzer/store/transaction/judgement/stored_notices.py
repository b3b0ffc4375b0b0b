"""Notices in SQL: a row for each, written in the transaction that judges, so that it is raised once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from analyzer.core.judging.earned_notices import Notice, NoticeKey
from analyzer.store.database.row_parameters import in_parts, insert_given, rows_given
from analyzer.store.database.schema import notices

KEY = [notices.c[name] for name in NoticeKey._fields]
COLUMNS = [*KEY, *(notices.c[name] for name in ("scope", "used", "limit", "until_s", "detail"))]


def store(db: sa.Connection, reached: Collection[Notice], now_ms: int) -> list[Notice]:
    """Stores the notices that were not raised before; returns these.

    The transaction holds the totals of their series, so no other one raises them.
    """
    rows = sorted((*notice.at, *notice[1:]) for notice in reached)
    raised: set[NoticeKey] = set()
    for given in in_parts(db.dialect.name, COLUMNS, rows):
        done = db.execute(_store(db.dialect.name), given | {"given_at_ms": now_ms})
        raised |= {NoticeKey(*row) for row in done}
    return [notice for notice in reached if notice.at in raised]


def raised_s(db: sa.Connection, keys: Sequence[NoticeKey]) -> dict[NoticeKey, float]:
    """Returns when the notices with these keys were raised; those that were not are left out."""
    found: dict[NoticeKey, float] = {}
    for given in in_parts(db.dialect.name, KEY, sorted(keys)):
        rows = db.execute(_raised(db.dialect.name), given)
        found |= {NoticeKey(*at): at_ms / 1000 for *at, at_ms in rows}
    return found


@lru_cache
def _store(dialect: str) -> Any:
    names = [column.name for column in COLUMNS]
    added = insert_given(dialect, notices, [*names, "at_ms"], constants=["at_ms"])
    return added.on_conflict_do_nothing(index_elements=notices.primary_key).returning(*KEY)


@lru_cache
def _raised(dialect: str) -> sa.Select[Any]:
    given = rows_given(dialect, KEY)
    is_given = sa.and_(*(column == given.c[column.name] for column in KEY))
    return sa.select(*KEY, notices.c.at_ms).join_from(given, notices, is_given)
