"""The joins of meters in SQL: how an upsert and a report combine two values of one bucket."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.kernel.tables.schema import TOTAL_MAX
from analyzer.plan.meters import JOINS

IntColumn = sa.ColumnElement[int]

HALF = 2**32  # sums are taken in two halves: SQLite raises an error for a sum beyond 64 bits


class SqlJoin(NamedTuple):
    """One join: an entry per name in `JOINS`."""

    upsert: Callable[[str, IntColumn, IntColumn], IntColumn]  # dialect, stored value, new value
    # The joined value of a group as a high and a low part: high * HALF + low.
    aggregate: Callable[[IntColumn], tuple[IntColumn, IntColumn]]


def plus(stored: IntColumn, new: IntColumn) -> IntColumn:
    """Returns the sum, limited to TOTAL_MAX. `new` may be below 0: a replay takes counts back.

    Beyond it PostgreSQL would refuse every flush of the series, and SQLite would silently store a float.
    """
    largest = sa.literal(TOTAL_MAX, sa.BigInteger)
    return sa.case((new < 0, stored + new), (stored > TOTAL_MAX - new, largest), else_=stored + new)


def _greatest(dialect: str, stored: IntColumn, new: IntColumn) -> IntColumn:
    return (sa.func.greatest if dialect == "postgresql" else sa.func.max)(stored, new)


def sum_in_halves(column: IntColumn) -> tuple[IntColumn, IntColumn]:
    return sa.func.sum(column // HALF), sa.func.sum(column % HALF)


def _max_in_halves(column: IntColumn) -> tuple[IntColumn, IntColumn]:
    largest = sa.func.max(column)
    return largest // HALF, largest % HALF


SQL_JOINS: Mapping[str, SqlJoin] = {
    "sum": SqlJoin(lambda _dialect, stored, new: plus(stored, new), sum_in_halves),
    "max": SqlJoin(_greatest, _max_in_halves),
}
assert SQL_JOINS.keys() == JOINS.keys()  # noqa: S101 - a join without its SQL must fail at import


def bounded_join(join: str, column: IntColumn) -> sa.ColumnElement[Any]:
    """Returns the joined value of a group, limited to TOTAL_MAX."""
    return bounded_sum(column) if join == "sum" else sa.func.max(column)


def bounded_sum(column: IntColumn) -> sa.ColumnElement[Any]:
    """Returns the sum of a group, limited to TOTAL_MAX."""
    high, low = sum_in_halves(column)
    return sa.case(
        (high + low // HALF >= HALF // 2, sa.literal(TOTAL_MAX, sa.BigInteger)),
        else_=sa.cast(high * HALF + low, sa.BigInteger),
    )
