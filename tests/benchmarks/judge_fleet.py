"""Flushes of four analyzers on one PostgreSQL whose totals meet, and of three beside one that is stopped."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from statistics import median
from typing import NamedTuple

import psutil

from analyzer.flush.flush import SqlFlush
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.database.migrate import upgrade
from analyzer.kernel.errors import PartitionLost, StoreAway
from analyzer.kernel.model import CountTable, DrainedCounts, Partition, PartitionProgress
from analyzer.plan.meters import REQUESTS
from analyzer.plan.plan import Plan, make_plan
from analyzer.plan.policies import Quota
from analyzer.plan.windows import Calendar
from tests.benchmarks.percentiles import percentile
from tests.support.servers.postgres import Postgres

ANALYZERS = 4
PER_S = 10  # flushes of each analyzer, when they are paced
CALLERS = 200  # that a flush touches
RANGES = 2_000
RANGES_TOUCHED = 200
KEYS = 1_000  # callers that an analyzer's partitions have, or all of them together
SECONDS = 8.0
OUT_OF_REACH = 10**12
HOUR = Calendar("hour")


class Traffic(NamedTuple):
    """Traffic of analyzers: which series they count."""

    name: str
    asked: float  # of the throughput of the first
    shares_callers: bool = False
    shares_ranges: bool = False
    has_ranges: bool = True

    @property
    def groupings(self) -> tuple[str, ...]:
        if not self.has_ranges:
            return ("caller",)
        return ("address/24", "caller", "everyone" if self.shares_ranges else "resource")

    @property
    def plan(self) -> Plan:
        quotas = [Quota(grouping, OUT_OF_REACH, HOUR, per=grouping) for grouping in self.groupings]
        return make_plan([], [], quotas)


OWN = Traffic("ranges and a resource of each analyzer", 1.0)
MEETING = Traffic("everyone and 2,000 ranges, shared", 0.9, shares_ranges=True)
OWN_CALLERS = Traffic("callers of each analyzer", 1.0, has_ranges=False)
SPREAD = Traffic("callers spread over all partitions", 0.6, shares_callers=True, has_ranges=False)


class Flushes(NamedTuple):
    """The flushes of one analyzer: when each was due and when it was committed, and how many failed."""

    spans: list[tuple[float, float]]
    failed: int


class FlushingAnalyzer:
    """One process: flushes prepared rows until a moment."""

    def __init__(self, url: str, traffic: Traffic, number: int) -> None:
        self._part = Partition("cluster", "topic", number, "access-log", "access-log")
        self._store = SqlStore(open_engine(url), f"analyzer-{number}")
        self._plan = traffic.plan
        self._version = self._store.activate(self._plan)
        self._store.begin(self._part, 0)
        self._next = 0
        self._chance = random.Random(number)
        self._prepared = [self._rows(traffic, number) for _ in range(20)]

    def _rows(self, traffic: Traffic, number: int) -> list[CountTable]:
        first = 0 if traffic.shares_callers else number * KEYS
        callers = sorted(self._chance.sample(range(first, first + KEYS), CALLERS))
        keys = {
            "caller": [f"api_key:acct-{caller:07}" for caller in callers],
            "everyone": [""],
            "resource": [""],
        }
        block = 0 if traffic.shares_ranges else number
        ranges = sorted(self._chance.sample(range(RANGES), RANGES_TOUCHED))
        keys["address/24"] = sorted(f"10.{block * 8 + one // 256}.{one % 256}.0/24" for one in ranges)
        keys["resource"] = [f"/analyzer-{number}"]
        return [self._table(grouping, keys[grouping]) for grouping in traffic.groupings]

    def _table(self, grouping: str, keys: list[str]) -> CountTable:
        minute_s = int(time.time()) // 60 * 60
        nothing = [""] * len(keys)
        key, resource = (nothing, keys) if grouping == "resource" else (keys, nothing)
        minutes = [minute_s] * len(keys)
        return CountTable(grouping, 60, (REQUESTS.name,), minutes, key, resource, ([2] * len(keys),), ())

    def flush(self, before_commit: Callable[[], None] = lambda: None) -> None:
        """Stores one flush, again until it is stored; raises StoreAway when it takes a minute."""
        tables = self._chance.choice(self._prepared)
        progress = PartitionProgress(self._part, self._next, self._next + 1, 1, 1)
        with self._store.transaction() as flush:
            self._apply(flush, DrainedCounts([progress], tables, ()))
            before_commit()
        self._next += 1

    def _apply(self, flush: SqlFlush, counted: DrainedCounts) -> None:
        flush.move_offsets(counted.parts, {})
        flush.apply(self._plan, self._version, counted, flush.check_plan(self._plan, self._version))

    def reload(self) -> None:
        """Continues from the stored position, as a source does after an error."""
        self._next = self._store.positions([self._part])[self._part].next


def flush_until(
    url: str,
    traffic: Traffic,
    number: int,
    every_s: float,
    seconds: float,
    stop_at_s: float,
    pipe: Connection,
) -> None:
    """Flushes every `every_s`, without a pause if that is 0; sends Flushes.

    With `stop_at_s` above 0 the process stops itself in a flush after that time, before the commit.
    """
    analyzer = FlushingAnalyzer(url, traffic, number)
    analyzer.flush()
    pipe.send("ready")
    began_s = pipe.recv()
    spans, failed, due_s = [], 0, began_s + every_s * number / ANALYZERS
    while due_s < began_s + seconds:
        time.sleep(max(0.0, due_s - time.monotonic()))
        is_last = 0 < stop_at_s <= due_s - began_s
        while True:
            try:
                analyzer.flush((lambda: os.kill(os.getpid(), signal.SIGSTOP)) if is_last else lambda: None)
                break
            except (StoreAway, PartitionLost):
                failed += 1
                if is_last:  # the server has ended the transaction of the stopped process
                    break
                analyzer.reload()
        if is_last:
            break
        now_s = time.monotonic()
        spans.append((due_s, now_s))
        due_s = max(due_s + every_s, now_s) if every_s else now_s
    pipe.send(Flushes(spans, failed))


def measure(
    postgres: Postgres, traffic: Traffic, every_s: float, seconds: float = SECONDS, stop_at_s: float = 0.0
) -> list[Flushes]:
    """Runs four analyzers; with `stop_at_s` the first stops itself then, and continues at the end."""
    url = postgres.new_database()
    upgrade(url)
    context = multiprocessing.get_context("spawn")
    processes, pipes = [], []
    for number in range(ANALYZERS):
        here, there = context.Pipe()
        stop = stop_at_s if number == 0 else 0.0
        arguments = (url, traffic, number, every_s, seconds, stop, there)
        process = context.Process(target=flush_until, args=arguments, daemon=True)
        process.start()
        pipes.append(here)
        processes.append(process)
    for pipe in pipes:
        assert pipe.recv() == "ready"
    began_s = time.monotonic() + 0.2
    for pipe in pipes:
        pipe.send(began_s)
    if stop_at_s:
        found: list[Flushes] = [pipe.recv() for pipe in pipes[1:]]
        psutil.Process(processes[0].pid).resume()
        found.append(pipes[0].recv())
    else:
        found = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join(30)
    return found


def run(postgres: Postgres, rounds: int = 3, seconds: float = SECONDS) -> None:
    """Prints throughput and delay where totals meet, beside traffic whose totals do not meet."""
    print(
        f"  {ANALYZERS} analyzers, {CALLERS} callers a flush, {RANGES_TOUCHED} ranges where there are ranges;"
        f" {rounds} rounds of {seconds:g} s in turns"
    )
    for own, meeting in ((OWN, MEETING), (OWN_CALLERS, SPREAD)):
        for every_s, pace in ((1 / PER_S, f"{PER_S} flushes/s each"), (0.0, "without a pause")):
            print(f"   {pace}")
            found: dict[str, list[list[Flushes]]] = {own.name: [], meeting.name: []}
            for _ in range(rounds):
                for traffic in (own, meeting):
                    found[traffic.name].append(measure(postgres, traffic, every_s, seconds))
            rates = {name: median(_rate(run, seconds) for run in runs) for name, runs in found.items()}
            for name, runs in found.items():
                waits_s = [after - due for run in runs for one in run for due, after in one.spans]
                failed = sum(one.failed for run in runs for one in run)
                print(
                    f"    {name:44} {rates[name]:6.1f} flushes/s  {rates[name] / rates[own.name]:5.2f}"
                    f"   p50 {median(waits_s) * 1000:5.0f} ms  p99 {percentile(waits_s, 99) * 1000:6.0f} ms"
                    f"  failed {failed}"
                )
            print(f"    asked: {meeting.asked} of the first at {PER_S} flushes/s each")


def run_stopped(postgres: Postgres, seconds: float = 24.0, stop_at_s: float = 6.0) -> None:
    """Prints the delays of three analyzers while the fourth is stopped before the commit of a flush."""
    print("  three analyzers while a fourth is stopped in mid-flush; everyone and 2,000 ranges")
    print("  asked: p99 at most 7 s, then normal")
    others = measure(postgres, MEETING, 1 / PER_S, seconds, stop_at_s)[:-1]
    spans = [span for one in others for span in one.spans]
    began_s = min(due for due, _ in spans)
    stopped_s = began_s + stop_at_s
    after_s = min(10.0, (seconds - stop_at_s) / 2)
    periods = {"before": (began_s, stopped_s), f"the first {after_s:g} s": (stopped_s, stopped_s + after_s),
               "afterwards": (stopped_s + after_s, began_s + seconds)}  # fmt: skip
    for name, (from_s, to_s) in periods.items():
        waits_s = [after - due for due, after in spans if from_s <= due < to_s]
        print(
            f"    {name:16} {len(waits_s):5} flushes   p50 {median(waits_s or [0.0]):6.3f} s"
            f"   p99 {percentile(waits_s, 99):6.3f} s   max {max(waits_s, default=0.0):6.3f} s"
        )
    print(f"    failed and repeated: {sum(one.failed for one in others)}")


def _rate(run: Sequence[Flushes], seconds: float) -> float:
    """Returns the flushes per second of all analyzers together."""
    return sum(len(one.spans) for one in run) / seconds
