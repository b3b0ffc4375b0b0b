"""Cost of the warden's look at the candidates of a share policy, among callers below their floor.

python -m tests.benchmarks.shares [ACTIVE [CANDIDATES]]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import sqlalchemy as sa

from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.database.migrate import upgrade
from analyzer.kernel.model import CountTable, DrainedCounts, Partition, PartitionProgress
from analyzer.kernel.tables.schema import metadata, postponed
from analyzer.plan.meters import REQUESTS
from analyzer.plan.plan import make_plan
from analyzer.plan.policies import LoadShare
from analyzer.plan.windows import Rolling
from tests.benchmarks.judge import Cost, Machine, machines
from tests.benchmarks.servers import AS_IN_PRODUCTION
from tests.support.servers.postgres import find_postgres
from tests.support.upkeep import Upkeep

ACTIVE, CANDIDATES = 100_000, 100
RESOURCE = "/v1/export"
PART = Partition("cluster", "topic", 0, "access-log", "access-log")
FLOOR = 1_000
POLICY = LoadShare(
    "neighbour", 400_000, FLOOR, Rolling(300), per="caller+resource", release=250_000, action="slow"
)
LOOKS = 30
BOUND_S = 0.020  # of a look, each second


class SharedResource:
    """A database in which many callers use one resource, of which few are above their floor."""

    def __init__(self, machine: Machine, active: int = ACTIVE, candidates: int = CANDIDATES) -> None:
        url = machine.new_url()
        self._cpu_s = machine.cpu_s
        upgrade(url)
        self.engine = open_engine(url)
        self._store, self._plan = SqlStore(self.engine, "bench"), make_plan([], [], [POLICY])
        self._version = self._store.activate(self._plan)
        self._store.begin(PART, 0)
        self._upkeep = Upkeep(self.engine, lambda: f"{time.time_ns():x}"[-8:])
        self._next, self._candidates = 0, candidates
        slot_s = POLICY.window.slot_s
        now_s = int(time.time()) // slot_s * slot_s
        for at_s in range(now_s - 11 * slot_s, now_s + 1, slot_s):
            self._flush(at_s, active, candidates)
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
            for table in metadata.tables if db.dialect.name == "postgresql" else ():
                db.exec_driver_sql(f"vacuum analyze {table}")
            assert db.execute(sa.select(sa.func.count()).select_from(postponed)).scalar_one() == candidates

    def _flush(self, at_s: int, active: int, candidates: int) -> None:
        amounts = [FLOOR // 2 if n < candidates else 1 for n in range(active)]
        callers = [f"api_key:acct-{n:07}" for n in range(active)]
        slots = [
            self._table("caller+resource", at_s, callers, [RESOURCE] * active, amounts),
            self._table("resource", at_s, [RESOURCE], [""], [sum(amounts)]),
        ]
        minutes = [
            table._replace(width_s=60, buckets_s=[at_s // 60 * 60] * len(table.keys)) for table in slots
        ]
        moved = PartitionProgress(PART, self._next, self._next + active, active, active)
        with self._store.transaction() as flush:
            flush.move_offsets([moved], {})
            now = flush.check_plan(self._plan, self._version)
            flush.apply(self._plan, self._version, DrainedCounts([moved], minutes, (), slots=slots), now)
        self._next += active

    def _table(
        self, grouping: str, at_s: int, keys: list[str], resources: list[str], amounts: list[int]
    ) -> CountTable:
        size = len(keys)
        width_s = POLICY.window.slot_s
        names = (REQUESTS.name,)
        return CountTable(grouping, width_s, names, [at_s] * size, keys, resources, (amounts,), ())

    def look(self) -> Cost:
        """Lets the warden look once at all that is due; returns what it cost."""
        with self.engine.begin() as db:
            db.execute(sa.update(postponed).values(due_ms=0))
        began_s, cpu_s = time.perf_counter(), self._cpu_s()
        waited, *_ = self._upkeep.judge_waiting()
        cost = Cost(time.perf_counter() - began_s, self._cpu_s() - cpu_s)
        assert waited == self._candidates
        return cost


def main(active: int = ACTIVE, candidates: int = CANDIDATES) -> None:
    with tempfile.TemporaryDirectory(prefix="gatelock-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "postgres").mkdir(mode=0o755)
        postgres = find_postgres(folder / "postgres", AS_IN_PRODUCTION)
        try:
            for machine in machines(postgres, folder):
                resource = SharedResource(machine, active, candidates)
                wall_s, cpu_s = map(sorted, zip(*(resource.look() for _ in range(LOOKS)), strict=True))
                print(
                    f"{machine.name}: {candidates} of {active:,} active callers above their floor: "
                    f"{median(wall_s) * 1000:.1f} ms a look, {wall_s[-2] * 1000:.1f} ms at most but one; CPU "
                    f"{median(cpu_s) * 1000:.1f} ms, the database's included; bound {BOUND_S * 1000:g} ms"
                )
                resource.engine.dispose()
        finally:
            postgres.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
