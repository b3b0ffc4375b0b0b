"""Running totals in SQL: added up by every flush, which gets back only those that must be judged.

Beside the total stands `next`, the least value at which one of the policies that share it has something to
judge, and the version of the plan by which `next` was computed. The upsert returns the rows that have reached
their `next`, and those of another plan; a caller far above its limit costs no more than one below it, and a
change of plan rewrites no row. After the judgement the rows get their new `next` by the same kind of upsert.

The row is locked until commit: of two analyzers that take a series across its limit together, the second one
waits and sees the sum of both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.counting.sql_joins import SQL_JOINS, plus
from analyzer.judging.caller_limits import Limits
from analyzer.judging.sql import stored_values
from analyzer.judging.totals import (
    Growth,
    SeenValues,
    Standing,
    TotalKey,
    ValueRow,
    unjudged_keys,
    unjudged_resources,
)
from analyzer.kernel.database.dialects import dialect_of
from analyzer.kernel.database.row_parameters import (
    Assignments,
    ColumnValues,
    LookUp,
    in_parts,
    is_among,
    rows_given,
    upsert_columns,
)
from analyzer.kernel.tables.schema import TOTAL_MAX, totals
from analyzer.plan.catalog import Catalog
from analyzer.plan.groupings import Grouping
from analyzer.plan.sums import Sum, lock_order
from analyzer.plan.windows import Rolling, Window, window_at

SERIES = [totals.c[name] for name in ("window_s", "key", "resource")]
NO_GROWTH = Growth((), (), (), ())
FOUND = [*SERIES, totals.c.used, totals.c.next, totals.c.plan]


class StoredTotal(NamedTuple):
    """A total that must be judged, with the judgement that is stored in its row."""

    standing: Standing
    next: int
    plan: int


def add_totals(
    db: sa.Connection,
    limits: Limits,
    version: int,
    growth: Mapping[Sum, Growth | SeenValues],
    catalog: Catalog,
    now_s: int,
) -> list[StoredTotal]:
    """Adds to the totals, in the order of `growth`; returns those that must be judged.

    `version` is that of the plan and the directory, see `DirectoryVersion.judged_by`.
    """
    reached: list[StoredTotal] = []
    for sum_, added in growth.items():
        number = catalog.sum_number(sum_)
        grown = _with_values(db, limits, version, sum_, added, catalog, now_s)
        if not grown.keys:
            continue
        windows_s, amounts = grown.windows_s, grown.amounts
        values: dict[str, ColumnValues] = {
            "sum": number,
            "window_s": windows_s[0] if windows_s[0] == windows_s[-1] else windows_s,
            "key": grown.keys,
            "resource": grown.resources if any(grown.resources) else "",
            "used": amounts if max(amounts) <= TOTAL_MAX else [min(amount, TOTAL_MAX) for amount in amounts],
            "next": limits.first_judgements(sum_, grown.keys),
            "plan": version,
        }
        assignments = join_used(sum_.join)
        if isinstance(sum_.window, Rolling):
            values["touched_s"] = now_s
            assignments = _add_used_now
        rows = upsert_columns(db, totals, values, assignments, _due_rows)
        if not dialect_of(db).takes_arrays:
            rows = _due_among(db, number, version, grown)
        reached += [_stored(sum_, row, limits.series_window(sum_, row.key, row.window_s)) for row in rows]
    return sorted(reached, key=lambda stored: _sort_key(stored.standing.total))


def _with_values(
    db: sa.Connection,
    limits: Limits,
    version: int,
    sum_: Sum,
    growth: Growth | SeenValues,
    catalog: Catalog,
    now_s: int,
) -> Growth:
    """Returns the growth of a sum; stores the values by which those of distinct values grow.

    A series' values are added while its total is held: two analyzers that bring the same value count it once.
    """
    if isinstance(growth, Growth):
        return growth
    new = stored_values.unknown(db, catalog.sum_number(sum_), stored_values.recent(sum_, growth.rows, now_s))
    if not new:
        return NO_GROWTH
    series = sorted({(_window_s(sum_, row), row.key, row.resource) for row in new})
    _create(db, limits, version, sum_, series, catalog, now_s)
    keys = (
        TotalKey(sum_, key, resource, window_at(sum_.window, window_s)) for window_s, key, resource in series
    )
    used = {
        (
            stored.standing.total.key,
            stored.standing.total.resource,
            stored.standing.total.window.start_s,
        ): stored.standing.used
        for stored in held(db, keys, catalog)
    }
    added = stored_values.add(db, limits, sum_, catalog.sum_number(sum_), new, used)
    amounts = Counter((_window_s(sum_, row), row.key, row.resource) for row in added)
    grown = sorted(amounts)
    return Growth(
        [window_s for window_s, _, _ in grown],
        [key for _, key, _ in grown],
        [resource for _, _, resource in grown],
        [amounts[position] for position in grown],
    )


def _window_s(sum_: Sum, row: ValueRow) -> int:
    """Returns the start of the window of the total that counts the value."""
    return window_at(sum_.window, row.window_s).start_s


def _create(
    db: sa.Connection,
    limits: Limits,
    version: int,
    sum_: Sum,
    series: Sequence[tuple[int, str, str]],
    catalog: Catalog,
    now_s: int,
) -> None:
    """Creates the totals of these series that do not exist, and blocks flushes of all until commit."""
    keys = [key for _, key, _ in series]
    values: dict[str, ColumnValues] = {
        "sum": catalog.sum_number(sum_),
        "window_s": [window_s for window_s, _, _ in series],
        "key": keys,
        "resource": [resource for _, _, resource in series],
        "used": 0,
        "next": limits.first_judgements(sum_, keys),
        "plan": version,
    }
    if isinstance(sum_.window, Rolling):
        values["touched_s"] = now_s
    upsert_columns(db, totals, values, join_used("sum"))


def set_next(
    db: sa.Connection,
    limits: Limits,
    version: int,
    judged: Sequence[StoredTotal],
    now_s: float,
    catalog: Catalog,
) -> None:
    """Stores the `next` of totals that were judged just now, where it differs from the stored one."""
    changed: dict[Sum, list[tuple[int, str, str, int]]] = {}
    for stored in judged:
        total = stored.standing.total
        next_ = limits.next_judgement(stored.standing, now_s)
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


def held(db: sa.Connection, keys: Iterable[TotalKey], catalog: Catalog) -> list[StoredTotal]:
    """Returns those of the totals at `keys` that exist, and blocks flushes of their series until commit.

    Rows are locked in the order in which flushes lock them.
    """
    of_sum: dict[Sum, dict[tuple[int, str, str], TotalKey]] = {}
    for total in sorted(set(keys), key=_sort_key):
        of_sum.setdefault(total.sum, {})[total.window.start_s, total.key, total.resource] = total
    stored: list[StoredTotal] = []
    for sum_, series in of_sum.items():
        for parameters in in_parts(db.dialect.name, SERIES, list(series)):
            rows = db.execute(_held(db.dialect.name), parameters | {"sum": catalog.sum_number(sum_)})
            stored += [_stored(sum_, row, series[row.window_s, row.key, row.resource].window) for row in rows]
    return stored


def held_of_keys(
    db: sa.Connection,
    limits: Limits,
    sum_: Sum,
    times_s: Sequence[int],
    keys: Collection[str],
    catalog: Catalog,
) -> list[StoredTotal]:
    """Returns the totals of these keys, with any resource, in the windows that hold one of these times."""
    windows = _windows_of_keys(limits, sum_, times_s, keys)
    statement = sa.select(*FOUND).where(_is_of_keys(db, sum_, windows, catalog))
    rows = db.execute(statement.order_by(*SERIES).with_for_update())
    return [
        _stored(sum_, row, window)
        for row in rows
        for window in windows[row.key]
        if window.start_s == row.window_s
    ]


def judge_when_grown(
    db: sa.Connection,
    limits: Limits,
    sum_: Sum,
    times_s: Sequence[int],
    keys: Collection[str],
    catalog: Catalog,
) -> None:
    """Has the totals of these keys judged when they grow next, below their `next` too."""
    windows = _windows_of_keys(limits, sum_, times_s, keys)
    db.execute(sa.update(totals).where(_is_of_keys(db, sum_, windows, catalog)).values(plan=0))


def _windows_of_keys(
    limits: Limits, sum_: Sum, times_s: Sequence[int], keys: Collection[str]
) -> dict[str, set[Window]]:
    return {key: {limits.series_window(sum_, key, at_s) for at_s in times_s} for key in keys}


def _is_of_keys(
    db: sa.Connection, sum_: Sum, windows: Mapping[str, Collection[Window]], catalog: Catalog
) -> sa.ColumnElement[bool]:
    """Returns the condition for totals of these keys in any of these windows."""
    windows_s = sorted({window.start_s for of_key in windows.values() for window in of_key})
    return sa.and_(
        totals.c.sum == catalog.sum_number(sum_),
        totals.c.window_s.in_(windows_s),
        is_among(db.dialect.name, totals.c.key, sorted(windows)),
    )


@lru_cache
def _held(dialect: str) -> sa.Select[Any]:
    statement = sa.select(*FOUND).select_from(_given_totals(dialect))
    return statement.order_by(*SERIES).with_for_update(of=totals)


def _given_totals(dialect: str) -> LookUp:
    series = rows_given(dialect, SERIES)
    is_given = sa.and_(*(column == series.c[column.name] for column in SERIES))
    return LookUp(series, totals, sa.and_(totals.c.sum == sa.bindparam("sum"), is_given))


def used_by(
    db: sa.Connection, number: int, window_s: int, series: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], int]:
    """Returns the totals of these keys and resources in one window; those without a total are left out."""
    columns = [totals.c.key, totals.c.resource]
    pairs = rows_given(db.dialect.name, columns)
    statement = sa.select(*columns, totals.c.used).where(
        totals.c.sum == number,
        totals.c.window_s == window_s,
        sa.tuple_(*columns).in_(sa.select(pairs.c.key, pairs.c.resource)),
    )
    used: dict[tuple[str, str], int] = {}
    for parameters in in_parts(db.dialect.name, columns, series):
        used |= {(row.key, row.resource): row.used for row in db.execute(statement, parameters)}
    return used


def _stored(sum_: Sum, row: sa.Row[Any], window: Window) -> StoredTotal:
    total = TotalKey(sum_, row.key, row.resource, window)
    return StoredTotal(Standing(total, row.used), row.next, row.plan)


def _sort_key(total: TotalKey) -> tuple[Any, ...]:
    return (*lock_order(total.sum), total.window.start_s, total.key, total.resource)


@cache
def join_used(join: str) -> Assignments:
    """Returns the assignment of an upsert that joins new amounts into totals, by the meter's join.

    The same function each time: statements are kept by it.
    """

    def assign(dialect: str, table: sa.Table, new: Any) -> dict[str, Any]:
        return {"used": SQL_JOINS[join].upsert(dialect, table.c.used, new.used)}

    return assign


def _add_used_now(_dialect: str, table: sa.Table, new: Any) -> dict[str, Any]:
    return {"used": plus(table.c.used, new.used), "touched_s": new.touched_s}


def add_difference(_dialect: str, table: sa.Table, new: Any) -> dict[str, Any]:
    """Returns the assignments that add a signed difference to a total, and have it judged when it grows."""
    less = sa.case((table.c.used + new.used < 0, 0), else_=table.c.used + new.used)
    used = sa.case((new.used < 0, less), else_=plus(table.c.used, new.used))
    return {"used": used, "next": new.next, "plan": new.plan}


def _replace_next(_dialect: str, _table: sa.Table, new: Any) -> dict[str, Any]:
    return {"next": new.next, "plan": new.plan}


def _due_rows(written: Any) -> sa.Select[Any]:
    """Returns the rows that must be judged: to return also the others would double the time."""
    columns = (written.c[column.name] for column in FOUND)
    judged_by_another = written.c.plan != sa.bindparam("given_plan", type_=sa.BigInteger)
    return sa.select(*columns).where(sa.or_(written.c.used >= written.c.next, judged_by_another))


def _due_among(db: sa.Connection, number: int, version: int, grown: Growth) -> list[sa.Row[Any]]:
    """SQLite cannot filter what an INSERT returns: there the rows are read again.

    Usually all are of one window and resource; then only the keys are given, in a third of the time.
    """
    judged_by = {"sum": number, "version": version}
    windows = {*zip(grown.windows_s, grown.resources, strict=True)}
    if len(windows) == 1:
        [(window_s, resource)] = windows
        parameters = {"keys": list(grown.keys), "window_s": window_s, "resource": resource}
        return list(db.execute(_due_of_keys(), parameters | judged_by))
    series = list(zip(grown.windows_s, grown.keys, grown.resources, strict=True))
    rows: list[sa.Row[Any]] = []
    for parameters in in_parts(db.dialect.name, SERIES, series):
        rows += db.execute(_due_of_series(db.dialect.name), parameters | judged_by)
    return rows


@lru_cache
def _due_of_series(dialect: str) -> sa.Executable:
    return _due_totals().select_from(_given_totals(dialect))


@lru_cache
def _due_of_keys() -> sa.Executable:
    keys = sa.func.json_each(sa.bindparam("keys", type_=sa.JSON)).table_valued("value")
    return _due_totals().where(
        totals.c.window_s == sa.bindparam("window_s"),
        totals.c.resource == sa.bindparam("resource"),
        totals.c.key.in_(sa.select(keys.c.value)),
    )


def _due_totals() -> sa.Select[Any]:
    return sa.select(*FOUND).where(
        totals.c.sum == sa.bindparam("sum"),
        sa.or_(totals.c.used >= totals.c.next, totals.c.plan != sa.bindparam("version")),
    )


def judged_series(
    grouping: Grouping, key: sa.ColumnElement[str], resource: sa.ColumnElement[str]
) -> list[sa.ColumnElement[bool]]:
    """Returns the conditions for series that policies judge, as `is_judged` has them."""
    unjudged = (key, unjudged_keys(grouping)), (resource, unjudged_resources(grouping))
    return [column.not_in(names) for column, names in unjudged if names]
