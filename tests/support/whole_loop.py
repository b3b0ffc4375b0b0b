"""An analyzer, a database and a gate in one thread, under one clock."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import sqlalchemy as sa

from analyzer.counting.gaps import SqlGaps
from analyzer.daemon import Daemon
from analyzer.flush.pipeline import FlushExecutor, Pipeline
from analyzer.flush.sql_store import SqlStore
from analyzer.judging.plan_sums import plan_sums
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.model import Counter, Gap, Lag, Partition, Record, Records, SourceItem
from analyzer.maintenance.job_table import LOCKS, JobContext, new_jobs
from analyzer.plan.plan import Plan
from analyzer.plan.proposals import Agreement
from gatekeeper import Gate
from gatekeeper.sources.sql import SqlSource
from gatekeeper.testing import ManualClock
from tests.support.counters import reference_counter
from tests.support.job_runners import JobLoop, new_runner
from tests.support.loop_observers import SilentObserver
from tests.support.upkeep import upkeep_jobs

# 10:00 in Kolkata is 04:30 UTC: its hours begin at half past.
START = datetime(2026, 11, 21, 4, 29, 58, tzinfo=UTC)
PART = Partition("cluster", "topic-id", 0, "log", "access-log")
STEP_S = 0.2
TAKEN_MAX = 400  # records in a step: an analyzer that was away has a backlog for a while
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Log:
    """A log of one partition in memory, and the source that reads it."""

    def __init__(self, store: SqlStore, clock: ManualClock, source: str) -> None:
        self.part = PART._replace(source=source)
        self.records: list[Record] = []
        self.taken_max = TAKEN_MAX
        self._store = store
        self._clock = clock
        self._next = store.begin(self.part, 0).next

    def write(self, **fields: str | int) -> None:
        """Appends a request of now, with its time as `ts`."""
        now_ms = self._clock.wall_ns() // 1_000_000
        self.append(json.dumps({"ts": now_ms} | fields).encode(), now_ms)

    def append(self, value: bytes, kafka_ms: int) -> None:
        """Appends a record as it is."""
        self.records.append(Record(len(self.records), kafka_ms, value))

    def take(self, timeout_s: float) -> Iterator[SourceItem]:
        start, self._next = self._next, min(len(self.records), self._next + self.taken_max)
        if self._next > start:
            yield Records.of(self.part, start, self._next, self.records[start : self._next])

    def lags(self) -> Mapping[Partition, Lag]:
        left = self.records[self._next :]
        oldest_ms = next((record.kafka_ms for record in left if record.kafka_ms is not None), None)
        behind_s = 0.0 if oldest_ms is None else self._clock.wall_ns() / 1e9 - oldest_ms / 1000
        return {self.part: Lag(len(left), behind_s)}

    def positions(self) -> Mapping[Partition, int]:
        return {self.part: self._next}

    def problems(self) -> Mapping[str, str]:
        return {}

    def rewind(self, parts: Collection[Partition] | None = None) -> None:
        self._next = self._store.positions([self.part])[self.part].next

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


class OpenSource(SqlSource):
    """A gate's source on SQLite whose connection stays open between its fetches.

    To open one and read the schema takes a hundred times as long as the query. Gates do so, because their
    file may be replaced, and their process may fork.
    """

    def _open(self) -> sa.Engine:
        file = Path(str(sa.make_url(str(self._url)).database)).absolute()
        connect = partial(sqlite3.connect, f"{file.as_uri()}?mode=ro", uri=True, isolation_level=None)
        return sa.create_engine("sqlite://", creator=connect, poolclass=sa.StaticPool)


class DatabaseClock:
    """Has all databases of this process read a manual clock: SQLite by a function, PostgreSQL by the text."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def install(self) -> None:
        sa.event.listen(sa.Engine, "connect", self._set_julianday)
        sa.event.listen(sa.Engine, "before_cursor_execute", self._set_timestamp, retval=True)

    def remove(self) -> None:
        sa.event.remove(sa.Engine, "connect", self._set_julianday)
        sa.event.remove(sa.Engine, "before_cursor_execute", self._set_timestamp)

    def _set_julianday(self, connection: Any, _record: object) -> None:
        if hasattr(connection, "create_function"):
            days = lambda *_: self._clock.wall_ns() / 86_400e9 + 2_440_587.5  # noqa: E731 - a function for SQL
            connection.create_function("julianday", -1, days)

    def _set_timestamp(
        self, _db: object, _cursor: object, statement: str, parameters: Any, *_: object
    ) -> tuple[str, Any]:
        if "clock_timestamp()" in statement:
            now = EPOCH + timedelta(milliseconds=self._clock.wall_ns() // 1_000_000)
            literal = f"timestamptz '{now:%Y-%m-%d %H:%M:%S.%f+00}'"
            statement = statement.replace("clock_timestamp()", literal)
        return statement, parameters


class World:
    """An analyzer, a database and a gate on one manual clock.

    Args:
        url: Of a migrated database.
        flushes: Where flushes run.
        plan: Has one source.
        start: When the story begins.
        step_s: What passes between two turns of the analyzer; a story of minutes may take longer steps.
    """

    def __init__(
        self,
        url: str,
        flushes: FlushExecutor,
        plan: Plan,
        start: datetime = START,
        step_s: float = STEP_S,
    ) -> None:
        self.plan = plan
        self.step_s = step_s
        self.clock = ManualClock(start)
        self._database_clock = DatabaseClock(self.clock)
        self._database_clock.install()  # of the analyzer's connections and of the gate's
        self.engine = open_engine(url)
        self.flushes = flushes
        self.store = SqlStore(
            self.engine, "analyzer", random_mark=lambda: f"{self.random.getrandbits(32):08x}"
        )
        self.random = Random(7)
        [source] = plan.sources
        self.log = Log(self.store, self.clock, source)
        self._source = OpenSource(url) if url.startswith("sqlite") else SqlSource(url)
        self.gate = Gate(self._source, values=tuple(plan.named_values), clock=self.clock)
        self.daemon = self._daemon()

    def _daemon(self) -> Daemon:
        pipeline = Pipeline(
            self.log,
            self._counter(self.plan),
            self.store,
            Agreement.of(self.store.activate(self.plan), self.plan),
            self.clock.uptime_s,
            executor=self.flushes,
        )
        context = JobContext(self.engine, lambda: "mark")
        jobs = [*new_jobs(context, LOCKS), *upkeep_jobs(context)]
        self.jobs = JobLoop(new_runner(jobs, self.engine, self.clock.uptime_s))
        gaps = SqlGaps(self.engine, "analyzer")

        def agree() -> Agreement:
            return Agreement.of(*self.store.active_plan())

        return Daemon(pipeline, agree, self._counter, FailOnOutage(), self.random, gaps)

    def _counter(self, plan: Plan) -> Counter:
        return reference_counter(
            plan.sources,
            plan.groupings,
            plan.meters,
            named_values=plan.named_values,
            slots=plan_sums(plan).slot_layouts,
            distinct=plan_sums(plan).distinct_layouts,
        )

    def restart_analyzer(self) -> None:
        """Continues with a new analyzer that has nothing but what the old one stored, as after SIGKILL."""
        self.log.rewind()
        self.daemon = self._daemon()

    def pass_s(self, seconds: float) -> None:
        for _ in range(round(seconds / self.step_s)):
            self.step()

    def step(self, *, is_running: bool = True) -> None:
        """Lets the analyzer take, count and flush once, if it is running; a moment passes."""
        if is_running:
            self.daemon.run_once()
            self.jobs.run_once()
        self.clock.advance(self.step_s)

    def request(self, key: str) -> bool:
        """Sends a request: the gate decides, and the answer is written to the log."""
        allowed = self.gate.allow(f"api_key:{key}")
        self.log.write(key=key, status=200 if allowed else 429)
        return allowed

    def close(self) -> None:
        self.gate.close()
        self._source.close()
        self.engine.dispose()
        self._database_clock.remove()
