"""Stored counts of a month, written by the database: a hundred thousand callers, some ten million rows."""

from __future__ import annotations

import time

import sqlalchemy as sa

from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.database.migrate import upgrade
from analyzer.plan.meters import DAY_S, QUARTER_S
from analyzer.plan.plan import Plan

CALLERS, DAYS, HOUR_S = 100_000, 30, 3_600
# A caller in a hundred is active in each hour, the others in an hour of eight. Few have most: by Zipf's law.
ROWS = """
insert into buckets ("grouping", page, width_s, bucket_s, value_0, "key", resource)
select 1, 0, :width_s, :at_s,
  1 + (200000 / (50 + n)) * (50 + (n * 31 + :hour * 17) % 100) / 100, name, ''
from month_callers
where n % 100 = 0 or (n * 7919 + :hour * 104729) % 1000 < 125
order by name
"""


def stored_month(url: str, plan: Plan, width_s: int = QUARTER_S, callers: int = CALLERS) -> sa.Engine:
    """Returns the engine of a database that has them, up to the present, in buckets of `width_s`."""
    upgrade(url)
    engine = open_engine(url, statement_ms=0)
    SqlStore(engine, "bench").activate(plan)
    until_s = int(time.time()) // HOUR_S * HOUR_S
    begin_s = until_s - DAYS * DAY_S
    hours = [
        {"hour": n, "at_s": begin_s + n * HOUR_S, "width_s": width_s} for n in range(DAYS * DAY_S // HOUR_S)
    ]
    names = [{"n": n, "name": f"api_key:acct-{n * 7919 % CALLERS:06}"} for n in range(callers)]
    with engine.begin() as db:
        db.exec_driver_sql("create temporary table month_callers (n bigint, name text)")
        db.execute(sa.text("insert into month_callers values (:n, :name)"), names)
        for hour in hours:  # in the order of the key
            db.execute(sa.text(ROWS), hour)
        db.exec_driver_sql("drop table month_callers")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        db.exec_driver_sql("vacuum analyze buckets" if db.dialect.name == "postgresql" else "analyze")
    return engine
