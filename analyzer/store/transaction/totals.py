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

from analyzer.core.counting.caller_budget import OVERFLOW
from analyzer.core.counting.groupings import grouping_of
from analyzer.core.counting.meters import WIDTHS_S
from analyzer.core.judging.plan import Plan
from analyzer.core.judging.totals import SeriesWindow, Standing, Sum, TotalKey, order_of
from analyzer.core.judging.windows import Window, window_at
from analyzer.store.database.row_parameters import as_parameters, rows_given
from analyzer.store.database.schema import TOTAL_MAX, buckets, totals
from analyzer.store.transaction.buckets import in_chunks, upsert
from analyzer.store.transaction.sql_joins import bounded_sum, plus

KEY = tuple(totals.primary_key)
STATEMENTS_MAX = 64  # kept in memory; one analyzer uses one set of sums

# The parameters of one row. A sum is passed as its index among the sums of the plan: to pass three texts per
# row would cost more than the upsert.
KEY_PARAMETERS: list[sa.ColumnClause[Any]] = [
    sa.column("sum", sa.BigInteger),
    sa.column("key", sa.Text),
    sa.column("resource", sa.Text),
    sa.column("window_s", sa.BigInteger),
    sa.column("until_s", sa.BigInteger),
]
ADD_PARAMETERS = [*KEY_PARAMETERS, sa.column("used", sa.BigInteger)]
NEXT_PARAMETERS = [*KEY_PARAMETERS, sa.column("next", sa.BigInteger)]

SumNames = tuple[tuple[str, str, str], ...]  # grouping, meter and period of each sum, by its index


class StoredTotal(NamedTuple):
    """A total that must be judged, with the judgement that is stored in its row."""

    standing: Standing
    next: int
    plan: int


def add_totals(
    db: sa.Connection, plan: Plan, version: int, growth: Mapping[Sum, Mapping[SeriesWindow, int]]
) -> list[StoredTotal]:
    """Adds to the totals, in the order of `growth`; returns those that must be judged by plan `version`."""
    if not growth:
        return []
    names, first_thresholds = _sums_of(plan)
    rows = []
    for sum_, grown in growth.items():
        index = names.index(order_of(sum_))
        rows += [
            (index, key, resource, *window, min(number, TOTAL_MAX))
            for (key, resource, window), number in grown.items()
        ]
    sums = {order_of(sum_): sum_ for sum_ in growth}
    statement = _add_statement(db.dialect.name, names, first_thresholds)
    due = []
    for chunk in in_chunks(rows):
        parameters = as_parameters(db.dialect.name, ADD_PARAMETERS, chunk) | {"plan": version}
        for *name, key, resource, window_s, used, next_, judged_by in db.execute(statement, parameters):
            if used >= next_ or judged_by != version:
                sum_ = sums[tuple(name)]
                total = TotalKey(sum_, key, resource, window_at(sum_.window, window_s))
                due.append(StoredTotal(Standing(total, used), next_, judged_by))
    return sorted(due, key=lambda stored: _sort_key(stored.standing.total))


def set_next(
    db: sa.Connection, plan: Plan, version: int, judged: Sequence[StoredTotal], now_s: float
) -> None:
    """Stores the `next` of totals that were judged just now, where it differs from the stored one."""
    names, _ = _sums_of(plan)
    rows = []
    for stored in judged:
        total = stored.standing.total
        next_ = plan.next_judgement(stored.standing, now_s)
        if (next_, version) != (stored.next, stored.plan):
            rows.append((names.index(order_of(total.sum)), total.key, total.resource, *total.window, next_))
    if not rows:
        return
    statement = _set_next_statement(db.dialect.name, names)
    for chunk in in_chunks(rows):
        db.execute(statement, as_parameters(db.dialect.name, NEXT_PARAMETERS, chunk) | {"plan": version})


def fill(db: sa.Connection, plan: Plan, version: int, sum_: Sum, now_s: int) -> None:
    """Computes the totals of a sum from the buckets: of the current window and of later ones.

    Later ones exist where a producer's clock runs ahead.
    """
    db.execute(sa.delete(totals).where(_is_of(sum_)))
    counted = _counted(sum_)
    current = window_at(sum_.window, now_s)
    ahead = sa.select(buckets.c.bucket_s).distinct().where(counted, buckets.c.bucket_s >= current.until_s)
    later = {window_at(sum_.window, bucket_s) for bucket_s in db.scalars(ahead)}
    for window in (current, *sorted(later)):
        _fill_window(db, sum_, counted, window, (plan.thresholds_of[sum_][0], version))


def reached(db: sa.Connection, plan: Plan, sum_: Sum, now_s: int) -> list[Standing]:
    """Returns the totals of the current window that have reached the least threshold of their policies."""
    window = window_at(sum_.window, now_s)
    statement = sa.select(totals.c.key, totals.c.resource, totals.c.used).where(
        _is_of(sum_), totals.c.window_s == window.start_s, totals.c.used >= plan.thresholds_of[sum_][0]
    )
    return [
        Standing(TotalKey(sum_, key, resource, window), used)
        for key, resource, used in db.execute(statement.order_by(totals.c.key, totals.c.resource))
    ]


