"""Analyzers with separate configurations on one database, in one thread."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from random import Random
from typing import Any

import sqlalchemy as sa
from msgspec.structs import replace

from analyzer.build import new_counter
from analyzer.counting.gaps import SqlGaps
from analyzer.daemon import Daemon
from analyzer.flush.analyzers import AnalyzerFile, SqlAgreement
from analyzer.flush.flush_executors import InlineFlushes
from analyzer.flush.pipeline import FlushExecutor, Pipeline
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.model import Gap, Lag, Partition, Record, Records, SourceItem
from analyzer.kernel.tables.schema import analyzers, offsets, stretches
from analyzer.plan.mapping import SourceMapping, TextField, TimeField
from analyzer.plan.plan import Plan, make_plan
from analyzer.plan.policies import Quota
from tests.store.flushing import locked, quota
from tests.store.simulated_analyzers import value_of
from tests.support.loop_observers import SilentObserver
from tests.support.upkeep import Upkeep

BY_KEY = SourceMapping(
    time=TimeField(("ts",), "ms"), caller=("api_key",), fields={"api_key": TextField(("key",))}
)
# Counts a caller where BY_KEY finds none, and the other way round.
BY_NAME = SourceMapping(
    time=TimeField(("ts",), "ms"), caller=("api_key",), fields={"api_key": TextField(("name",))}
)
# Counts the same callers as BY_KEY.
WITH_STATUS = replace(BY_KEY, fields={**BY_KEY.fields, "status": TextField(("status",))})


def file_of(*policies: Quota, sources: Mapping[str, SourceMapping] | None = None, **rest: Any) -> Plan:
    """Returns what a configuration says."""
    return make_plan(rest.get("groupings", []), rest.get("meters", []), policies, sources or {"log": BY_KEY})


def limit(number: int) -> Plan:
    return file_of(quota(number))


class GivenRecords:
    """A `Source` of one partition that has what a test gave it."""

    def __init__(self, store: SqlStore, part: Partition, log: list[Record]) -> None:
        self.part, self.log = part, log
        self.is_closed = False
        self._store = store
        self._at: int | None = None

    def take(self, _timeout_s: float) -> Iterator[SourceItem]:
        if self._at is None:
            stored = self._store.positions([self.part]).get(self.part)
            self._at = (stored or self._store.begin(self.part, 0)).next
        items = self.log[self._at :]
        if items:
            start, self._at = self._at, len(self.log)
            yield Records.of(self.part, start, self._at, items)

    def lags(self) -> dict[Partition, Lag]:
        return {} if self._at is None else {self.part: Lag(len(self.log) - self._at, 0.0)}

    def positions(self) -> dict[Partition, int]:
        return {} if self._at is None else {self.part: self._at}

    def problems(self) -> dict[str, str]:
        return {}

    def rewind(self, _parts: Collection[Partition] | None = None) -> None:
        self._at = None

    def stop(self, part: Partition, gap: Gap) -> None:
        raise AssertionError(f"{part}: {gap}")

    def stopped(self) -> dict[Partition, Gap]:
        return {}

    def acknowledge(self, _stored: Mapping[Partition, int]) -> None: ...

    def close(self) -> None:
        self.is_closed = True


class FleetAnalyzer:
    """One process of an analyzer, from its start."""

    def __init__(
        self,
        fleet: Fleet,
        name: str,
        file: Plan,
        number: int,
        *,
        is_applied: bool,
        flushes: FlushExecutor | None = None,
    ) -> None:
        self.engine = fleet.new_engine()
        self.uptime_s = 100.0
        self.problems: dict[str, str] = {}
        store = SqlStore(self.engine, f"{name}:1")
        [source] = file.sources
        part = Partition("cluster", "topic-id", number, source, "access-log")
        agreement = SqlAgreement(
            self.engine, f"{name}:1", AnalyzerFile(name, file, is_applied=is_applied), lambda: "mark"
        )
        self.agreement = agreement.agree()  # when it started

        self._own, self._edited = file.sources, file

        def counter_for(plan: Plan) -> Any:
            return new_counter(plan.with_sources(dict(self._own) | dict(plan.sources)))

        def take_configuration() -> bool:
            self._own = self._edited.sources
            return agreement.propose(self._edited)

        def open_source() -> GivenRecords:
            self.source = GivenRecords(store, part, fleet.log(number))
            return self.source

        pipeline = Pipeline(
            open_source(),
            counter_for(self.agreement.plan),
            store,
            self.agreement,
            lambda: self.uptime_s,
            executor=flushes or InlineFlushes(),
        )
        gaps = SqlGaps(self.engine, name)
        self.daemon = Daemon(pipeline, agreement.agree, counter_for, self, Random(1), gaps)  # type: ignore[arg-type]  # the observer
        self.daemon.beat, self.daemon.open_source = agreement.beat, open_source
        self.daemon.take_configuration = take_configuration

    def __getattr__(self, name: str) -> Any:
        """Observes the loop."""
        return getattr(SilentObserver(), name)

    def dependency_failed(self, dependency: str, error: str) -> None:
        self.problems[dependency] = error

    def dependency_recovered(self, dependency: str) -> None:
        self.problems.pop(dependency, None)

    def edit(self, file: Plan) -> None:
        """Changes its file, which it reads again at once."""
        self._edited = file

    @property
    def plan(self) -> Plan:
        return self.daemon.pipeline.plan

    @property
    def notes(self) -> Sequence[str]:
        return self.daemon.pipeline.agreement.notes

    def run(self, seconds: float = 1.0) -> None:
        for _ in range(4):
            self.uptime_s += seconds / 4
            self.daemon.run_once()


class Fleet:
    """The analyzers of one database, each with a separate partition, and a warden."""

    def __init__(self, new_engine: Callable[[], sa.Engine]) -> None:
        self.new_engine = new_engine
        self.engine = new_engine()
        self.store = SqlStore(self.engine, "operator:1")
        self._logs: dict[int, list[Record]] = {}
        with self.engine.connect() as db:
            self.now_ms = clock_ms(db)

    def start(
        self,
        name: str,
        file: Plan,
        number: int = 0,
        *,
        is_applied: bool = False,
        flushes: FlushExecutor | None = None,
    ) -> FleetAnalyzer:
        return FleetAnalyzer(self, name, file, number, is_applied=is_applied, flushes=flushes)

    def log(self, number: int) -> list[Record]:
        return self._logs.setdefault(number, [])

    def give(self, caller: str, times: int, number: int = 0) -> None:
        """Appends requests of a caller to a partition's log."""
        log = self.log(number)
        for _ in range(times):
            log.append(Record(len(log), self.now_ms, value_of(caller, self.now_ms)))

    def count(self, analyzer: FleetAnalyzer, caller: str, times: int, number: int = 0) -> None:
        """Has an analyzer count requests, and the warden do what is due."""
        self.give(caller, times, number)
        analyzer.run()
        self.end_activation()

    def end_activation(self) -> None:
        upkeep = Upkeep(self.engine, lambda: "mark")
        while upkeep.step("activation"):
            pass

    def pass_minutes(self, name: str, minutes: float = 2.0) -> None:
        """Makes the last heartbeats of an analyzer older."""
        with self.engine.begin() as db:
            by_ms = int(minutes * 60_000)
            older = {"beat_ms": analyzers.c.beat_ms - by_ms}
            db.execute(sa.update(analyzers).where(analyzers.c.name == name).values(older))
            owned = offsets.c.owner == f"{name}:1"
            db.execute(sa.update(offsets).where(owned).values(beat_ms=offsets.c.beat_ms - by_ms))

    @property
    def limit(self) -> int:
        """The limit in force."""
        policy = self.store.active_plan()[1].policy("daily")
        assert isinstance(policy, Quota)
        return policy.limit

    @property
    def version(self) -> int:
        return self.store.active_plan()[0]

    def is_locked(self, caller: str) -> bool:
        return any(key == f"api_key:{caller}" for key, _ in locked(self.engine))

    def stretches(self, number: int = 0) -> list[tuple[int, int]]:
        """Returns (first offset, version of the plan) of a partition."""
        columns = (stretches.c.start, stretches.c.plan)
        with self.engine.connect() as db:
            rows = db.execute(
                sa.select(*columns).where(stretches.c.partition == number).order_by(stretches.c.start)
            )
            return [(start, plan) for start, plan in rows]
