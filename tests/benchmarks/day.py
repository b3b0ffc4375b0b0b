"""`make bench-day`: a day of a hundred thousand callers is closed, audited and reported.

Some ten million rows of minutes with three meters, on PostgreSQL; and the time in which the server
hands out the same rows by COPY. `ARGS=1000000` for fewer rows.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psycopg

from tests.benchmarks.servers import AS_IN_PRODUCTION
from tests.benchmarks.stored_day import run_step, steps_of, stored_day
from tests.support.servers.postgres import dsn_of, find_postgres

ROWS, BOUND_S, BOUND_MIB = 10_000_000, 60.0, 300.0  # the bounds for all steps, and for each


def copied_s(url: str) -> float:
    """Returns the time in which the server hands out the rows."""
    began_s = time.perf_counter()
    with psycopg.connect(dsn_of(url)) as db, db.cursor().copy("copy buckets to stdout") as rows:
        for _ in rows:
            pass
    return time.perf_counter() - began_s


def main(arguments: Sequence[str]) -> None:
    wanted = int(arguments[0]) if arguments else ROWS
    with tempfile.TemporaryDirectory(prefix="gatelock-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "postgres").mkdir(mode=0o755)
        postgres = find_postgres(folder / "postgres", AS_IN_PRODUCTION)
        try:
            url = postgres.new_database()
            day = stored_day(url, folder, wanted)
            copy_s = copied_s(url)
            print(f"{day.rows:,} rows; copy to stdout {copy_s:.1f} s")
            whole_s = 0.0
            for step, command in steps_of(day).items():
                wall_s, cpu_s, peak_mib = run_step(day, command)
                whole_s += wall_s
                print(
                    f"    {step:8} {wall_s:6.1f} s   CPU {cpu_s:6.1f} s   {peak_mib:4.0f} MiB   "
                    f"{wall_s / copy_s:5.1f} times the copy"
                )
            bound_s = BOUND_S * day.rows / ROWS
            print(
                f"    all      {whole_s:6.1f} s   bound {bound_s:.0f} s and {BOUND_MIB:.0f} MiB   "
                f"{whole_s / copy_s:.1f} times the copy"
            )
        finally:
            postgres.close()


if __name__ == "__main__":
    main(sys.argv[1:])
