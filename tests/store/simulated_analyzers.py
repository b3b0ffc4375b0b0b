"""Analyzers that count a log in memory into one database, and are killed or cut off at a chosen step."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import sqlalchemy as sa

from analyzer.flush.flush_executors import InlineFlushes
from analyzer.flush.pipeline import FlushExecutor, Pipeline
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import NowMs
from analyzer.kernel.errors import AnalyzerError
from analyzer.kernel.model import Gap, Lag, Partition, Position, Record, Records, SourceItem
from analyzer.kernel.tables.schema import (
    day_counts,
    feed,
    feed_versions,
    lock_changes,
    lock_history,
    locks,
    metadata,
    offsets,
    plans,
    rejects,
    stretches,
    totals,
)
from analyzer.plan.mapping import Condition, SourceMapping, TextField, TimeField
from analyzer.plan.plan import make_plan
from analyzer.plan.proposals import Agreement
from tests.store.flushing import quota
from tests.support.counters import reference_counter
from tests.support.step_faults import Killed, watch_steps
from tests.support.stored_counts import stored_counts
from tests.support.tampered_tables import without_triggers

PARTS = tuple(Partition("cluster", "topic-id", number, "log", "access-log") for number in range(2))
MAPPING = SourceMapping(
    time=TimeField(("ts",), "ms"),
    caller=("api_key",),
    fields={"api_key": TextField(("key",)), "status": TextField(("status",))},
    deny_if=(Condition("status", ("429",)),),
)
PLAN = make_plan([], [], [quota(5), quota(3, name="strict")])
AT_ONCE = 6  # records of each partition, in one flush

# The caller of each record by partition, or a value that cannot be read. A gate had denied "acme!".
CALLERS = (
    ("acme", "ann", "acme", "{", "acme", "bob", "", "acme!", "acme", "ann", "acme!", "ann"),
    ("bob", "acme", "acme", "acme", "\x00", "ann", "acme", "acme!", "bob"),
)

Log = Mapping[Partition, list[Record]]


def log_of(now_s: int) -> Log:
    """Returns CALLERS as records of this time; offsets have holes, as behind the markers of transactions."""
    now_ms = now_s * 1000
    return {
        part: [Record(3 * n, now_ms, value_of(name, now_ms - 1000)) for n, name in enumerate(names)]
        for part, names in zip(PARTS, CALLERS, strict=True)
    }


def value_of(name: str, time_ms: int) -> bytes | None:
    if name in {"{", "\x00"}:
        return name.encode()
    if not name:
        return None  # a tombstone
    return json.dumps(
        {"ts": time_ms, "key": name.rstrip("!"), "status": 429 if "!" in name else 200}
    ).encode()


@dataclass
class LogSource:
    """A `Source` that reads `log` from the stored positions on, AT_ONCE records at a time."""

    store: SqlStore
    log: Log
    at: dict[Partition, int] = field(default_factory=dict)

    def take(self, timeout_s: float) -> Iterator[SourceItem]:
        if not self.at:
            stored = self.store.positions(self.log)
            self.at = {part: (stored.get(part) or self.begun(part)).next for part in self.log}
        for part, records in self.log.items():
            start = self.at[part]
            items = [record for record in records if record.offset >= start][:AT_ONCE]
            if items:
                self.at[part] = items[-1].offset + 1
                yield Records.of(part, start, self.at[part], items, resume_token=f"after {items[-1].offset}")

    def begun(self, part: Partition) -> Position:
        return self.store.begin(part, 0)

    def lags(self) -> dict[Partition, Lag]:
        return {part: Lag(self.log[part][-1].offset + 1 - offset, 0.0) for part, offset in self.at.items()}

    def positions(self) -> dict[Partition, int]:
        return dict(self.at)

    def at_end(self) -> bool:
        return bool(self.at) and not any(lag.records for lag in self.lags().values())

    def problems(self) -> dict[str, str]:
        return {}

    def rewind(self, parts: Collection[Partition] | None = None) -> None:
        self.at.clear()

    def stop(self, part: Partition, gap: Gap) -> None:
        raise AssertionError(f"{part}: {gap}")

    def stopped(self) -> dict[Partition, Gap]:
        return {}

    def acknowledge(self, stored: Mapping[Partition, int]) -> None: ...

    def close(self) -> None: ...


class Analyzer:
    """One analyzer process, from its start until it is killed or has read the log."""

    def __init__(
        self, engine: sa.Engine, log: Log, owner: str = "here", flushes: FlushExecutor | None = None
    ) -> None:
        engine.dispose()  # opens new connections; SQLAlchemy's cache of compiled statements may stay
        self.engine = engine
        self.flushes = flushes or InlineFlushes()
        self.store = SqlStore(engine, owner, random_mark=lambda: "mark")
        self.source = LogSource(self.store, log)

    def start(self, store: SqlStore | None = None) -> Pipeline:
        """Returns a pipeline that begins a flush in each round, unless one is in flight."""
        version = self.store.activate(PLAN)
        counter = reference_counter({"log": MAPPING}, PLAN.groupings, PLAN.meters)
        moments = iter(range(8_000))
        return Pipeline(
            self.source,
            counter,
            store or self.store,
            Agreement.of(version, PLAN),
            lambda: next(moments) / 8,
            executor=self.flushes,
        )

    def run(self, store: SqlStore | None = None) -> None:
        """Counts to the end of the log, and recovers from the errors that an analyzer recovers from."""
        pipeline = None
        for _ in range(100):
            try:
                pipeline = pipeline or self.start(store)
                pipeline.run_once()
                if self.source.at_end():
                    pipeline.collect()
            except AnalyzerError:
                if pipeline is not None:
                    pipeline.start_over()
            if self.source.at_end() and not (pipeline and pipeline.has_unstored):
                return
        raise AssertionError("the end of the log was not reached")


class FaultAt:
    """Counts the steps of an analyzer in its database, and raises an error at step `at`."""

    def __init__(self, at: int, error: Callable[[sa.Dialect], BaseException]) -> None:
        self.at = at
        self.error = error
        self.steps: list[str] = []

    @contextmanager
    def over(self, engine: sa.Engine) -> Iterator[None]:
        def step(what: str) -> None:
            self.step(engine.dialect, " ".join(what.split()[:3]))

        with pytest.MonkeyPatch.context() as patch:
            watch_steps(patch, engine, step)
            yield

    def step(self, dialect: sa.Dialect, what: str) -> None:
        self.steps.append(what)
        if len(self.steps) == self.at + 1:
            raise self.error(dialect)


def killed(_dialect: sa.Dialect) -> BaseException:
    return Killed()


# As texts: to make sixty statements takes longer than to execute them.
DELETIONS = [str(sa.delete(table)) for table in metadata.sorted_tables if table not in (feed, lock_history)]


def empty_tables(engine: sa.Engine) -> None:
    """Empties every table, so that the log can be counted again."""
    with without_triggers(engine) as db:
        if db.dialect.name == "postgresql":
            db.connection.driver_connection.execute("; ".join(DELETIONS))  # in one round trip
        else:
            for deletion in DELETIONS:
                db.exec_driver_sql(deletion)
        # The first row says since when it is complete.
        db.execute(sa.delete(lock_history).where(lock_history.c.scope != ""))
        db.execute(sa.update(lock_history).values(began_ms=NowMs()))
        db.execute(sa.update(feed).values(version=0, mark="mark", pruned_to=0))


def state(engine: sa.Engine) -> dict[str, object]:
    """Returns the contents that must not depend on how often an analyzer was killed."""
    with engine.connect() as db:

        def rows(table: sa.Table, *without: str) -> list[tuple[object, ...]]:
            chosen = [column for column in table.c if column.name not in without]
            return [tuple(row) for row in db.execute(sa.select(*chosen).order_by(*table.primary_key))]

        return {
            "buckets": [
                (
                    row.grouping,
                    row.meter,
                    row.width_s,
                    row.bucket_s,
                    row.key,
                    row.resource,
                    row.value,
                    row.denied,
                )
                for row in stored_counts(db)
            ],
            "days": rows(day_counts),
            "totals": rows(totals),
            "offsets and ledger": rows(offsets, "owner", "beat_ms"),
            "rejects": rows(rejects, "at_ms"),
            "locks": rows(locks, "began_ms"),
            "feed": rows(feed),
            "versions": rows(feed_versions, "at_ms"),
            "changes": rows(lock_changes, "began_ms"),
            "plans": rows(plans, "at_ms", "mark"),
            "stretches": rows(stretches, "mark"),
        }
