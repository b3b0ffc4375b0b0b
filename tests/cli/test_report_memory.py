"""The memory that a report of 100,000 callers takes, and its progress bar."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import sqlalchemy as sa

from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import writing
from analyzer.plan import catalog
from analyzer.plan.meters import Meter
from analyzer.plan.plan import make_plan

CALLERS = 100_000
METERS = ("busy", "requests", "tokens")
MORE_MIB = 60  # beyond a report of one caller; Parquet took 31, the others less than one
PROGRAM = """
import resource, sys
from analyzer.faces.cli import app
try:
    app(sys.argv[1:], standalone_mode=False)
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, file=sys.stderr)
"""


@pytest.fixture
def database() -> str:
    return "sqlite"


def close_days(engine: sa.Engine, callers: int) -> None:
    """Stores two closed days, the first with one caller, the second with many."""
    SqlStore(engine, "here").activate(make_plan([], [Meter("busy", "took"), Meter("tokens", "n")], []))
    with writing(engine) as db:
        known = catalog.load(db)
        numbers = [known.meters[name].number for name in METERS]
        assert max(numbers) < 8, "on one page"
        meters = json.dumps([[number, name, "sum"] for number, name in zip(numbers, METERS, strict=True)])
        columns = ", ".join(f"value_{number}" for number in numbers)
        for day, most in ((1, 1), (2, callers)):
            begin_s = 1_790_000_000 // 86_400 * 86_400 + day * 86_400
            insert = (
                "insert into days (id, zone, date, begin_s, end_s, state, groupings, meters, rows, requests, "
                "given, digest, digest_before, digest_key) values (:day, 'UTC', :date, :begin, "
                ":begin + 86400, 'closing', 'caller', :meters, :rows, :rows, '{}', 'd', '', '')"
            )
            values = {"day": day, "date": f"2026-09-2{day}", "begin": begin_s, "meters": meters, "rows": most}
            db.execute(sa.text(insert), values)
            rows = f"with recursive n(i) as (select 1 union all select i + 1 from n where i < {most})"
            grouping = known.groupings["caller"]
            db.exec_driver_sql(
                f'insert into frozen_counts (day, "grouping", page, reference, resource, {columns}) {rows} '
                f"select {day}, {grouping}, 0, printf('%032x', i * 7919 % 1000003), '', i, i + 1, i + 2 "
                "from n"
            )
            db.exec_driver_sql(
                f"insert or ignore into referenced_names (reference, name) {rows} "
                "select printf('%032x', i * 7919 % 1000003), 'api_key:customer-' || (i * 31 % 1000003) from n"
            )
            db.exec_driver_sql(f"update days set state = 'closed' where id = {day}")


@pytest.mark.slow
@pytest.mark.deep("size")
def test_a_report_of_100_000_callers_needs_little_more_memory_than_one_of_one(
    engine: sa.Engine,
) -> None:
    close_days(engine, CALLERS)

    def peak_mib(*arguments: str) -> int:
        """Returns the peak of the resident memory of `gatelock billing report`, whose output goes nowhere."""
        command = [sys.executable, "-c", PROGRAM, "billing", "report", *arguments]
        result = subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=240, check=True
        )
        return int(result.stderr.splitlines()[-1])

    found = {}
    for form, *more in (("csv", "--out", "day.csv"), ("parquet",), ("lago",)):
        one, many = (peak_mib("day", f"2026-09-2{day}", "--format", form, *more) for day in (1, 2))
        found[form] = many - one
    assert max(found.values()) < MORE_MIB, found
    with Path("day.csv").open() as lines:
        assert sum(1 for _ in lines) == 1 + CALLERS * len(METERS)


def test_a_terminal_shows_progress(engine: sa.Engine, process: Callable[..., object]) -> None:
    close_days(engine, 5_000)
    terminal, child = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "analyzer.faces.cli",
        "billing",
        "report",
        "day",
        "2026-09-22",
        "--out",
        "day.csv",
    ]
    env = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=child, env=env)
    os.close(child)
    shown = b""
    with suppress(OSError):  # the end of a terminal whose program has ended
        while part := os.read(terminal, 65_536):
            shown += part
    os.close(terminal)
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 0
    assert b"day.csv: 15,000 lines, final" in out
    assert b"lines" in shown
    assert b"15000" in shown.replace(b",", b"")
