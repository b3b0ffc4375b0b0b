"""The one place where parts are put together."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from random import Random

import sqlalchemy as sa

from analyzer.config.settings import Settings
from analyzer.config.tables.sources import SourceTable
from analyzer.core.counting.counter import PythonCounter
from analyzer.core.judging.plan import Plan
from analyzer.core.model import Counter
from analyzer.daemon import Daemon, LoopObserver
from analyzer.files import FollowedFile, ImportedFiles, OpenFiles
from analyzer.kafka import KafkaRecords
from analyzer.kafka.group.dead_members import client_id
from analyzer.pipeline import FlushPace, Pipeline
from analyzer.sources import CombinedSource, Source
from analyzer.store.database.engine import open_engine
from analyzer.store.database.revisions import require_head
from analyzer.store.operations.followed_partitions import leave_off
from analyzer.store.operations.upkeep import SqlUpkeep
from analyzer.store.transaction.gaps import SqlGaps
from analyzer.store.transaction.lock_feed import new_mark
from analyzer.store.transaction.sql_store import SqlStore
from analyzer.warden import Warden


@contextmanager
def opened(settings: Settings) -> Iterator[sa.Engine]:
    """The database, its tables of this version. Raises StoreAway, SchemaBehind."""
    require_head(settings.database.address)
    engine = open_engine(settings.database.address)
    try:
        yield engine
    finally:
        engine.dispose()


def owner_of(settings: Settings) -> str:
    """This process among others: a name for people, and its number."""
    return f"{settings.analyzer.name}:{os.getpid()}"


def build(settings: Settings, engine: sa.Engine, health: LoopObserver) -> Daemon:
    """The analyzer that follows every source of `settings`. Its plan is in force from now on.
    Raises StoreAway."""
    store = SqlStore(engine, owner_of(settings))
    leave_off(engine, settings.analyzer.name, {source.name for source in settings.sources})
    source = CombinedSource([*_topics(settings, store), *_files(settings, store)])
    return _daemon(settings, engine, store, source, health)


def build_import(
    settings: Settings, engine: sa.Engine, health: LoopObserver, source: str, files: Sequence[str | Path]
) -> tuple[Daemon, ImportedFiles]:
    """The same for files that are read once, as records of the source named `source`; turn the daemon until
    the files are done. Raises StoreAway."""
    store = SqlStore(engine, owner_of(settings))
    once = ImportedFiles(files, source, store)
    daemon = _daemon(settings, engine, store, once, health)
    # An old log would be rolled up while it is read: who imports it wants to look at it first.
    daemon.warden.tidied_s = inf
    return daemon, once


def _daemon(
    settings: Settings, engine: sa.Engine, store: SqlStore, source: Source, health: LoopObserver
) -> Daemon:
    mappings = settings.mappings()

    def counter_for(plan: Plan) -> Counter:
        return PythonCounter(mappings, plan.groupings, plan.meters)

    plan = settings.plan()
    pipeline = Pipeline(
        source=source,
        counter=counter_for(plan),
        store=store,
        plan=plan,
        version=store.activate(plan),
        uptime_s=time.monotonic,
        pace=FlushPace(flush_every_s=settings.analyzer.flush_every),
    )
    warden = Warden(
        SqlUpkeep(engine, owner_of(settings), new_mark),
        time.monotonic,
        minutes_kept_s=int(settings.analyzer.keep_minutes),
        quarters_kept_s=int(settings.analyzer.keep_quarters),
    )
    gaps = SqlGaps(engine, owner_of(settings))
    return Daemon(pipeline, warden, store.active, counter_for, health, Random(), gaps)  # noqa: S311 - jitter


def _topics(settings: Settings, store: SqlStore) -> list[Source]:
    """One client for all topics that begin at the same end."""
    begins: dict[str, list[SourceTable]] = {}
    for source in settings.sources:
        if source.topic is not None:
            begins.setdefault(source.start, []).append(source)
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
        for sources in begins.values()
    ]


def _files(settings: Settings, store: SqlStore) -> list[Source]:
    # Shared by all sources: without it, two logs with the same first bytes would be taken for one.
    held: OpenFiles = {}
    return [
        FollowedFile(Path(source.file), source.name, store, start=source.start, held=held)
        for source in settings.sources
        if source.file is not None
    ]
