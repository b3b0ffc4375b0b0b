"""`make bench-simulate`: policies simulated on a month of stored counts, some ten million rows.

A hundred thousand callers, of which one in a hundred is active in each hour and the others in one of eight;
what they have follows Zipf's law. `ARGS='1000 sqlite'` measures fewer callers on one of the two databases.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from analyzer.forecast.simulation.policy_simulation import simulate
from analyzer.plan.plan import make_plan
from analyzer.plan.policies import Policy, Quota, RollingQuota, Surge
from analyzer.plan.windows import HOUR_S, Calendar, Rolling
from tests.benchmarks.judge import Machine, machines
from tests.benchmarks.servers import AS_IN_PRODUCTION
from tests.benchmarks.stored_month import CALLERS, DAYS, stored_month
from tests.support.servers.postgres import find_postgres

DAILY = Quota("daily", 10_000, Calendar("day"))
POLICIES: dict[str, Sequence[Policy]] = {  # each with the present one of its sum, where it has one
    "a day, beside the present limit": [Quota("daily", 5_000, Calendar("day")), DAILY],
    "a month": [Quota("monthly", 200_000, Calendar("month"))],
    "any three hours": [RollingQuota("rolling", 3_000, Rolling(3 * HOUR_S))],
    "a surge of three hours": [Surge("surge", 3_000, Rolling(3 * HOUR_S), (7_200, 86_400))],
}
BOUND_S = {"postgresql": 10.0, "sqlite": 20.0}


def measure(machine: Machine, engine: sa.Engine) -> None:
    """Prints what each policy costs, and what it finds."""
    for name, policies in POLICIES.items():
        began_s, cpu_s = time.perf_counter(), machine.cpu_s()
        found = simulate(engine, policies, int(time.time()) - (DAYS + 1) * 86_400)
        wall_s, cpu_s = time.perf_counter() - began_s, machine.cpu_s() - cpu_s
        locks = found.of[policies[0]]
        print(
            f"    {name:34} {wall_s:6.1f} s   CPU {cpu_s:6.1f} s   bound {BOUND_S[machine.name]:g} s   "
            f"{locks.keys:,} of {found.keys:,} callers, {locks.locks:,} times"
        )


def main(arguments: Sequence[str]) -> None:
    callers = next((int(word) for word in arguments if word.isdecimal()), CALLERS)
    chosen = [word for word in arguments if not word.isdecimal()]
    with tempfile.TemporaryDirectory(prefix="gatelock-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "postgres").mkdir(mode=0o755)
        postgres: Any = find_postgres(folder / "postgres", AS_IN_PRODUCTION)
        try:
            for machine in machines(postgres, folder):
                if chosen and machine.name not in chosen:
                    continue
                engine = stored_month(machine.new_url(), make_plan([], [], [DAILY]), callers=callers)
                with engine.connect() as db:
                    rows = db.exec_driver_sql("select count(*) from buckets").scalar_one()
                print(f"{machine.name}: {rows:,} rows")
                measure(machine, engine)
                engine.dispose()
        finally:
            postgres.close()


if __name__ == "__main__":
    main(sys.argv[1:])
