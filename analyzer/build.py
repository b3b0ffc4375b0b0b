"""Assembles the analyzer and its commands from their parts; the only place that does."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Protocol

import sqlalchemy as sa

from analyzer.config.settings import Settings
from analyzer.config.tables.sources import SourceTable
from analyzer.core.counting.counter import PythonCounter
from analyzer.core.judging.plan import Plan
from analyzer.core.model import Counter
from analyzer.core.records.mapping import SourceMapping
from analyzer.daemon import Daemon, LoopObserver
from analyzer.files import FollowedFile, ImportedFiles, OpenFiles
from analyzer.flush_executors import FlushThread
from analyzer.jobs.job_runner import Job, JobObserver, JobRunner
from analyzer.jobs.upkeep_jobs import LEASE, Retention, lock_jobs, upkeep_jobs
from analyzer.pipeline import FlushPace, Pipeline
from analyzer.retry import RejectRetry, without_limits
from analyzer.sources import CombinedSource, Source
from analyzer.store.database.engine import open_engine
from analyzer.store.database.migrate import require_head
from analyzer.store.operations.followed_partitions import release_removed
from analyzer.store.operations.job_outcomes import SqlJobOutcomes
from analyzer.store.operations.rejects import SqlRejects
from analyzer.store.operations.upkeep import SqlUpkeep
from analyzer.store.transaction.gaps import SqlGaps
from analyzer.store.transaction.lock_feed import new_mark
from analyzer.store.transaction.sql_store import SqlStore
from gatekeeper.model import Change

# A step of upkeep may take longer than a flush, whose time-out bounds how long counting pauses.
UPKEEP_STATEMENT_MS = 60_000


class Observer(LoopObserver, JobObserver, Protocol):
    """Receives the events of the loop and of the jobs."""

    def locks_ended(self, changes: Sequence[Change]) -> None: ...


@contextmanager
def opened(settings: Settings) -> Iterator[sa.Engine]:
    """Opens the database; creates the tables in an empty one. Raises StoreAway, SchemaBehind."""
    require_head(settings.database.address)
    engine = open_engine(settings.database.address)
    try:
        yield engine
    finally:
        engine.dispose()


def owner_of(settings: Settings) -> str:
    """Returns the name of this process in the database: the configured name and the process id."""
    return f"{settings.analyzer.name}:{os.getpid()}"


def build(settings: Settings, engine: sa.Engine, health: Observer) -> Daemon:
    """Returns the analyzer that follows every source of `settings`, and puts its plan in force.

    Raises StoreAway.
    """
    flushes, store = _store(settings, engine)
    release_removed(engine, settings.analyzer.name, {source.name for source in settings.sources})
    source = CombinedSource([*_topics(settings, store), *_files(settings, store)])
    pace = FlushPace(flush_every_s=settings.analyzer.flush_every)
    daemon = _daemon(settings, engine, store, source, flushes, health, pace)
    daemon.job_runners = [_warden(settings, health), _upkeep(settings, health)]
    return daemon


def build_import(
    settings: Settings, engine: sa.Engine, health: Observer, source: str, files: Sequence[str | Path]
) -> tuple[Daemon, ImportedFiles]:
    """Returns an analyzer that reads `files` once, as records of the source named `source`, and its source.

    Run the daemon until the files are done. Raises StoreAway.
    """
    flushes, store = _store(settings, engine)
    imported = ImportedFiles(files, source, store)
    # No gate waits for the locks of an old log, so flushes are large from the beginning. They are not larger
    # than a backlog's: a log is in order of time, so few lines that are further apart share a row.
    pace = FlushPace(flush_every_s=settings.analyzer.flush_every, behind_after_s=0.0)
    daemon = _daemon(settings, engine, store, imported, flushes, health, pace)
    # No upkeep: an old log would be rolled up while it is read, before its minutes could be reported.
    daemon.job_runners = [_warden(settings, health)]
    return daemon, imported


def build_retry(settings: Settings, engine: sa.Engine) -> RejectRetry:
    """Returns the retry of rejected records, by the mappings and the plan of `settings`."""
    mappings, plan = without_limits(settings.mappings()), settings.plan()
    return RejectRetry(SqlRejects(engine), plan, set(mappings), lambda: new_counter(mappings, plan))


def new_counter(mappings: Mapping[str, SourceMapping], plan: Plan) -> Counter:
    """Returns an empty counter for `plan`."""
    return PythonCounter(mappings, plan.groupings, plan.meters)


def _store(settings: Settings, engine: sa.Engine) -> tuple[FlushThread, SqlStore]:
    """Returns the thread of the flushes, and a store whose positions wait for them."""
    flushes = FlushThread()
    return flushes, SqlStore(engine, owner_of(settings), wait_for_flush=flushes.wait)


def _daemon(
    settings: Settings,
    engine: sa.Engine,
    store: SqlStore,
    source: Source,
    flushes: FlushThread,
    health: Observer,
    pace: FlushPace,
) -> Daemon:
    mappings = settings.mappings()
    counter_for = partial(new_counter, mappings)
    plan = settings.plan()
    pipeline = Pipeline(
        source=source,
        counter=counter_for(plan),
        store=store,
        plan=plan,
        version=store.activate(plan),
        uptime_s=time.monotonic,
        pace=pace,
        executor=flushes,
    )
    gaps = SqlGaps(engine, owner_of(settings))
    return Daemon(pipeline, store.active_plan, counter_for, health, Random(), gaps)  # noqa: S311 - jitter


def _warden(settings: Settings, health: Observer) -> JobRunner:
    engine = open_engine(settings.database.address)
    upkeep = SqlUpkeep(engine, owner_of(settings), new_mark)
    return _runner("warden", settings, engine, upkeep, lock_jobs(upkeep, health.locks_ended), health)


def _upkeep(settings: Settings, health: Observer) -> JobRunner:
    engine = open_engine(settings.database.address, statement_ms=UPKEEP_STATEMENT_MS)
    upkeep = SqlUpkeep(engine, owner_of(settings), new_mark)
    analyzer = settings.analyzer
    kept = Retention(
        minutes_s=int(analyzer.keep_minutes),
        quarters_s=int(analyzer.keep_quarters),
        days_s=int(analyzer.keep_days),
        fold_requests=analyzer.fold_requests,
    )
    return _runner("upkeep", settings, engine, upkeep, upkeep_jobs(upkeep, kept), health)


def _runner(
    name: str,
    settings: Settings,
    engine: sa.Engine,
    upkeep: SqlUpkeep,
    jobs: Sequence[Job],
    health: Observer,
) -> JobRunner:
    """Returns a runner with separate connections, which it closes."""
    return JobRunner(
        name=name,
        jobs=jobs,
        lease=LEASE,
        leases=upkeep,
        outcomes=SqlJobOutcomes(engine, owner_of(settings)),
        observer=health,
        uptime_s=time.monotonic,
        random=Random(),  # noqa: S311 - jitter
        disconnect=engine.dispose,
    )


def _topics(settings: Settings, store: SqlStore) -> list[Source]:
    """Returns one Kafka source per start position, for all topics that have it."""
    # kafka-python takes a tenth of a second to import, which an import of files does not need.
    from analyzer.kafka import KafkaRecords
    from analyzer.kafka.group.dead_members import client_id

    sources_by_start: dict[str, list[SourceTable]] = {}
    for source in settings.sources:
        if source.topic is not None:
            sources_by_start.setdefault(source.start, []).append(source)
    kafka = settings.kafka
    return [
        KafkaRecords(
            {source.topic: source.name for source in sources if source.topic is not None},
            store,
            group_id=kafka.group_id,
            assign=kafka.assign,
            start=sources[0].start,
            session_timeout_s=kafka.session_timeout,
            options={"client_id": client_id(settings.analyzer.name), **kafka.client()},
        )
        for sources in sources_by_start.values()
    ]


def _files(settings: Settings, store: SqlStore) -> list[Source]:
    # Shared by all sources: without it, two logs with the same first bytes would be taken for one.
    open_files: OpenFiles = {}
    return [
        FollowedFile(Path(source.file), source.name, store, start=source.start, open_files=open_files)
        for source in settings.sources
        if source.file is not None
    ]