def _sums_of(plan: Plan) -> tuple[SumNames, tuple[int, ...]]:
    """Returns the names of the plan's sums in the order of their indexes, and the least threshold of each."""
    sums = sorted(plan.thresholds_of, key=order_of)
    return tuple(map(order_of, sums)), tuple(plan.thresholds_of[sum_][0] for sum_ in sums)


def _sort_key(total: TotalKey) -> tuple[Any, ...]:
    return (*order_of(total.sum), total.key, total.resource, total.window.start_s)


@lru_cache(maxsize=STATEMENTS_MAX)
def _add_statement(dialect: str, names: SumNames, first_thresholds: tuple[int, ...]) -> sa.Executable:
    """The upsert that adds; returns key, used, next and plan of the rows that must be judged.

    SQLite cannot filter what an INSERT returns: there it returns all rows.
    """
    given = rows_given(dialect, ADD_PARAMETERS)
    select = sa.select(
        *_key_columns(given, names),
        given.c.until_s,
        given.c.used,
        _value_of_sum(given, first_thresholds).label("next"),
        sa.bindparam("plan", type_=sa.BigInteger).label("plan"),
    )
    added = upsert(dialect, totals, select, lambda table, new: {"used": plus(table.c.used, new.used)})
    grown = added.returning(*KEY, totals.c.used, totals.c.next, totals.c.plan)
    if dialect != "postgresql":
        return grown
    # Returning also the rows that need no judgement would double the time.
    rows = grown.cte("grown")
    due = sa.or_(rows.c.used >= rows.c.next, rows.c.plan != sa.bindparam("plan", type_=sa.BigInteger))
    return sa.select(rows).where(due)


@lru_cache(maxsize=STATEMENTS_MAX)
def _set_next_statement(dialect: str, names: SumNames) -> sa.Executable:
    """The upsert that stores `next`.

    All its rows exist; a plain UPDATE with a join is planned by statistics.
    """
    given = rows_given(dialect, NEXT_PARAMETERS)
    select = sa.select(
        *_key_columns(given, names),
        given.c.until_s,
        sa.literal(0, sa.BigInteger).label("used"),
        given.c.next,
        sa.bindparam("plan", type_=sa.BigInteger).label("plan"),
    )
    return upsert(dialect, totals, select, lambda _table, new: {"next": new.next, "plan": new.plan})


def _key_columns(given: Any, names: SumNames) -> list[sa.ColumnElement[Any]]:
    texts = list(zip(*names, strict=True))
    return [
        *(
            _value_of_sum(given, texts[at], sa.Text).label(name)
            for at, name in enumerate(("grouping", "meter", "period"))
        ),
        given.c.key,
        given.c.resource,
        given.c.window_s,
    ]


def _value_of_sum(given: Any, values: Sequence[Any], kind: Any = sa.BigInteger) -> sa.ColumnElement[Any]:
    """Returns the expression for the value that belongs to a row's sum; `values` are by the sum's index."""
    if len(values) == 1:
        return sa.literal(values[0], kind)
    cases = {at: sa.literal(value, kind) for at, value in enumerate(values)}
    return sa.case(cases, value=given.c.sum)


def _is_of(sum_: Sum) -> sa.ColumnElement[bool]:
    grouping, meter, period = order_of(sum_)
    return sa.and_(totals.c.grouping == grouping, totals.c.meter == meter, totals.c.period == period)


def _counted(sum_: Sum) -> sa.ColumnElement[bool]:
    """Returns the condition for the buckets that the sum adds up."""
    conditions = [
        buckets.c.grouping == sum_.grouping,
        buckets.c.meter == sum_.meter,
        buckets.c.width_s.in_(WIDTHS_S),  # all widths: so the index of the primary key finds the time range
        buckets.c.value > 0,
    ]
    if grouping_of(sum_.grouping).is_of_callers:
        conditions.append(buckets.c.key != OVERFLOW)
    return sa.and_(*conditions)


def _fill_window(
    db: sa.Connection,
    sum_: Sum,
    counted: sa.ColumnElement[bool],
    window: Window,
    next_and_plan: tuple[int, int],
) -> None:
    grouping, meter, period = (sa.literal(text) for text in order_of(sum_))
    key = (grouping, meter, period, buckets.c.key, buckets.c.resource)
    numbers = [sa.literal(number, sa.BigInteger) for number in (*window, *next_and_plan)]
    grown = (
        sa.select(*key, *numbers[:2], bounded_sum(buckets.c.value), *numbers[2:])
        .where(counted, buckets.c.bucket_s >= window.start_s, buckets.c.bucket_s < window.until_s)
        .group_by(buckets.c.key, buckets.c.resource)
    )
    db.execute(sa.insert(totals).from_select([column.name for column in totals.c], grown))
