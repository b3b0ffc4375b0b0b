"""Counts of a month of a million callers, with locks and their history, written by the database.

Minutes as flushes leave them: 463 callers in each, a few of them with most of the requests. Each day some
callers send as much as the largest, for an hour.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.database.migrate import upgrade
from analyzer.kernel.tables.schema import buckets
from analyzer.plan.meters import DAY_S, MINUTE_S, QUARTER_S
from analyzer.plan.plan import make_plan
from analyzer.plan.policies import Quota
from analyzer.plan.windows import Calendar

CALLERS, HOUR_S = 1_000_000, 3_600
LOCKS, HISTORY = 5_000, 60_000
PLAN = make_plan(
    [], [], [Quota("daily", 100_000, Calendar("day")), Quota("monthly", 10**7, Calendar("month"))]
)
MINUTES = """
insert into buckets ("grouping", page, width_s, bucket_s, value_0, denied_0, "key", resource)
select distinct on (at_s, caller) 1, 0, 60, at_s,
  (1 + 4000 / (20 + caller)) * (1 + (random() * 9)::bigint), case when caller % 50 = 0 then 3 end,
  'api_key:acct-' || lpad(caller::text, 7, '0'), ''
from (
  select at_s, (:callers * random() ^ 4)::bigint as caller
  from generate_series(:from_s, :until_s - 60, 60) as minutes(at_s), generate_series(1, :rows)
  union all
  select at_s, 500000 + at_s / 86400 * 20 + n
  from generate_series(:from_s, :until_s - 60, 60) as minutes(at_s), generate_series(0, 19) as n
  where at_s / 3600 % 24 = n
) drawn
order by at_s, caller
"""
BURSTS = """
update buckets set value_0 = 3000
where "grouping" = 1 and page = 0 and width_s = 60 and bucket_s >= :from_s and bucket_s < :until_s
  and "key" = 'api_key:acct-' || lpad((500000 + bucket_s / 86400 * 20 + bucket_s / 3600 % 24)::text, 7, '0')
"""
CHANGES = """
insert into changed_quarters (quarter_s, cluster, topic_id, "partition", changes)
select quarter_s, 'cluster', 'topic', 0, 900 from generate_series(:from_s, :until_s - 1, 900) as of(quarter_s)
on conflict (quarter_s, cluster, topic_id, "partition") do update set changes = changed_quarters.changes + 1
"""
IN_FORCE = """
insert into locks (scope, "key", resource, policy, kind, action, status, reason, detail, began_ms, until_ms,
  on_stale, slow_limit, slow_ms)
select 'caller', 'api_key:acct-' || lpad((n * 7)::text, 7, '0'), '', 'daily', 'quota', 'deny', 429,
  'quota', '100,000 requests per day, 100,214 counted', :now_ms - n * 60000,
  :now_ms + 86400000 + n * 1000, '', 0, 0
from generate_series(1::bigint, :locks) as numbers(n)
"""
ENDED = """
insert into lock_history (scope, "key", until_ms, began_ms, resource, policy, ended_ms, cause, action,
  detail, plan, used_began, used_ended)
select 'caller', 'api_key:acct-' || lpad((n % 20000)::text, 7, '0'), :now_ms - n * 40000,
  :now_ms - n * 40000 - 3600000, '', 'daily', :now_ms - n * 40000, 'lapsed', 'deny',
  '100,000 requests per day, 100,214 counted', 1, 100000, 100214
from generate_series(1::bigint, :history) as numbers(n)
"""


class MillionCallers(NamedTuple):
    """The days that are written, and the rows of each minute: 20,000,000 by default."""

    days: int = 30
    in_minute: int = 463


def stored_million(url: str, size: MillionCallers) -> sa.Engine:
    """Returns the engine of a database that has them up to now; writes what is missing."""
    upgrade(url)
    engine = open_engine(url, statement_ms=0)
    SqlStore(engine, "bench").activate(PLAN)
    now_s = int(time.time())
    with engine.connect() as db:
        newest = db.execute(sa.select(sa.func.max(buckets.c.bucket_s))).scalar()
    from_s = now_s // HOUR_S * HOUR_S - size.days * DAY_S if newest is None else int(newest) + MINUTE_S
    until_s = now_s // MINUTE_S * MINUTE_S + MINUTE_S
    for at_s in range(from_s, until_s, HOUR_S):
        span = {"from_s": at_s, "until_s": min(at_s + HOUR_S, until_s)}
        with engine.begin() as db:
            db.exec_driver_sql("set local synchronous_commit = off")
            db.execute(sa.text(MINUTES), span | {"callers": CALLERS - 1, "rows": size.in_minute})
            db.execute(sa.text(BURSTS), span)
    with engine.begin() as db:
        changed = {"from_s": from_s // QUARTER_S * QUARTER_S, "until_s": until_s}
        db.execute(sa.text(CHANGES), changed)
        if newest is None:
            given = {"now_ms": now_s * 1000, "locks": LOCKS, "history": HISTORY}
            db.execute(sa.text(IN_FORCE), given)
            db.execute(sa.text(ENDED), given)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        db.exec_driver_sql("vacuum analyze")
    return engine
