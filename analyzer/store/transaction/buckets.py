"""Additive upserts of buckets. Every flush executes them: each statement is built once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from analyzer.core.model import CountRow
from analyzer.store.database.engine import insert_into
from analyzer.store.database.row_parameters import as_parameters, rows_given
from analyzer.store.database.schema import TOTAL_MAX, buckets
from analyzer.store.transaction.sql_joins import SQL_JOINS, IntColumn

ROWS_MAX = 10_000  # per statement, whose time-out is two seconds; so many take 0.1 s
ROW_COLUMNS = [buckets.c[name] for name in CountRow._fields]

Assignments = Callable[[sa.Table, Any], Mapping[str, sa.ColumnElement[Any]]]


def add_rows(db: sa.Connection, rows: Sequence[CountRow], joins: Mapping[str, str]) -> None:
    """Adds `rows` to the buckets, in their order; `joins` has the join of each meter, by default "sum"."""
    for join in SQL_JOINS:
        joined = [_bounded(row) for row in rows if joins.get(row.meter, "sum") == join]
        for chunk in in_chunks(joined):
            parameters = as_parameters(db.dialect.name, ROW_COLUMNS, chunk)
            db.execute(_upsert_of(db.dialect.name, join), parameters)


@lru_cache
def _upsert_of(dialect: str, join: str) -> sa.Executable:
    combine = SQL_JOINS[join].upsert

    def assignments(table: sa.Table, new: Any) -> dict[str, IntColumn]:
        return {name: combine(dialect, table.c[name], new[name]) for name in ("value", "denied")}

    return upsert(dialect, buckets, sa.select(rows_given(dialect, ROW_COLUMNS)), assignments)


def upsert(
    dialect: str, table: sa.Table, given: sa.Select[Any], assignments: Assignments
) -> postgresql.Insert | sqlite.Insert:
    """Returns an INSERT of the rows of `given`; existing rows are updated by `assignments(table, new)`."""
    # Without a WHERE in between, SQLite takes ON CONFLICT for the ON of a join.
    added = insert_into(dialect, table).from_select(
        list(given.selected_columns.keys()), given.where(sa.true())
    )
    return added.on_conflict_do_update(
        index_elements=table.primary_key, set_=dict(assignments(table, added.excluded))
    )


def in_chunks(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (rows[at : at + ROWS_MAX] for at in range(0, len(rows), ROWS_MAX))


def _bounded(row: CountRow) -> CountRow:
    if row.value <= TOTAL_MAX and row.denied <= TOTAL_MAX:
        return row
    return row._replace(value=min(row.value, TOTAL_MAX), denied=min(row.denied, TOTAL_MAX))
