"""The rows of usage with the most of a meter: of hours and days from rankings, of minutes from buckets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.counting.ranked_buckets import TOP, RankedMeter, TrafficAmount
from analyzer.counting.rankings import HOUR_S, SpanQuery, StoredRankings, StretchKey, covered
from analyzer.counting.usage import WORK_MB, UsageQuery, UsageRow, usage_rows_of
from analyzer.kernel.database.engine import slow_reading, sort_in_memory, without_scans
from analyzer.plan import catalog
from analyzer.plan.meters import DAY_S, REQUESTS, bucket_start_s

READ_AT_ONCE = 100  # rankings


class LargestRows(NamedTuple):
    """Rows, the largest first.

    Attributes:
        rows: The rows; each amount is exact.
        is_exact: Whether no other row has more than the last of them.
        unlisted_at_most: The most that another row has.
    """

    rows: Sequence[UsageRow]
    is_exact: bool = True
    unlisted_at_most: int = 0


def largest_rows(engine: sa.Engine, query: UsageQuery) -> LargestRows:
    """Returns the `top` rows of a query, as `usage_rows` does. Raises StoreAway, NotRankedYet."""
    with slow_reading(engine) as db:
        numbers = catalog.load(db)
        meter = numbers.meters.get(query.meter or REQUESTS.name)
        if query.grouping not in numbers.groupings or meter is None:
            return LargestRows([])
        stored = StoredRankings(db, RankedMeter(numbers.groupings[query.grouping], meter))
        span = _ranked_span(query, stored)
        if span is None:
            rows = list(usage_rows_of(db, query))
            return LargestRows(rows, True, rows[-1].size("size") if rows and len(rows) == query.top else 0)
        without_scans(db)
        sort_in_memory(db, WORK_MB)
        return _ranked_rows(query, span, stored)


def _ranked_span(query: UsageQuery, stored: StoredRankings) -> SpanQuery | None:
    """Returns the span of a query whose rows rankings have: those of its width, and no wider ones."""
    from_s, until_s, top = query.from_s, query.until_s, query.top
    if query.key is not None or from_s is None or until_s is None or top is None or top > TOP:
        return None
    has_width = query.width_s == DAY_S or (
        query.width_s == HOUR_S and stored.has_steps(StretchKey(HOUR_S, from_s))
    )
    return SpanQuery(from_s, until_s, query.width_s, top) if has_width else None


def _ranked_rows(query: UsageQuery, span: SpanQuery, stored: StoredRankings) -> LargestRows:
    rows: list[UsageRow] = []
    meter, unlisted = query.meter or REQUESTS.name, 0
    for begin_s, ranked, bound in _ranked_buckets(span, stored):
        rows += [
            UsageRow(*name, meter, begin_s, span.step_s, amount.value, amount.denied)
            for name, amount in ranked
        ]
        rows.sort(key=lambda row: row.place("size"))
        unlisted = max([unlisted, bound, *(row.size("size") for row in rows[span.top : span.top + 1])])
        del rows[span.top :]
    is_full = len(rows) == span.top
    return LargestRows(rows, not unlisted or (is_full and rows[-1].size("size") >= unlisted), unlisted)


def _ranked_buckets(
    span: SpanQuery, stored: StoredRankings
) -> Iterator[tuple[int, Sequence[tuple[tuple[str, str], TrafficAmount]], int]]:
    """Yields the begin of each bucket with its largest series, and the most that another one has.

    Raises NotRankedYet.
    """
    from_s, until_s, width_s, top, *_ = span
    valid = stored.valid(from_s, until_s)
    covered(span._replace(step_s=until_s - from_s), valid, stored.times)
    begins = [key.begin_s for key in valid if key.width_s == width_s and key.begin_s + width_s <= until_s]
    for first in range(0, len(begins), READ_AT_ONCE):
        keys = [StretchKey(width_s, begin_s) for begin_s in begins[first : first + READ_AT_ONCE]]
        for key, ranking in stored.read({key: valid[key].changes for key in keys}).items():
            series = [(name, series.amount) for name, series in ranking.series.items()][: top + 1]
            bound = max([ranking.at_most, *(amount.whole for _, amount in series[top:])])
            yield key.begin_s, series[:top], bound
    ranked = set(begins)
    for begin_s in range(bucket_start_s(from_s, width_s), until_s, width_s):
        if begin_s not in ranked and stored.times.number(begin_s, begin_s + width_s):
            part = max(begin_s, from_s), min(begin_s + width_s, until_s)
            rest = stored.span(SpanQuery(*part, width_s, top))
            yield begin_s, [(row.name, row.amount) for row in rest.rows], rest.unlisted_at_most
