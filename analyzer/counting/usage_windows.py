"""Counts by calendar windows of a time zone, and what to say about a report without rows.

Buckets are minutes, quarters of an hour and days in UTC; a window of a zone is read by one query of the
buckets that begin in it. A day in UTC that lies in two windows is shown as a row of its stretch of time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.counting.usage import UsageQuery, UsageRow, usage_rows
from analyzer.kernel.database.engine import NowMs, reading, without_scans
from analyzer.kernel.tables.schema import buckets, offsets
from analyzer.plan import catalog
from analyzer.plan.mapping import SourceMapping
from analyzer.plan.meters import MINUTE_S, WIDTHS_S
from analyzer.plan.windows import Calendar, Window, window_at

WINDOWS_MAX = 10_000  # in one report; each is a query
KEYS_LOOKED_AT = 5_000  # of the newest rows, for a caller whose name is similar


class TooManyWindows(ValueError):
    """The interval has more windows than a report may have."""


class CountedRange(NamedTuple):
    """[start, until): the time in which a grouping has buckets; `until` is the end of the last one."""

    start_s: int
    until_s: int


def calendar_rows(engine: sa.Engine, query: UsageQuery, calendar: Calendar) -> Iterator[UsageRow]:
    """Yields the rows of each window, like `usage_rows`; `width_s` of the query does not matter.

    The order is that of `usage_rows`: by time, or by the query's order or `top` over all windows.
    Raises StoreAway, TooManyWindows.
    """
    windows = _windows(engine, query, calendar)
    rows = chain.from_iterable(
        usage_rows(engine, query._replace(from_s=from_s, until_s=until_s, window=window))
        for window, from_s, until_s in windows
    )
    if query.top is not None:
        return iter(heapq.nlargest(query.top, rows, key=lambda row: row.size(query.order)))
    if query.order != "time":
        return iter(sorted(rows, key=lambda row: row.place(query.order)))
    return rows


def _windows(engine: sa.Engine, query: UsageQuery, calendar: Calendar) -> Iterator[tuple[Window, int, int]]:
    """Returns the windows with counts, each with the part of it that was asked for."""
    counted = counted_range(engine, query.grouping)
    if counted is None:
        return iter(())
    at_s = counted.start_s if query.from_s is None else max(counted.start_s, query.from_s)
    end_s = counted.until_s if query.until_s is None else min(counted.until_s, query.until_s)
    windows = []
    while at_s < end_s:
        window = window_at(calendar, at_s)
        windows.append((window, at_s, min(window.until_s, end_s)))
        at_s = window.until_s
        if len(windows) > WINDOWS_MAX:
            raise TooManyWindows(f"a report has at most {WINDOWS_MAX:,} windows")
    return iter(windows)


def counted_range(engine: sa.Engine, grouping: str) -> CountedRange | None:
    """Returns the time from which on, and up to which, something was counted by `grouping`.

    None if nothing was. Raises StoreAway.
    """
    with reading(engine) as db:
        numbers = catalog.load(db)
        if grouping not in numbers.groupings:
            return None
        without_scans(db)
        ends: list[tuple[int, int]] = []
        pages = {meter.page for meter in numbers.meters.values()}
        for page in pages:
            for width_s in WIDTHS_S:
                bucket_s, columns = buckets.c.bucket_s, buckets.c
                condition = sa.and_(
                    columns.grouping == numbers.groupings[grouping],
                    columns.page == page,
                    columns.width_s == width_s,
                )
                for order in (bucket_s.asc(), bucket_s.desc()):
                    start_s = db.execute(
                        sa.select(bucket_s).where(condition).order_by(order).limit(1)
                    ).scalar()
                    ends += [] if start_s is None else [(start_s, start_s + width_s)]
    return CountedRange(min(ends)[0], max(end for _, end in ends)) if ends else None


def counted_meters(engine: sa.Engine) -> list[str]:
    """Returns the names of all meters that were ever counted. Raises StoreAway."""
    with reading(engine) as db:
        return sorted(catalog.load(db).meters)


def final_until_s(engine: sa.Engine) -> float:
    """Returns the time, in seconds since 1970, before which no record of a topic is accepted any more.

    A record may be as late as the mappings allow, and may wait in a partition that is read late. Imports,
    followed files and retries of rejected records accept any time. Raises StoreAway.
    """
    columns = offsets.c
    # A partition that no analyzer has read since is further behind than it was.
    behind_ms = sa.func.max(columns.behind_ms + NowMs() - columns.beat_ms)
    with reading(engine) as db:
        now_ms, behind = db.execute(
            sa.select(NowMs(), sa.select(behind_ms).where(columns.beat_ms.is_not(None)).scalar_subquery())
        ).one()
    final_ms: int = now_ms - max(behind or 0, 0) - SourceMapping().past_ms_max
    return final_ms / 1000


def was_counted(engine: sa.Engine, grouping: str, key: str) -> bool:
    """Whether anything was ever counted under this key. Raises StoreAway."""
    return next(usage_rows(engine, UsageQuery(grouping, MINUTE_S, key=key)), None) is not None


def recent_keys(engine: sa.Engine, grouping: str) -> set[str]:
    """Returns keys of the newest minutes, of at most `KEYS_LOOKED_AT` rows. Raises StoreAway."""
    with reading(engine) as db:
        number = catalog.load(db).groupings.get(grouping)
        without_scans(db)
        columns = buckets.c
        statement = (
            sa.select(columns.key)
            .where(columns.grouping == number, columns.page == 0, columns.width_s == MINUTE_S)
            .order_by(columns.bucket_s.desc())
            .limit(KEYS_LOOKED_AT)
        )
        return set(db.execute(statement).scalars())
