"""Rows of distinct values in SQL: a value of a series counts in a window if its row is new.

Of each series and window, or slot of a rolling window, no more rows are kept than the largest limit that
looks at them and one: more would change no judgement. A transaction that adds rows of a series holds its
total.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from analyzer.judging.caller_limits import Limits
from analyzer.judging.rolling import DistinctSlot
from analyzer.judging.totals import ValueRow
from analyzer.kernel.database.dialects import DIALECTS
from analyzer.kernel.database.row_parameters import LookUp, in_parts, insert_given, rows_given
from analyzer.kernel.tables.schema import distinct_values
from analyzer.plan.sums import Sum
from analyzer.plan.windows import Rolling

AHEAD_S = 900  # slots that begin later than this from now are left out: no clock is that far ahead
COLUMNS = ("key", "resource", "window_s", "value")
WINDOW = COLUMNS[:3]
SERIES = COLUMNS[:2]

SeriesInWindow = tuple[str, str, int]


def recent(sum_: Sum, rows: Sequence[ValueRow], now_s: int) -> Sequence[ValueRow]:
    """Returns the rows that a window may need which ends now or later; all rows of calendar windows."""
    if not isinstance(sum_.window, Rolling):
        return rows
    oldest_s = now_s - sum_.window.period_s - sum_.window.slot_s
    return [row for row in rows if oldest_s < row.window_s < now_s + AHEAD_S]


def unknown(db: sa.Connection, number: int, rows: Sequence[ValueRow]) -> list[ValueRow]:
    """Returns the rows of the sum with this number that are not stored, in their order."""
    stored: set[tuple[Any, ...]] = set()
    columns = [distinct_values.c[name] for name in COLUMNS]
    for parameters in in_parts(db.dialect.name, columns, rows):
        stored.update(map(tuple, db.execute(_known(db.dialect.name), parameters | {"number": number})))
    return [row for row in rows if row not in stored]


@lru_cache
def _known(dialect: str) -> sa.Select[Any]:
    return _given_of_sum(dialect, COLUMNS, COLUMNS)


def _given_of_sum(dialect: str, names: Sequence[str], selected: Sequence[str]) -> sa.Select[Any]:
    """Returns a query of the rows of a sum whose columns `names` are given."""
    table = distinct_values
    rows = rows_given(dialect, [table.c[name] for name in names])
    of_sum = table.c.sum == sa.bindparam("number")
    by_name: dict[str, sa.ColumnElement[Any]] = {}
    if DIALECTS[dialect].has_statistics:
        # An expression, so that rows are found by their series: PostgreSQL would take the index of windows,
        # and read all values of a window for each given row.
        by_name = {"window_s": table.c.window_s + sa.literal_column("0", sa.BigInteger)}
    is_given = sa.and_(*(by_name.get(name, table.c[name]) == rows.c[name] for name in names))
    return sa.select(*(table.c[name] for name in selected)).select_from(
        LookUp(rows, table, sa.and_(of_sum, is_given))
    )


def add(
    db: sa.Connection,
    limits: Limits,
    sum_: Sum,
    number: int,
    rows: Sequence[ValueRow],
    used: Mapping[SeriesInWindow, int],
) -> list[ValueRow]:
    """Adds rows of series whose totals are held; returns those that were new, at most as many as are kept.

    `used` has the totals of calendar windows; of rolling ones the rows of each slot are counted.
    """
    new = unknown(db, number, rows)  # again: another analyzer may have added some before the totals were held
    stored = _numbers(db, number, new) if isinstance(sum_.window, Rolling) else used
    counted = Counter(stored)
    kept = []
    for row in new:
        series = row.key, row.resource, row.window_s
        if counted[series] <= limits.largest_threshold(sum_, row.key):
            counted[series] += 1
            kept.append(row)
    columns = [distinct_values.c[name] for name in COLUMNS]
    for parameters in in_parts(db.dialect.name, columns, kept):
        db.execute(_insert(db.dialect.name), parameters | {"given_sum": number})
    return kept


@lru_cache
def _insert(dialect: str) -> Any:
    return insert_given(dialect, distinct_values, ("sum", *COLUMNS), ("sum",)).on_conflict_do_nothing()


def _numbers(db: sa.Connection, number: int, rows: Sequence[ValueRow]) -> dict[SeriesInWindow, int]:
    """Returns how many rows are stored for the series and windows of `rows`."""
    windows = sorted({(row.key, row.resource, row.window_s) for row in rows})
    columns = [distinct_values.c[name] for name in WINDOW]
    numbers: dict[SeriesInWindow, int] = {}
    for parameters in in_parts(db.dialect.name, columns, windows):
        for *window, stored in db.execute(_number(db.dialect.name), parameters | {"number": number}):
            numbers[window[0], window[1], window[2]] = stored
    return numbers


@lru_cache
def _number(dialect: str) -> sa.Select[Any]:
    of_windows = _given_of_sum(dialect, WINDOW, WINDOW)
    return of_windows.add_columns(sa.func.count()).group_by(*(distinct_values.c[name] for name in WINDOW))


def distinct_slots(
    db: sa.Connection, number: int, rolling: Rolling, series: Sequence[tuple[str, str]], now_s: int
) -> dict[tuple[str, str], list[DistinctSlot]]:
    """Returns the slots of these series that a window needs which ends now or later."""
    bounds = {
        "number": number,
        "from_s": now_s - rolling.period_s - rolling.slot_s,
        "until_s": now_s + AHEAD_S,
    }
    by_series: dict[tuple[str, str], dict[int, set[int]]] = {}
    columns = [distinct_values.c[name] for name in SERIES]
    for parameters in in_parts(db.dialect.name, columns, sorted({*series})):
        for key, resource, slot_s, value in db.execute(_of_series(db.dialect.name), bounds | parameters):
            by_series.setdefault((key, resource), {}).setdefault(slot_s, set()).add(value)
    return {
        pair: [DistinctSlot(slot_s, frozenset(slots[slot_s])) for slot_s in sorted(slots)]
        for pair, slots in by_series.items()
    }


@lru_cache
def _of_series(dialect: str) -> sa.Select[Any]:
    window_s = distinct_values.c.window_s
    return _given_of_sum(dialect, SERIES, COLUMNS).where(
        window_s > sa.bindparam("from_s", type_=sa.BigInteger),
        window_s < sa.bindparam("until_s", type_=sa.BigInteger),
    )


def oldest_s(db: sa.Connection, number: int) -> int | None:
    """Returns the start of the oldest window with values of the sum with this number."""
    window_s = distinct_values.c.window_s
    of_sum = sa.select(window_s).where(distinct_values.c.sum == number)
    oldest: int | None = db.execute(of_sum.order_by(window_s).limit(1)).scalar()
    return oldest
