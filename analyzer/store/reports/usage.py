"""Counts, read back: values per series and stretch of time, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.core.judging.plan import UnknownPlan, plan_from
from analyzer.store.database.engine import ROWS_AT_ONCE, reading, slow_reading
from analyzer.store.database.schema import buckets, plans
from analyzer.store.transaction.sql_joins import HALF, SQL_JOINS


class UsageRow(NamedTuple):
    """One meter of one series in [bucket_s, bucket_s + width_s)."""

    key: str
    resource: str
    meter: str
    bucket_s: int
    width_s: int
    value: int
    denied: int


class UsageQuery(NamedTuple):
    """Selects rows of counts.

    The interval [from_s, until_s) selects the buckets that begin in it; None: unlimited.
    """

    grouping: str
    width_s: int
    from_s: int | None = None
    until_s: int | None = None
    key: str | None = None
    meter: str | None = None


def usage_rows(engine: sa.Engine, query: UsageQuery) -> Iterator[UsageRow]:
    """Yields the rows by time, key, resource and meter, in one snapshot and in constant memory.

    Buckets up to the wanted width are joined to it, each meter by its own join. Wider ones, of long ago, keep
    their own width. Raises StoreAway.
    """
    with slow_reading(engine) as db:
        statement = _statement(query, _joins(db))
        with db.execute(statement, execution_options={"yield_per": ROWS_AT_ONCE}) as rows:
            for row in rows:
                value = row.value_high * HALF + row.value_low
                denied = row.denied_high * HALF + row.denied_low
                series = row.key, row.resource, row.meter, row.start_s, row.stretch_s
                yield UsageRow(*series, int(value), int(denied))


def is_counted(engine: sa.Engine, grouping: str) -> bool:
    """Whether `grouping` is in the plan in force, or has buckets. Raises StoreAway."""
    with reading(engine) as db:
        body = db.execute(sa.select(plans.c.body).where(plans.c.active == 1)).scalar_one_or_none()
        if body and grouping in plan_from(body).groupings:
            return True
        return bool(db.execute(sa.select(sa.exists().where(buckets.c.grouping == grouping))).scalar_one())


def _joins(db: sa.Connection) -> dict[str, str]:
    """Returns the join of each meter, from the newest plan that has the meter."""
    joins: dict[str, str] = {}
    for (body,) in db.execute(sa.select(plans.c.body).where(plans.c.body != "").order_by(plans.c.version)):
        try:
            joins |= {meter.name: meter.join for meter in plan_from(body).meters}
        except UnknownPlan:  # of another version of this program
            continue
    return joins


def _statement(query: UsageQuery, joins: Mapping[str, str]) -> sa.Select[Any]:
    counts = _buckets(query).subquery()

    def halves(column: sa.ColumnElement[int]) -> Iterator[sa.ColumnElement[int]]:
        """Yields the joined value in two parts, by the join of the row's meter."""
        by_join = {join: sql.aggregate(column) for join, sql in SQL_JOINS.items()}
        for part, name in enumerate(("high", "low")):
            others = [
                (counts.c.meter.in_([meter for meter in joins if joins[meter] == join]), aggregates[part])
                for join, aggregates in by_join.items()
                if join != "sum"
            ]
            yield sa.case(*others, else_=by_join["sum"][part]).label(f"{column.key}_{name}")

    series = [counts.c[name] for name in ("start_s", "key", "resource", "meter", "stretch_s")]
    values = [*halves(counts.c.value), *halves(counts.c.denied)]
    return sa.select(*series, *values).group_by(*series).order_by(*series)


def _buckets(query: UsageQuery) -> sa.Select[Any]:
    """Returns the wanted buckets, each with the stretch of time that it is shown in."""
    columns = buckets.c
    is_wider = columns.width_s > query.width_s
    wanted = [
        columns.grouping == query.grouping,
        *([columns.bucket_s >= query.from_s] if query.from_s is not None else []),
        *([columns.bucket_s < query.until_s] if query.until_s is not None else []),
        *([columns.key == query.key] if query.key is not None else []),
        *([columns.meter == query.meter] if query.meter is not None else []),
    ]
    start = columns.bucket_s - _modulo(columns.bucket_s, query.width_s)
    return sa.select(
        sa.case((is_wider, columns.bucket_s), else_=start).label("start_s"),
        sa.case((is_wider, columns.width_s), else_=query.width_s).label("stretch_s"),
        *(columns.key, columns.resource, columns.meter, columns.value, columns.denied),
    ).where(*wanted)


def _modulo(value: sa.ColumnElement[int], width_s: int) -> sa.ColumnElement[int]:
    """Returns the remainder, never negative: both databases give it the sign of `value`."""
    return (value % width_s + width_s) % width_s
