"""An analyzer, a database and a gate in one thread, under one clock."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from random import Random

import sqlalchemy as sa

from analyzer.core.judging.plan import Plan
from analyzer.core.judging.proposals import Agreement
from analyzer.core.model import Counter, Gap, Lag, Partition, Record, Records, SourceItem
from analyzer.daemon import Daemon
from analyzer.jobs.upkeep_jobs import Retention, lock_jobs, upkeep_jobs
from analyzer.pipeline import FlushExecutor, Pipeline
from analyzer.store.database.engine import open_engine
from analyzer.store.operations.upkeep import SqlUpkeep
from analyzer.store.transaction.gaps import SqlGaps
from analyzer.store.transaction.sql_store import SqlStore
from gatekeeper import Gate
from gatekeeper.testing import ManualClock
from tests.support.counters import reference_counter
from tests.support.job_runners import runner_of
from tests.support.loop_observers import SilentObserver

PART = Partition("cluster", "topic-id", 0, "log", "access-log")


class Log:
    """A log of one partition in memory, and the source that reads it."""

    def __init__(self, store: SqlStore, clock: ManualClock) -> None:
        self.records: list[Record] = []
        self._store = store
        self._clock = clock
        self._next = store.begin(PART, 0).next

    def write(self, **fields: str | int) -> None:
        """Appends a request of now, with its time as `ts`."""
        now_ms = self._clock.wall_ns() // 1_000_000
        value = json.dumps({"ts": now_ms} | fields).encode()
        self.records.append(Record(len(self.records), now_ms, value))

    def take(self, timeout_s: float) -> Iterator[SourceItem]:
        start, self._next = self._next, len(self.records)
        if self._next > start:
            yield Records.of(PART, start, self._next, self.records[start:])

    def lags(self) -> Mapping[Partition, Lag]:
        return {PART: Lag(len(self.records) - self._next, 0.0)}

    def positions(self) -> Mapping[Partition, int]:
        return {PART: self._next}

    def problems(self) -> Mapping[str, str]:
        return {}

    def rewind(self, parts: Collection[Partition] | None = None) -> None:
        self._next = self._store.positions([PART])[PART].next

    def stop(self, part: Partition, gap: Gap) -> None:
        raise AssertionError(gap)

    def stopped(self) -> Mapping[Partition, Gap]:
        return {}

    def acknowledge(self, stored: Mapping[Partition, int]) -> None:
        pass

    def close(self) -> None:
        pass


class FailOnOutage(SilentObserver):
    """Lets an outage fail the test."""

    def dependency_failed(self, dependency: str, error: str) -> None:
        raise AssertionError(error)


class World:
    """An analyzer, a database and a gate on one manual clock."""

    def __init__(self, url: str, flushes: FlushExecutor, plan: Plan) -> None:
        self.plan = plan  # has one source, "log"
        # 10:00 in Kolkata is 04:30 UTC: its hours begin at half past.
        self.clock = ManualClock(datetime(2026, 11, 21, 4, 29, 58, tzinfo=UTC))
        sa.event.listen(
            sa.Engine, "connect", self._use_manual_clock
        )  # the analyzer's database and the gate's
        self.engine = open_engine(url)
        self.flushes = flushes
        self.store = SqlStore(
            self.engine, "analyzer", random_mark=lambda: f"{self.random.getrandbits(32):08x}"
        )
        self.random = Random(7)
        self.log = Log(self.store, self.clock)
        self.gate = Gate(url, clock=self.clock)
        self.daemon = self._daemon()

    def _use_manual_clock(self, connection: object, _record: object) -> None:
        days = lambda *_: self.clock.wall_ns() / 86_400e9 + 2_440_587.5  # noqa: E731 - a function for SQL
        connection.create_function("julianday", -1, days)

    def _daemon(self) -> Daemon:
        pipeline = Pipeline(
            self.log,
            self._counter(self.plan),
            self.store,
            Agreement.of(self.store.activate(self.plan), self.plan),
            self.clock.uptime_s,
            executor=self.flushes,
        )
        upkeep = SqlUpkeep(self.engine, "analyzer", lambda: "mark")
        jobs = [*lock_jobs(upkeep, lambda _: None), *upkeep_jobs(upkeep, Retention())]
        runner = runner_of(jobs, upkeep, self.engine, self.clock.uptime_s)
        gaps = SqlGaps(self.engine, "analyzer")

        def agree() -> Agreement:
            return Agreement.of(*self.store.active_plan())

        return Daemon(pipeline, agree, self._counter, FailOnOutage(), self.random, gaps, [runner])

    def _counter(self, plan: Plan) -> Counter:
        return reference_counter(plan.sources, plan.groupings, plan.meters)

    def restart_analyzer(self) -> None:
        """Continues with a new analyzer that has nothing but what the old one stored, as after SIGKILL."""
        self.log.rewind()
        self.daemon = self._daemon()

    def pass_s(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            self.daemon.run_once()
            self.daemon.run_jobs_once()
            self.clock.advance(0.1)

    def request(self, key: str) -> bool:
        """Sends a request: the gate decides, and the answer is written to the log."""
        allowed = self.gate.allow(f"api_key:{key}")
        self.log.write(key=key, status=200 if allowed else 429)
        return allowed

    def close(self) -> None:
        self.gate.close()
        self.engine.dispose()
        sa.event.remove(sa.Engine, "connect", self._use_manual_clock)
