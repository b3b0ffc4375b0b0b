"""The joins of meters in SQL: how an upsert and a report combine two values of one bucket."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.kernel.database.dialects import DIALECTS
from analyzer.kernel.tables.schema import TOTAL_MAX
from analyzer.plan.meters import JOINS

IntColumn = sa.ColumnElement[int]

HALF = 2**32  # sums are taken in two halves: SQLite raises an error for a sum beyond 64 bits


class SqlJoin(NamedTuple):
    """One join: an entry per name in `JOINS`.

    Attributes:
        upsert: Of a dialect, a stored value and a new one; of totals, too.
        aggregate: The joined value of a group as a high and a low part: high * HALF + low.
        bounded: The joined value of a group, limited to TOTAL_MAX.
    """

    upsert: Callable[[str, IntColumn, IntColumn], IntColumn]
    aggregate: Callable[[IntColumn], tuple[IntColumn, IntColumn]]
    bounded: Callable[[IntColumn], sa.ColumnElement[Any]]


def plus(stored: IntColumn, new: IntColumn) -> IntColumn:
    """Returns the sum, limited to TOTAL_MAX. `new` may be below 0: a replay takes counts back.

    Beyond it PostgreSQL would refuse every flush of the series, and SQLite would silently store a float.
    """
    largest = sa.literal(TOTAL_MAX, sa.BigInteger)
    return sa.case((new < 0, stored + new), (stored > TOTAL_MAX - new, largest), else_=stored + new)


def greatest(dialect: str, stored: IntColumn, new: IntColumn) -> IntColumn:
    return DIALECTS[dialect].greatest(stored, new)


def sum_in_halves(column: IntColumn) -> tuple[IntColumn, IntColumn]:
    return sa.func.sum(column // HALF), sa.func.sum(column % HALF)


def _max_in_halves(column: IntColumn) -> tuple[IntColumn, IntColumn]:
    largest = sa.func.max(column)
    return largest // HALF, largest % HALF


def bounded_sum(column: IntColumn) -> sa.ColumnElement[Any]:
    """Returns the sum of a group, limited to TOTAL_MAX."""
    high, low = sum_in_halves(column)
    return sa.case(
        (high + low // HALF >= HALF // 2, sa.literal(TOTAL_MAX, sa.BigInteger)),
        else_=sa.cast(high * HALF + low, sa.BigInteger),
    )


_SUM = SqlJoin(lambda _dialect, stored, new: plus(stored, new), sum_in_halves, bounded_sum)
SQL_JOINS: Mapping[str, SqlJoin] = {
    "sum": _SUM,
    "max": SqlJoin(greatest, _max_in_halves, sa.func.max),
    "distinct": _SUM,
}
assert SQL_JOINS.keys() == JOINS.keys()  # noqa: S101 - a join without its SQL must fail at import


def bounded_join(join: str, column: IntColumn) -> sa.ColumnElement[Any]:
    """Returns the joined value of a group, limited to TOTAL_MAX."""
    return SQL_JOINS[join].bounded(column)
