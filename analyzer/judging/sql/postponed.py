"""Totals that must be judged at a given time, whether or not they grow: the warden reads them each second."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.judging.circumstances import Wait
from analyzer.judging.totals import TotalKey
from analyzer.kernel.database.row_parameters import delete_given, in_parts, insert_given, store_given
from analyzer.kernel.tables.schema import postponed
from analyzer.plan.catalog import Catalog
from analyzer.plan.sums import Sum

AT_ONCE = 1_000  # judged in one transaction
TOGETHER_MAX = 10_000  # of sums whose series are judged together
KEY = (postponed.c.sum, postponed.c.window_s, postponed.c.key, postponed.c.resource)
COLUMNS = (*KEY, postponed.c.due_ms, postponed.c.is_behind)


def store(db: sa.Connection, waiting: Mapping[TotalKey, Wait], catalog: Catalog) -> None:
    """Stores when each total must be judged; a time that is stored already is replaced.

    The transaction holds the rows of these totals.
    """
    rows = sorted(
        [*_row(total, catalog), round(wait.until_s * 1000), int(wait.is_behind)]
        for total, wait in waiting.items()
    )
    for parameters in in_parts(db.dialect.name, COLUMNS, rows):
        db.execute(store_given(db.dialect.name, COLUMNS), parameters)


def store_earlier(db: sa.Connection, waiting: Mapping[TotalKey, Wait], catalog: Catalog) -> None:
    """Stores when each total must be judged, unless an earlier time is stored already.

    The transaction holds the rows of these totals.
    """
    rows = sorted([*_row(total, catalog), round(wait.until_s * 1000), 0] for total, wait in waiting.items())
    for parameters in in_parts(db.dialect.name, COLUMNS, rows):
        db.execute(_store_earlier(db.dialect.name), parameters)


@lru_cache
def _store_earlier(dialect: str) -> Any:
    added = insert_given(dialect, postponed, [column.name for column in COLUMNS])
    is_earlier = added.excluded.due_ms < postponed.c.due_ms
    changed = {"due_ms": added.excluded.due_ms, "is_behind": added.excluded.is_behind}
    return added.on_conflict_do_update(index_elements=postponed.primary_key, set_=changed, where=is_earlier)


def has_due(db: sa.Connection, now_ms: int) -> bool:
    """Whether the time of a total has come."""
    return (
        db.execute(sa.select(postponed.c.sum).where(postponed.c.due_ms <= now_ms).limit(1)).first()
        is not None
    )


class DueTotal(NamedTuple):
    """A total whose time has come; its window follows from the limits of its caller."""

    sum: Sum
    key: str
    resource: str
    window_s: int


def due(
    db: sa.Connection, sums: Mapping[int, Sum], now_ms: int, together: Collection[Sum] = ()
) -> tuple[list[DueTotal], int]:
    """Returns totals whose time has come, up to a bound, and how many rows they have.

    Of sums that are judged `together`, all totals that wait are returned with the first that is due, up to
    another bound. Rows of sums that are not judged any more, of which `sums` has no number, are deleted.
    """
    unknown = sa.delete(postponed).where(postponed.c.due_ms <= now_ms, postponed.c.sum.not_in(sums))
    statement = (
        sa.select(*KEY).where(postponed.c.due_ms <= now_ms).order_by(postponed.c.due_ms).limit(AT_ONCE)
    )
    rows = db.execute(statement).all()
    joined = {row.sum for row in rows if sums.get(row.sum) in together}
    if joined:
        statement = sa.select(*KEY).where(postponed.c.sum.in_(sorted(joined))).order_by(*KEY)
        of_them = db.execute(statement.limit(TOGETHER_MAX)).all()
        rows = [*(row for row in rows if row.sum not in joined), *of_them]
    if any(row.sum not in sums for row in rows):
        db.execute(unknown)
    totals = [DueTotal(sums[row.sum], row.key, row.resource, row.window_s) for row in rows if row.sum in sums]
    return totals, len(rows)


def forget(db: sa.Connection, totals: Sequence[DueTotal], catalog: Catalog) -> None:
    """Deletes the rows of totals that are being judged; the transaction holds the rows of these totals."""
    rows = sorted(
        [catalog.sum_number(total.sum), total.window_s, total.key, total.resource] for total in totals
    )
    for parameters in in_parts(db.dialect.name, KEY, rows):
        db.execute(delete_given(db.dialect.name, KEY), parameters)


def _row(total: TotalKey, catalog: Catalog) -> list[int | str]:
    return [catalog.sum_number(total.sum), total.window.start_s, total.key, total.resource]
