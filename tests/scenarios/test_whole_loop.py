"""The whole loop in one thread, under one clock: from a record to a refused request and back.

Once with flushes that commit before the next records are counted, and once after.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest
import sqlalchemy as sa

from analyzer.core.judging.plan import Plan, plan_of
from analyzer.core.judging.policies import Quota
from analyzer.core.judging.proposals import Agreement
from analyzer.core.judging.windows import Calendar
from analyzer.core.model import Counter, Gap, Lag, Partition, Record, Records, SourceItem
from analyzer.core.records.mapping import SourceMapping, TextField, TimeField
from analyzer.daemon import Daemon
from analyzer.flush_executors import InlineFlushes
from analyzer.jobs.upkeep_jobs import Retention, lock_jobs, upkeep_jobs
from analyzer.pipeline import FlushExecutor, Pipeline
from analyzer.store.database.engine import open_engine
from analyzer.store.database.migrate import upgrade
from analyzer.store.operations.upkeep import SqlUpkeep
from analyzer.store.transaction.gaps import SqlGaps
from analyzer.store.transaction.sql_store import SqlStore
from gatekeeper import Gate
from gatekeeper.testing import ManualClock
from tests.support.counters import reference_counter
from tests.support.flush_orders import LateFlushes
from tests.support.job_runners import runner_of
from tests.support.loop_observers import SilentObserver

PART = Partition("cluster", "topic-id", 0, "log", "access-log")
LIMIT = 5
PLAN = plan_of([], [], [Quota("hourly", LIMIT, Calendar("hour", "Asia/Kolkata"))])
MAPPING = SourceMapping(
    time=TimeField(("ts",), "ms"),
    caller=("api_key",),
    fields={"api_key": TextField(("key",)), "status": TextField(("status",))},
    deny_if=(("status", ("429",)),),
)


class Log:
    """A log of one partition in memory, and the source that reads it."""

    def __init__(self, store: SqlStore, clock: ManualClock) -> None:
        self.records: list[Record] = []
        self._store = store
        self._clock = clock
        self._next = store.begin(PART, 0).next

    def write(self, key: str, status: int = 200) -> None:
        now_ms = self._clock.wall_ns() // 1_000_000
        value = json.dumps({"ts": now_ms, "key": key, "status": status}).encode()
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

    def __init__(self, url: str, flushes: FlushExecutor) -> None:
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
            self._counter(PLAN),
            self.store,
            Agreement.of(self.store.activate(PLAN), PLAN),
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
        return reference_counter({"log": MAPPING}, plan.groupings, plan.meters)

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
        self.log.write(key, 200 if allowed else 429)
        return allowed

    def close(self) -> None:
        self.gate.close()
        self.engine.dispose()
        sa.event.remove(sa.Engine, "connect", self._use_manual_clock)


@pytest.fixture(params=[InlineFlushes, LateFlushes])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    url = f"sqlite:///{tmp_path}/gatelock.db"
    upgrade(url)
    world = World(url, request.param())
    yield world
    world.close()


def test_a_caller_is_refused_from_its_limit_until_the_window_ends(world: World) -> None:
    #   09:59:58          10:00 (Kolkata)                          11:00
    #      |  3 requests    |  5: the limit, refused from here on    |  allowed again
    world.gate.ready(1)
    assert [world.request("acme") for _ in range(3)] == [True] * 3
    world.pass_s(3)
    assert [world.request("acme") for _ in range(LIMIT)] == [True] * LIMIT
    assert world.request("ann")
    world.pass_s(0.7)  # one flush and one poll
    assert not world.request("acme")
    assert world.request("ann")
    decision = world.gate.check("api_key:acme")
    assert decision.policy == "hourly"
    assert decision.detail == "5 requests per hour (Asia/Kolkata), 5 counted"
    assert decision.until == datetime(2026, 11, 21, 5, 30, tzinfo=UTC)
    world.clock.jump(decision.retry_after or 0)
    assert world.gate.allow("api_key:acme")


def test_after_a_kill_counting_continues_from_what_was_stored(world: World) -> None:
    world.gate.ready(1)
    world.pass_s(3)
    for _ in range(LIMIT - 1):
        world.request("acme")
    world.pass_s(0.3)
    world.request("acme")
    list(world.log.take(0))  # read by the killed analyzer, and not stored
    world.restart_analyzer()
    world.pass_s(0.7)
    assert not world.gate.allow("api_key:acme")


def test_refused_requests_do_not_extend_a_lock_and_the_warden_ends_it(world: World) -> None:
    world.gate.ready(1)
    world.pass_s(3)
    for _ in range(LIMIT):
        world.request("acme")
    for _ in range(20):
        world.pass_s(1)
        world.request("acme")
    world.pass_s(0.2)
    with world.engine.connect() as db:
        assert db.execute(
            sa.text("select value_0, denied_0 from buckets where width_s = 60 order by bucket_s")
        ).all() == [(LIMIT, 20)]
    world.clock.jump(timedelta(hours=1).total_seconds())
    world.pass_s(2)
    with world.engine.connect() as db:
        assert db.execute(sa.text("select count(*) from locks")).scalar_one() == 0
        assert db.execute(sa.text("select op from lock_changes order by version")).scalars().all() == [
            "set",
            "clear",
        ]
    assert world.gate.allow("api_key:acme")


def test_rejected_records_are_logged_at_most_once_a_minute(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong mapping must not silently turn a whole log into dead letters."""
    for _ in range(3):
        world.log.records.append(Record(len(world.log.records), world.clock.wall_ns() // 1_000_000, b"{no"))
        world.pass_s(0.3)
    lines = [record.getMessage() for record in caplog.records if "rejected" in record.getMessage()]
    expected = "1 of 1 records were rejected (gatelock rejects list); the first is access-log[0]@0"
    assert lines == [f"{expected}: bad-json: b'{{no'"]
