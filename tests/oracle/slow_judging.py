"""Judgement done slowly: all counts are added up again for each flush."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from analyzer.core.judging.plan import Plan
from analyzer.core.judging.windows import Window, window_at
from analyzer.core.model import CountRow


class Flush(NamedTuple):
    """Rows that one analyzer stored at one moment of the database's clock."""

    now_s: int
    rows: Sequence[CountRow]


class Crossing(NamedTuple):
    """A limit that was reached: number of the flush, policy, series, end of the lock, and the total."""

    flush: int
    policy: str
    key: str
    resource: str
    until: datetime
    used: int


def crossings(plan: Plan, flushes: Sequence[Flush]) -> list[Crossing]:
    """Returns each (policy, series, window) that reached its limit, at most once.

    `flush` is the first one that adds to the series during the window while the limit is reached.
    """
    found: dict[tuple[str, str, str, Window], Crossing] = {}
    for number, flush in enumerate(flushes):
        for policy in plan.policies:
            window = window_at(policy.window, flush.now_s)
            for key, resource in sorted({(row.key, row.resource) for row in flush.rows if row.value}):
                touched, used = (
                    sum(
                        row.value
                        for row in rows
                        if (row.grouping, row.meter) == (policy.per, policy.meter)
                        and (row.key, row.resource) == (key, resource)
                        and window.start_s <= row.bucket_s < window.until_s
                    )
                    for rows in (
                        flush.rows,
                        [row for earlier in flushes[: number + 1] for row in earlier.rows],
                    )
                )
                until = datetime.fromtimestamp(window.until_s, UTC)
                if touched and used >= policy.limit:
                    at = (policy.name, key, resource, window)
                    found.setdefault(at, Crossing(number, policy.name, key, resource, until, used))
    return sorted(found.values())
