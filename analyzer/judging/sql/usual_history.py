"""Policies by the usual load that set no locks yet, because the counts do not go back far enough."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.judging.kinds import policy_kind
from analyzer.judging.sql import plans
from analyzer.judging.sql.usual_levels import WEEK_S, WEEKS_MIN
from analyzer.kernel.database.clock import clock_ms, instant
from analyzer.kernel.database.engine import reading
from analyzer.kernel.tables.schema import buckets
from analyzer.plan import catalog
from analyzer.plan.meters import MINUTE_S, QUARTER_S
from analyzer.plan.windows import HOUR_S
from gatekeeper.feed.feed_json import time_text


class UnreadyPolicy(NamedTuple):
    """A policy by the usual load, and from when on it may have enough weeks; None: nothing is counted."""

    policy: str
    ready_at: datetime | None

    @property
    def sentence(self) -> str:
        """The sentence of `gatelock doctor`.

        >>> UnreadyPolicy("unusual", None).sentence
        'unusual locks nothing yet: it needs two weeks of counts at an hour of the week, and has none'
        """
        has = "has none" if self.ready_at is None else f"will have them from {time_text(self.ready_at)} on"
        needed = "two weeks of counts at an hour of the week"
        return f"{self.policy} locks nothing yet: it needs {needed}, and {has}"


def policies_without_history(engine: sa.Engine) -> Iterator[UnreadyPolicy]:
    """Yields the policies in force that compare with a usual load which no series can have yet.

    A series has one from its second week of counts at an hour on, so later than this at the earliest. Raises
    StoreAway, SchemaBehind.
    """
    with reading(engine) as db:
        if not plans.exists(db):
            return
        plan, numbers, now_ms = plans.active(db)[1], catalog.load(db), clock_ms(db)
        for policy in plan.policies:
            kind = policy_kind(policy)
            if not kind.needs(policy).usual:
                continue
            sum_ = kind.judged_sum(policy)
            first_s = _first_s(db, numbers, sum_.grouping, sum_.meter)
            ready_s = None if first_s is None else first_s // HOUR_S * HOUR_S + WEEKS_MIN * WEEK_S
            if ready_s is None or ready_s * 1000 > now_ms:
                yield UnreadyPolicy(policy.name, None if ready_s is None else instant(ready_s * 1000))


def _first_s(db: sa.Connection, numbers: catalog.Catalog, grouping: str, meter: str) -> int | None:
    """Returns the beginning of the oldest bucket that a usual load is read from; None without any."""
    if grouping not in numbers.groupings or meter not in numbers.meters:
        return None
    starts_s = []
    for width_s in (MINUTE_S, QUARTER_S):
        of_width = sa.select(buckets.c.bucket_s).where(
            buckets.c.grouping == numbers.groupings[grouping],
            buckets.c.page == numbers.meters[meter].page,
            buckets.c.width_s == width_s,
        )
        starts_s.append(db.execute(of_width.order_by(buckets.c.bucket_s).limit(1)).scalar())
    return min((first_s for first_s in starts_s if first_s is not None), default=None)
