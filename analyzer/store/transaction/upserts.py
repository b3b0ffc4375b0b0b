"""The two statements that add up what was counted. Every flush executes them: each is built once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from analyzer.core.model import CountRow
from analyzer.store.database.engine import insert_into
from analyzer.store.database.row_parameters import rows_given
from analyzer.store.database.schema import TOTAL_MAX, buckets, totals

IntColumn = sa.ColumnElement[int]

TOTAL_COLUMNS = list(totals.c)
ROW_COLUMNS = [buckets.c[name] for name in CountRow._fields]
PLANS_KEPT = 8  # several in one process are only there in tests


@lru_cache(maxsize=PLANS_KEPT)
def adding_to_totals(dialect: str, limits: tuple[tuple[str, int], ...]) -> sa.Executable:
    """Add the rows given to `totals`; gives back the key and the new value of those that have reached the
    limit of their policy. One that is not in `limits` has none to reach."""
    added = _added(dialect, totals, TOTAL_COLUMNS, {"used": plus})
    grown = added.returning(*totals.primary_key, totals.c.used)
    if not limits or dialect != "postgresql":
        return grown  # SQLite knows no statement around one that writes: whoever asked looks
    # To hand over ten thousand that are below theirs takes as long as to add them up.
    rows = grown.cte("grown")
    return sa.select(rows).where(rows.c.used >= sa.case(dict(limits), value=rows.c.policy, else_=0))


@lru_cache
def adding_to_buckets(dialect: str, join: Literal["sum", "max"]) -> sa.Executable:
    """Add the rows given to `buckets`, or keep the larger value."""
    joined = plus if join == "sum" else _greatest(dialect)
    return _added(dialect, buckets, ROW_COLUMNS, {"value": joined, "denied": joined})


def _added(
    dialect: str,
    table: sa.Table,
    columns: Sequence[sa.Column[Any]],
    joins: dict[str, Callable[[IntColumn, IntColumn], IntColumn]],
) -> postgresql.Insert | sqlite.Insert:
    # SQLite cannot tell "FROM x ON CONFLICT" from a join's ON without a WHERE in between.
    given = sa.select(rows_given(dialect, columns)).where(sa.true())
    added = insert_into(dialect, table).from_select([column.name for column in columns], given)
    joined = {name: join(table.c[name], added.excluded[name]) for name, join in joins.items()}
    return added.on_conflict_do_update(index_elements=table.primary_key, set_=joined)


def plus(ours: IntColumn, theirs: IntColumn) -> IntColumn:
    """The sum, held at the largest number a column takes: PostgreSQL would refuse the flush for ever,
    SQLite would quietly go on with a float."""
    return sa.case((ours > TOTAL_MAX - theirs, sa.literal(TOTAL_MAX, sa.BigInteger)), else_=ours + theirs)


def _greatest(dialect: str) -> Callable[[IntColumn, IntColumn], IntColumn]:
    return sa.func.greatest if dialect == "postgresql" else sa.func.max
