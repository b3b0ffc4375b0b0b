"""`make bench-judge`: what judging costs a flush, and what analyzers cost each other.

`make bench-judge ARGS='cost fleet'` runs two parts: `cost`, `untouched`, `above` and `window` are about one
flush, `fleet` and `stopped` about four analyzers, `delay` about the time until a refusal. With `--small` each
runs in its smallest form.
"""

from __future__ import annotations

import argparse
import platform
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil
import sqlalchemy as sa

from analyzer.flush.sql_store import SqlStore
from analyzer.judging.plan_sums import plan_sums
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.database.migrate import upgrade
from analyzer.kernel.model import CountTable, DrainedCounts, Partition, PartitionProgress
from analyzer.kernel.tables.schema import locks, metadata, totals
from analyzer.plan.meters import REQUESTS, Meter
from analyzer.plan.plan import Plan, make_plan
from analyzer.plan.policies import Policy, Quota, Surge
from analyzer.plan.windows import Calendar, Rolling
from tests.benchmarks import judge_fleet, refusal
from tests.benchmarks.servers import AS_IN_PRODUCTION, servers
from tests.support.servers.postgres import NativePostgres, Postgres, find_postgres

TOUCHED = 10_000
KNOWN = 1_000_000
PART = Partition("cluster", "topic", 0, "access-log", "access-log")
PER_ROUND = 3  # requests of each caller in a flush
OUT_OF_REACH = 10**12
BYTES = Meter("bytes", "bytes")
NUMBERS = count()  # of SQLite's files
READS = ", all slots are read"
NO_POLICIES = make_plan([], [BYTES], [])
# Five policies on each of four sums, all of callers: 10,000 totals of each sum grow in a flush.
SUMS = [("requests", "hour"), ("requests", "day"), ("requests", "month"), ("bytes", "day")]


def quotas(per_sum: int, limit: int = OUT_OF_REACH, sums: Sequence[tuple[str, str]] = SUMS) -> Plan:
    """Returns a plan with `per_sum` quotas on each sum."""
    return make_plan(
        [],
        [BYTES],
        [
            Quota(f"{meter}-{per}-{n}", limit + n, Calendar(per), meter=meter)  # type: ignore[arg-type]  # a period
            for meter, per in sums
            for n in range(per_sum)
        ],
    )


def surges(per_sum: int, periods_s: Sequence[int], limit: int = OUT_OF_REACH) -> list[Policy]:
    """Returns `per_sum` surges on each rolling sum."""
    return [
        Surge(f"surge-{period_s}-{n}", limit + n, Rolling(period_s))
        for period_s in periods_s
        for n in range(per_sum)
    ]


class Cost(NamedTuple):
    """Seconds of one flush: by the clock, and of the CPU, with PostgreSQL's."""

    wall_s: float
    cpu_s: float


class Installation:
    """A database in which one analyzer flushes prepared rows by one plan."""

    def __init__(self, url: str, plan: Plan, cpu_s: Callable[[], float]) -> None:
        upgrade(url)
        self.engine = open_engine(url)
        self._store = SqlStore(self.engine, "bench")
        self._plan = plan
        self._version = self._store.activate(plan)
        self._store.begin(PART, 0)
        self._cpu_s = cpu_s
        self._next = 0
        self.costs: list[Cost] = []

    def flush(self, callers: Sequence[int], amount: int = PER_ROUND) -> Cost:
        """Stores `amount` requests of each caller (ascending) in the present minute; returns the cost."""
        now_s = int(time.time())
        requests = len(callers) * amount
        moved = PartitionProgress(PART, self._next, self._next + requests, requests, requests)
        slots = [
            _table(callers, amount, now_s - now_s % layout.width_s, layout.width_s)
            for layout in plan_sums(self._plan).slot_layouts
        ]
        counted = DrainedCounts([moved], [_table(callers, amount, now_s - now_s % 60)], (), slots=slots)
        return self._store_counts(counted, requests)

    def fill_window(self, callers: Sequence[int], amount: int) -> None:
        """Gives each caller `amount` requests in every slot of the windows that end now."""
        [layout] = plan_sums(self._plan).slot_layouts
        now_s = int(time.time())
        first_s = now_s - now_s % layout.width_s - 11 * layout.width_s
        for start_s in range(first_s, now_s, layout.width_s):
            requests = len(callers) * amount
            moved = PartitionProgress(PART, self._next, self._next + requests, requests, requests)
            tables = [_table(callers, amount, start_s - start_s % 60)]
            slots = [_table(callers, amount, start_s, layout.width_s)]
            self._store_counts(DrainedCounts([moved], tables, (), slots=slots), requests)
        self.settle()

    def _store_counts(self, counted: DrainedCounts, requests: int) -> Cost:
        began_s, began_cpu_s = time.perf_counter(), self._cpu_s()
        with self._store.transaction() as flush:
            flush.move_offsets(counted.parts, {})
            flush.apply(self._plan, self._version, counted, flush.check_plan(self._plan, self._version))
        self._next += requests
        return Cost(time.perf_counter() - began_s, self._cpu_s() - began_cpu_s)

    def know(self, known: int, amount: int = PER_ROUND) -> None:
        """Gives so many callers their rows."""
        for first in range(0, known, TOUCHED):
            self.flush(range(first, min(known, first + TOUCHED)), amount)
        self.settle()

    def settle(self) -> None:
        """Brings statistics and free space up to date, as PostgreSQL itself does some time later."""
        if self.engine.dialect.name == "postgresql":
            with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
                db.exec_driver_sql("set statement_timeout = 0")
                for table in metadata.tables:
                    db.exec_driver_sql(f"vacuum analyze {table}")
                db.exec_driver_sql("checkpoint")
                db.exec_driver_sql("reset statement_timeout")

    def judge_all(self) -> None:
        """Lets the next flush judge all totals, and read their slots."""
        with self.engine.begin() as db:
            db.execute(sa.update(totals).values(next=0))

    def locks(self) -> int:
        with self.engine.connect() as db:
            return int(db.execute(sa.select(sa.func.count()).select_from(locks)).scalar_one())


