"""A day as it is stored when it closes: a hundred thousand callers, minutes, three meters."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.database.migrate import upgrade
from analyzer.plan.meters import DAY_S, MINUTE_S, Meter
from analyzer.plan.plan import make_plan

CALLERS = 100_000
PLAN = make_plan([], [Meter("bytes", "bytes"), Meter("busy", "duration")], [])
CONFIGURATION = """
[database]
url = "{url}"
[billing]
recount = "never"  # these rows are of no log
[[sources]]
topic = "access-log"
[sources.fields]
time = {{ path = "ts", unit = "s" }}
api_key = "key"
bytes = "bytes"
duration = {{ path = "took", unit = "s" }}
[[meters]]
name = "bytes"
sum = "bytes"
[[meters]]
name = "busy"
sum = "duration"
"""
# Values of busy, bytes and requests. A caller in ten is active in ten times as many minutes as the others.
ROWS = """
insert into buckets ("grouping", page, width_s, bucket_s, value_0, value_1, value_2, "key", resource)
select 1, 0, 60, :begin_s + 60 * minute, 50000 + n % 991, 1000 + n % 997, 1 + n % 7, name, ''
from generate_series(:first, :first + 59) minute, day_callers
where (n * 7919 + minute * 104729) % 1000000
  < case when n % 10 = 0 then 10 else 1 end * cast(:share as bigint)
order by minute, name
"""

# The peak of the command itself: that of wait4 is at least that of the process which has started it.
COMMAND = """
import atexit, re, sys
from pathlib import Path

def store_peak():
    status = Path("/proc/self/status").read_text()
    Path({file!r}).write_text(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1])

atexit.register(store_peak)
sys.argv[1:] = {arguments!r}
from analyzer.faces.cli import main
main()
"""


class StoredDay(NamedTuple):
    """A database with a day that is over, and the folder with its configuration."""

    folder: Path
    date: str
    rows: int


class Step(NamedTuple):
    """The cost of one command."""

    wall_s: float
    cpu_s: float  # of the command alone
    peak_mib: float


def stored_day(url: str, folder: Path, rows: int) -> StoredDay:
    """Stores about this number of rows, of yesterday in UTC, in a new database of PostgreSQL."""
    upgrade(url)
    engine = open_engine(url, statement_ms=0)
    SqlStore(engine, "bench").activate(PLAN)
    begin_s = int(time.time()) // DAY_S * DAY_S - DAY_S
    # Of ten callers one counts ten times: 1.9 each.
    share = round(rows * 1_000_000 / (CALLERS * 1.9 * (DAY_S // MINUTE_S)))
    names = [{"n": n, "name": f"api_key:acct-{n * 7919 % CALLERS:06}"} for n in range(CALLERS)]
    with engine.begin() as db:
        db.exec_driver_sql("create temporary table day_callers (n bigint, name text)")
        db.execute(sa.text("insert into day_callers values (:n, :name)"), names)
        for first in range(0, DAY_S // MINUTE_S, 60):  # in the order of the key
            db.execute(sa.text(ROWS), {"begin_s": begin_s, "first": first, "share": share})
        db.exec_driver_sql("drop table day_callers")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        db.exec_driver_sql("vacuum analyze buckets")
        stored = int(db.exec_driver_sql("select count(*) from buckets").scalar_one())
    engine.dispose()
    (folder / "gatelock.toml").write_text(CONFIGURATION.format(url=url))
    return StoredDay(folder, time.strftime("%Y-%m-%d", time.gmtime(begin_s)), stored)


def run_step(day: StoredDay, arguments: Sequence[str]) -> Step:
    """Runs a command on the day, and returns its cost. Raises RuntimeError if it fails."""
    began_s = time.perf_counter()
    environment = dict(os.environ) | {"GATELOCK_CONFIG": str(day.folder / "gatelock.toml")}
    peak = day.folder / "peak"
    command = [sys.executable, "-c", COMMAND.format(file=str(peak), arguments=list(arguments))]
    _, status, used = os.wait4(os.posix_spawn(sys.executable, command, environment), 0)
    if status:
        raise RuntimeError(f"gatelock {' '.join(arguments)} has failed: {status}")
    return Step(time.perf_counter() - began_s, used.ru_utime + used.ru_stime, int(peak.read_text()) / 1024)


def steps_of(day: StoredDay) -> dict[str, Sequence[str]]:
    """Returns the commands that close a day, audit it and write its report."""
    return {
        "close": ["billing", "days", "close", day.date, "--reason", "measured", "--yes"],
        "audit": ["billing", "audit", "--day", day.date],
        "report": ["billing", "report", "day", day.date, "--final", "--out", str(day.folder / "day.csv")],
    }
