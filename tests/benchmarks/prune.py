"""`make bench-prune`: how long flushes take while old buckets are joined and deleted.

Writes a given number of buckets (50,000,000 by default), half of them minutes that are due to be joined,
half of them days that are due to be deleted. Then an analyzer flushes ten times a second, first alone, then
beside each job. `ARGS='10000000 sqlite'` measures fewer rows on one of the two databases,
`--seconds 1` each for a shorter time.
"""

from __future__ import annotations

import argparse
import threading
import time
from random import Random
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.database.migrate import upgrade
from analyzer.kernel.jobs.job_runs import SqlJobRuns
from analyzer.kernel.kept_ages import Retention
from analyzer.kernel.model import CountRow, DrainedCounts, Partition, PartitionProgress
from analyzer.maintenance.failing_jobs import FailingJobs
from analyzer.maintenance.job_runner import JobRunner
from analyzer.maintenance.job_table import JobContext
from analyzer.plan.meters import DAY_S, MINUTE_S
from analyzer.plan.plan import make_plan
from tests.benchmarks.judge import Machine, started_machines
from tests.support.job_runners import SeenJobs
from tests.support.stored_counts import tables_of
from tests.support.upkeep import upkeep_jobs

ROWS = 50_000_000
CALLERS = 5_000  # in a bucket of time
FLUSHED = 200  # callers of a flush
FLUSH_EVERY_S = 0.1
MEASURED_S = 30.0
PLAN = make_plan([], [], [])
PART = Partition("cluster", "topic", 0, "access-log", "access-log")
JOBS = ("prune-buckets", "roll-up")
BOUND_MS = 100.0
FILL = """
with recursive callers(n) as (select 1 union all select n + 1 from callers where n < :callers),
  times(n) as (select 0 union all select n + 1 from times where n < :times - 1)
insert into buckets ("grouping", page, width_s, bucket_s, value_0, "key", resource)
select 1, 0, :width_s, :begin_s + times.n * :width_s, 1 + callers.n % 7,
  'api_key:acct-' || (1000000 + callers.n), ''
from times cross join callers order by times.n, callers.n
"""


class Delays(NamedTuple):
    """Times of flushes in milliseconds."""

    flushes: int
    median: float
    p99: float
    worst: float
    rows: int = 0  # that the job dealt with meanwhile
    seconds: float = 0.0


def filled(url: str, rows: int) -> sa.Engine:
    """Returns the engine of a database with `rows` buckets beyond their retention."""
    upgrade(url)
    engine = open_engine(url, statement_ms=0)
    SqlStore(engine, "bench").activate(PLAN)
    now_s, times = int(time.time()) // DAY_S * DAY_S, max(1, rows // 2 // CALLERS)
    kept = Retention()
    for width_s, kept_s in ((MINUTE_S, kept.minutes_s), (DAY_S, kept.days_s)):
        begin_s = now_s - kept_s - DAY_S - times * width_s
        for first in range(0, times, 100):
            given = {
                "callers": min(CALLERS, rows // 2),
                "times": min(100, times - first),
                "width_s": width_s,
                "begin_s": begin_s + first * width_s,
            }
            with engine.begin() as db:
                db.execute(sa.text(FILL), given)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        db.exec_driver_sql("vacuum analyze buckets" if db.dialect.name == "postgresql" else "analyze")
    return engine


class Flushing:
    """Flushes of one analyzer, ten a second, in a thread."""

    def __init__(self, url: str) -> None:
        self.engine = open_engine(url)
        self._store = SqlStore(self.engine, "flushing")
        self._next = self._store.begin(PART, 0).next

    def flush(self) -> float:
        """Stores the counts of some callers; returns how long that took in seconds."""
        minute_s = int(time.time()) // MINUTE_S * MINUTE_S
        rows = [
            CountRow("caller", f"api_key:acct-{1_000_000 + n}", "", "requests", MINUTE_S, minute_s, 1, 0)
            for n in range(FLUSHED)
        ]
        version, plan = self._store.active_plan()
        began_s = time.perf_counter()
        with self._store.transaction() as flush:
            progress = PartitionProgress(PART, self._next, self._next + FLUSHED, FLUSHED, FLUSHED)
            flush.move_offsets([progress], {})
            now = flush.check_plan(plan, version)
            flush.apply(plan, version, DrainedCounts([progress], tables_of(rows), ()), now)
        self._next += FLUSHED
        return time.perf_counter() - began_s

    def flush_until(self, ended: threading.Event) -> list[float]:
        took = [self.flush()]
        while not ended.wait(FLUSH_EVERY_S):
            took.append(self.flush())
        return took


def delays_beside(url: str, job: str, seconds: float) -> Delays:
    """Returns the times of flushes while a job runs for `seconds`, or until it is done; "": no job."""
    flushing, ended, took = Flushing(url), threading.Event(), []
    flushing.flush()
    thread = threading.Thread(target=lambda: took.extend(flushing.flush_until(ended)))
    thread.start()
    began_s, rows = time.monotonic(), 0
    if job:
        engine = open_engine(url, statement_ms=60_000)
        jobs = upkeep_jobs(JobContext(engine, str))
        runner = JobRunner(
            jobs, SqlJobRuns(engine, "bench"), FailingJobs(SeenJobs(), Random(1)), time.monotonic
        )
        [work] = [one for one in jobs if one.name == job]

        def has_to_stop(rest_s: float) -> bool:
            time.sleep(rest_s)
            return time.monotonic() - began_s > seconds

        end = runner.run(work, has_to_stop, is_asked=True)
        assert not end.error, end.error
        rows = end.rows
        engine.dispose()
    else:
        time.sleep(seconds)
    lasted_s = time.monotonic() - began_s
    ended.set()
    thread.join()
    flushing.engine.dispose()
    ordered = sorted(took)
    ms = [1000 * ordered[min(len(ordered) - 1, int(len(ordered) * at))] for at in (0.5, 0.99, 1.0)]
    return Delays(len(ordered), *ms, rows, lasted_s)


def measure(machine: Machine, rows: int, seconds: float) -> None:
    """Prints how long flushes take, alone and beside each job."""
    url = machine.new_url()
    began_s = time.monotonic()
    filled(url, rows).dispose()
    print(f"{machine.name}: {rows:,} rows, written in {time.monotonic() - began_s:.0f} s", flush=True)
    for job in ("", *JOBS, ""):
        found = delays_beside(url, job, seconds)
        rate = f"{found.rows:>10,} rows, {found.rows / found.seconds:>6,.0f}/s" if job else ""
        print(
            f"    {job or 'alone':14} {found.flushes:4} flushes   median {found.median:6.1f} ms   "
            f"p99 {found.p99:6.1f} ms   worst {found.worst:6.1f} ms   bound +{BOUND_MS:g} ms   {rate}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-prune", description=__doc__)
    parser.add_argument("rows", nargs="?", type=int, default=ROWS)
    parser.add_argument("database", nargs="?", choices=("postgresql", "sqlite"), help="by default both")
    parser.add_argument("--seconds", type=float, default=MEASURED_S, help="of each measurement")
    given = parser.parse_args()
    for machine in started_machines():
        if given.database in {None, machine.name}:
            measure(machine, given.rows, given.seconds)


if __name__ == "__main__":
    main()
