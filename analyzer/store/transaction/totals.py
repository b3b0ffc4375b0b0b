"""Running totals in SQL: added up by every flush, which gets back only those that must be judged.

Beside the total stands `next`, the least value at which one of the policies that share it has something to
judge, and the version of the plan by which `next` was computed. The upsert returns the rows that have reached
their `next`, and those of another plan; a caller far above its limit costs no more than one below it, and a
change of plan rewrites no row. After the judgement the rows get their new `next` by the same kind of upsert.

The row is locked until commit: of two analyzers that take a series across its limit together, the second one
waits and sees the sum of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.core.counting.groupings import Grouping
from analyzer.core.judging.plan import Plan
from analyzer.core.judging.totals import Growth, Standing, Sum, TotalKey, order_of, unjudged_keys
from analyzer.core.judging.windows import window_at
from analyzer.store.database.row_parameters import (
    ColumnValues,
    in_parts,
    rows_given,
    upsert_columns,
)
from analyzer.store.database.schema import TOTAL_MAX, totals
from analyzer.store.transaction.catalog import Catalog
from analyzer.store.transaction.sql_joins import plus

SERIES = [totals.c[name] for name in ("window_s", "key", "resource")]
FOUND = [*SERIES, totals.c.used, totals.c.next, totals.c.plan]


class StoredTotal(NamedTuple):
    """A total that must be judged, with the judgement that is stored in its row."""

    standing: Standing
    next: int
    plan: int


def add_totals(
    db: sa.Connection, plan: Plan, version: int, growth: Mapping[Sum, Growth], catalog: Catalog
) -> list[StoredTotal]:
    """Adds to the totals, in the order of `growth`; returns those that must be judged by plan `version`."""
    due: list[StoredTotal] = []
    for sum_, grown in growth.items():
        number = catalog.sum_number(sum_)
        windows_s, amounts = grown.windows_s, grown.amounts
        values: dict[str, ColumnValues] = {
            "sum": number,
            "window_s": windows_s[0] if windows_s[0] == windows_s[-1] else windows_s,
            "key": grown.keys,
            "resource": grown.resources if any(grown.resources) else "",
            "used": amounts if max(amounts) <= TOTAL_MAX else [min(one, TOTAL_MAX) for one in amounts],
            "next": plan.thresholds_of[sum_][0],
            "plan": version,
        }
        rows = upsert_columns(db, totals, values, _add_used, _due_rows)
        if db.dialect.name != "postgresql":
            rows = _due_among(db, number, version, grown)
        due += [_stored(sum_, row) for row in rows]
    return sorted(due, key=lambda stored: _sort_key(stored.standing.total))


def set_next(
    db: sa.Connection,
    plan: Plan,
    version: int,
    judged: Sequence[StoredTotal],
    now_s: float,
    catalog: Catalog,
) -> None:
    """Stores the `next` of totals that were judged just now, where it differs from the stored one."""
    changed: dict[Sum, list[tuple[int, str, str, int]]] = {}
    for stored in judged:
        total = stored.standing.total
        next_ = plan.next_judgement(stored.standing, now_s)
        if (next_, version) != (stored.next, stored.plan):
            row = (total.window.start_s, total.key, total.resource, next_)
            changed.setdefault(total.sum, []).append(row)
    for sum_, rows in changed.items():
        rows.sort()
        values: dict[str, ColumnValues] = {
            "sum": catalog.sum_number(sum_),
            "window_s": [row[0] for row in rows],
            "key": [row[1] for row in rows],
            "resource": [row[2] for row in rows],
            "used": 0,
            "next": [row[3] for row in rows],
            "plan": version,
        }
        # All its rows exist; a plain UPDATE with a join is planned by statistics.
        upsert_columns(db, totals, values, _replace_next)


def used_by(
    db: sa.Connection, number: int, window_s: int, series: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], int]:
    """Returns the totals of these keys and resources in one window; those without a total are left out."""
    columns = [totals.c.key, totals.c.resource]
    given = rows_given(db.dialect.name, columns)
    statement = sa.select(*columns, totals.c.used).where(
        totals.c.sum == number,
        totals.c.window_s == window_s,
        sa.tuple_(*columns).in_(sa.select(given.c.key, given.c.resource)),
    )
    found: dict[tuple[str, str], int] = {}
    for parameters in in_parts(db.dialect.name, columns, series):
        found |= {(row.key, row.resource): row.used for row in db.execute(statement, parameters)}
    return found


def _stored(sum_: Sum, row: sa.Row[Any]) -> StoredTotal:
    total = TotalKey(sum_, row.key, row.resource, window_at(sum_.window, row.window_s))
    return StoredTotal(Standing(total, row.used), row.next, row.plan)


def _sort_key(total: TotalKey) -> tuple[Any, ...]:
    return (*order_of(total.sum), total.window.start_s, total.key, total.resource)


def _add_used(_dialect: str, table: sa.Table, new: Any) -> dict[str, Any]:
    return {"used": plus(table.c.used, new.used)}


def _replace_next(_dialect: str, _table: sa.Table, new: Any) -> dict[str, Any]:
    return {"next": new.next, "plan": new.plan}


def _due_rows(written: Any) -> sa.Select[Any]:
    """Returns the rows that must be judged: to return also the others would double the time."""
    columns = (written.c[column.name] for column in FOUND)
    judged_by_another = written.c.plan != sa.bindparam("given_plan", type_=sa.BigInteger)
    return sa.select(*columns).where(sa.or_(written.c.used >= written.c.next, judged_by_another))


def _due_among(db: sa.Connection, number: int, version: int, grown: Growth) -> list[sa.Row[Any]]:
    """SQLite cannot filter what an INSERT returns: there the rows are read again."""
    series = list(zip(grown.windows_s, grown.keys, grown.resources, strict=True))
    found: list[sa.Row[Any]] = []
    for given in in_parts(db.dialect.name, SERIES, series):
        found += db.execute(_due_statement(db.dialect.name), given | {"sum": number, "version": version})
    return found


@lru_cache
def _due_statement(dialect: str) -> sa.Executable:
    given = rows_given(dialect, SERIES)
    return sa.select(*FOUND).where(
        totals.c.sum == sa.bindparam("sum"),
        sa.tuple_(*SERIES).in_(sa.select(*given.c)),
        sa.or_(totals.c.used >= totals.c.next, totals.c.plan != sa.bindparam("version")),
    )


def judged_series(
    grouping: Grouping, key: sa.ColumnElement[str], resource: sa.ColumnElement[str]
) -> list[sa.ColumnElement[bool]]:
    """Returns the conditions for series that policies judge, as `is_judged` has them."""
    unjudged = unjudged_keys(grouping)
    conditions = [key.not_in(unjudged)] if unjudged else []
    return conditions + ([resource != ""] if grouping.resource is not None else [])