def _table(callers: Sequence[int], amount: int, start_s: int, width_s: int = 60) -> CountTable:
    size, keys = len(callers), [f"api_key:acct-{n:07}" for n in callers]
    return CountTable(
        "caller", width_s, ("bytes", REQUESTS.name), [start_s] * size, keys, [""] * size,
        ([1_000 * amount] * size, [amount] * size), (),
    )  # fmt: skip


MIXED = make_plan([], [BYTES], [*quotas(5, sums=SUMS[1:3]).policies, *surges(5, [60, 600])])


class Machine(NamedTuple):
    """Databases for a measurement."""

    name: str
    new_url: Callable[[], str]
    cpu_s: Callable[[], float]  # of this process and of the database's


def machines(postgres: Postgres, folder: Path) -> Iterator[Machine]:
    """Yields PostgreSQL and SQLite."""
    yield Machine("postgresql", postgres.new_database, lambda: time.process_time() + postgres_cpu_s(postgres))
    yield Machine("sqlite", lambda: f"sqlite:///{folder}/{next(NUMBERS)}.db", time.process_time)


def started_machines() -> Iterator[Machine]:
    """Yields PostgreSQL, started as in production, and SQLite, with a folder that is deleted at the end."""
    with tempfile.TemporaryDirectory(prefix="gatelock-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "postgres").mkdir(mode=0o755)
        postgres = find_postgres(folder / "postgres", AS_IN_PRODUCTION)
        try:
            yield from machines(postgres, folder)
        finally:
            postgres.close()


def postgres_cpu_s(postgres: Postgres) -> float:
    """Returns the CPU seconds of a server that was started here; 0 for another one."""
    if not isinstance(postgres, NativePostgres):
        return 0.0
    pid = int((postgres.folder / "data" / "postmaster.pid").read_text().split()[0])
    total = sum(psutil.Process(pid).cpu_times()[:4])  # with those of processes that have ended
    # psutil would read all processes of the machine, which costs more than what is measured.
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            total += sum(psutil.Process(int(child)).cpu_times()[:2])
        except psutil.NoSuchProcess:
            continue
    return float(total)


def in_turns(
    found: Mapping[str, Installation], act: Callable[[str, Installation], Cost], rounds: int
) -> dict[str, Cost]:
    """Lets the installations take turns, in an order that changes; returns the median costs of each."""
    chance = random.Random(1)
    for number in range(rounds + 1):
        names = list(found)
        chance.shuffle(names)
        for name in names:
            cost = act(name, found[name])
            if number:  # the first one compiles statements
                found[name].costs.append(cost)
    return {
        name: Cost(*(median(column) for column in zip(*one.costs, strict=True)))
        for name, one in found.items()
    }


def show(costs: Mapping[str, Cost]) -> None:
    """Prints each cost, relative to the first."""
    first = next(iter(costs.values()))
    for name, cost in costs.items():
        print(
            f"    {name:44} {cost.wall_s * 1000:7.0f} ms   {cost.wall_s / first.wall_s:5.2f}"
            f"   CPU {cost.cpu_s * 1000:7.0f} ms   {cost.cpu_s / first.cpu_s:5.2f}"
        )


@contextmanager
def installed(machine: Machine, plans: Mapping[str, Plan]) -> Iterator[dict[str, Installation]]:
    found = {name: Installation(machine.new_url(), plan, machine.cpu_s) for name, plan in plans.items()}
    try:
        yield found
    finally:
        for one in found.values():
            one.engine.dispose()


def cost(machine: Machine, rounds: int = 15, touched: int = TOUCHED) -> None:
    """Prints the cost of policies. Asked: 20 policies on four sums, at most 2.5 times no policies."""
    plans = {
        "no policies": NO_POLICIES,
        "1 policy": quotas(1, sums=SUMS[:1]),
        "20 policies on 1 sum": quotas(20, sums=SUMS[:1]),
        "10 policies on 2 sums": quotas(5, sums=SUMS[:2]),
        "20 policies on 4 sums": quotas(5),
        "20 policies on 4 sums, 2 of them rolling": MIXED,
    }
    print(f"  {machine.name}: {touched:,} touched callers, median of {rounds}; relative to the first line")
    with installed(machine, plans) as found:
        for one in found.values():
            one.know(touched)
        show(in_turns(found, lambda _, one: one.flush(range(touched)), rounds))


def untouched(machine: Machine, rounds: int = 15, touched: int = TOUCHED, known: int = KNOWN) -> None:
    """Prints the cost with few and many callers that a flush does not touch."""
    plans = {
        f"{size:,} callers known{suffix}": plan
        for suffix, plan in ((", no policies", NO_POLICIES), (", 20 policies on 4 sums", quotas(5)))
        for size in (touched, known)
    }
    print(f"  {machine.name}: {touched:,} touched callers among those that are known, median of {rounds}")
    chance = random.Random(2)
    with installed(machine, plans) as found:
        sizes = {name: int(name.split()[0].replace(",", "")) for name in found}
        for name, one in found.items():
            one.know(sizes[name])
        show(
            in_turns(
                found, lambda name, one: one.flush(sorted(chance.sample(range(sizes[name]), touched))), rounds
            )
        )


def above(machine: Machine, rounds: int = 15, touched: int = TOUCHED) -> None:
    """Prints the cost with no caller and with all callers above their limits."""
    sums = SUMS[1:3]
    plans = {
        "0 callers above their limits": quotas(5, sums=sums),
        "all above their limits": quotas(5, 2, sums),
    }
    print(f"  {machine.name}: {touched:,} touched callers, 10 policies on 2 sums, median of {rounds}")
    with installed(machine, plans) as found:
        for one in found.values():
            one.know(touched, amount=20)
        held = {name: one.locks() for name, one in found.items()}
        show(in_turns(found, lambda _, one: one.flush(range(touched)), rounds))
        print("    locks: " + ", ".join(f"{number:,} with {name}" for name, number in held.items()))


def window(machine: Machine, rounds: int = 10, touched: int = TOUCHED) -> None:
    """Prints the cost by the length of the window: of flushes that read no slots, and that read all."""
    print(f"  {machine.name}: {touched:,} touched callers, one surge with 12 slots; median of {rounds}")
    plans = {
        f"window {period_s:,} s{suffix}": make_plan([], [BYTES], surges(1, [period_s]))
        for suffix in ("", READS)
        for period_s in (60, 600, 3_600)
    }

    def act(name: str, one: Installation) -> Cost:
        if name.endswith(READS):
            one.judge_all()
        return one.flush(range(touched))

    with installed(machine, plans) as found:
        for one in found.values():
            one.fill_window(range(touched), PER_ROUND)
        show(in_turns(found, act, rounds))


ON_BOTH = {"cost": cost, "untouched": untouched, "above": above, "window": window}
# From the record that reaches a limit to the refusal, with Kafka.
WITH_KAFKA = {"delay": refusal.run}
WITH_POSTGRES = {"fleet": judge_fleet.run, "stopped": judge_fleet.run_stopped}
PARTS = (*ON_BOTH, *WITH_POSTGRES, *WITH_KAFKA)
SMALLEST: Mapping[str, Mapping[str, Any]] = {
    "cost": {"rounds": 1, "touched": 20},
    "untouched": {"rounds": 1, "touched": 20, "known": 40},
    "above": {"rounds": 1, "touched": 20},
    "window": {"rounds": 1, "touched": 20},
    "fleet": {"rounds": 1, "seconds": 0.5},
    "stopped": {"seconds": 8.0, "stop_at_s": 1.0},
    "delay": {"locks": 3},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="make bench-judge", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="PART", help=f"by default all: {', '.join(PARTS)}")
    parser.add_argument("--small", action="store_true", help="the smallest form of each: does it run?")
    given = parser.parse_args()
    if unknown := set(given.names) - set(PARTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; expected some of {', '.join(PARTS)}")
    sizes = {name: SMALLEST[name] if given.small else {} for name in given.names or PARTS}
    if with_kafka := [name for name in sizes if name in WITH_KAFKA]:
        with servers() as started:
            for name in with_kafka:
                WITH_KAFKA[name](started, **sizes[name])
    if alone := {name: size for name, size in sizes.items() if name not in WITH_KAFKA}:
        run(alone)


def run(sizes: Mapping[str, Mapping[str, Any]]) -> None:
    """Runs parts that need databases alone, each with these arguments."""
    folder = Path(tempfile.mkdtemp(prefix="gatelock-bench-"))
    folder.chmod(0o755)
    (folder / "postgres").mkdir(mode=0o755)
    postgres = find_postgres(folder / "postgres", AS_IN_PRODUCTION)
    print(f"Python {platform.python_version()}, {platform.machine()}, postgresql {postgres.kind}")
    try:
        for name, size in sizes.items():
            print(name)
            if name in WITH_POSTGRES:
                WITH_POSTGRES[name](postgres, **size)
                continue
            for machine in machines(postgres, folder):
                ON_BOTH[name](machine, **size)
    finally:
        postgres.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
