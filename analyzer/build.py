"""Assembles the analyzer and its commands from their parts; the only place that does."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple, Protocol

import sqlalchemy as sa

from analyzer.billing.days.closing import Billing, DayClosing
from analyzer.billing.days.targets import AskEnds
from analyzer.config.reload import ConfigurationReader, plan_while_running
from analyzer.config.settings import Settings
from analyzer.config.tables.sources import SourceTable
from analyzer.counting.counter.counter import PythonCounter
from analyzer.counting.gaps import SqlGaps
from analyzer.counting.measured_delays import MeasuredDelays
from analyzer.counting.records.forgotten_callers import ForgottenCallers
from analyzer.daemon import Daemon, LoopObserver, log_notes
from analyzer.flush.analyzers import AnalyzerFile, SqlAgreement, agree_on_source, differing_sources
from analyzer.flush.flush_executors import FlushThread
from analyzer.flush.followed_partitions import release_removed, rename_sources
from analyzer.flush.pipeline import FlushPace, Pipeline
from analyzer.flush.rejects import SqlRejects
from analyzer.flush.retry import RejectRetry, without_limits
from analyzer.flush.sql_store import SqlStore
from analyzer.judging.judge import Judged
from analyzer.judging.locks.lock_feed import new_mark
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.sql.plans import plan_in_force
from analyzer.kernel.database.chain import signed
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.database.installation_secrets import EVENT_IDS, REFERENCES, ensure_secret
from analyzer.kernel.database.migrate import require_head
from analyzer.kernel.errors import CannotCount, DeliveryFailed, ReplayRefused
from analyzer.kernel.model import Counter, Partition, process_name
from analyzer.kernel.secrets import masked
from analyzer.maintenance.failing_jobs import JobObserver
from analyzer.maintenance.job_runner import JobRunner
from analyzer.maintenance.job_scheduler import JobScheduler
from analyzer.maintenance.job_table import (
    LANES,
    LOCKS,
    JobContext,
    Lane,
    Work,
    new_runner,
)
from analyzer.plan.mapping import SourceMapping
from analyzer.plan.meters import built_in_meters
from analyzer.plan.plan import Plan
from analyzer.plan.proposals import Agreement
from analyzer.plan.value_rules import SecretMissing
from analyzer.sources.files import FollowedFile, ImportedFiles, OpenFiles, shown_path
from analyzer.sources.positions import CombinedSource, Source
from gatekeeper.identity import NameDigest
from gatekeeper.sources.timed_connection import parse_server_url

if TYPE_CHECKING:
    from analyzer.billing.day_recount import DayRecount
    from analyzer.billing.days.counted_again import CountedAgain
    from analyzer.billing.days.day_rows import Day
    from analyzer.replay.replay_run import LogReplay
    from analyzer.restore.restore_run import Restore

log = logging.getLogger(__name__)


Watch = Callable[[sa.Engine], Work]  # makes the job that looks for problems


class Observer(LoopObserver, JobObserver, Protocol):
    """Receives the events of the loop and of the jobs."""

    def judged(self, judged: Judged, cause: str) -> None: ...


class MeasuringObserver(Observer, Protocol):
    """Also measures delays and clocks, which the analyzer stores with its heartbeats."""

    @property
    def problems(self) -> Mapping[str, str]:
        """Problems of the loop: a sentence for each, by its name."""

    @property
    def measured(self) -> MeasuredDelays:
        """Delays and clocks by the flushes of the last minutes."""


@contextmanager
def opened(
    settings: Settings, open_database: Callable[[str], sa.Engine] = open_engine
) -> Iterator[sa.Engine]:
    """Opens the database; creates the tables in an empty one. Raises StoreAway, SchemaBehind."""
    if created := require_head(settings.database.address):
        log.info("empty database %s: created %s", settings.database.shown, ", ".join(created))
    engine = signed(open_database(settings.database.address), settings.signer())
    try:
        yield engine
    finally:
        engine.dispose()


def owner_name(settings: Settings) -> str:
    """Returns the name of this process in the database: the configured name and the process id."""
    return process_name(settings.analyzer.name, os.getpid())


def build(
    settings: Settings,
    engine: sa.Engine,
    health: MeasuringObserver,
    *,
    is_applied: bool = False,
    reader: ConfigurationReader | None = None,
    watch: Watch | None = None,
) -> Daemon:
    """Returns the analyzer that follows every source of `settings`.

    It counts by the plan in force, and proposes its configuration; with `is_applied`, all of it comes in
    force with the first records. It proposes what `reader` has read again.
    `watch` looks for problems. Raises StoreAway, SchemaBehind.
    """
    flushes, store = _store(settings, engine)
    rename_sources(engine, _streams(settings), settings.analyzer.name)
    release_removed(engine, settings.analyzer.name, {source.name for source in settings.sources})

    def open_source() -> Source:
        return CombinedSource([*_topics(settings, store), *_files(settings, store)])

    plans = SqlAgreement(
        engine, owner_name(settings), _analyzer_file(settings, is_applied=is_applied), new_mark
    )
    agreement = plans.agree()
    log_notes(agreement)
    pace = FlushPace(flush_every_s=settings.analyzer.flush_every)
    own = OwnSources(settings, engine)
    daemon = _daemon(
        settings, engine, store, open_source(), flushes, health, pace, agreement, plans.agree, own.counter_for
    )
    daemon.open_source = open_source
    daemon.beat = lambda: plans.beat(
        health.measured, "" if reader is None else reader.refusal, _own_problems(daemon, health)
    )
    if reader is not None:
        add_reload(daemon, settings, plans, own, reader, health)
    daemon.jobs = job_scheduler(settings, health, watch)
    return daemon


def _own_problems(daemon: Daemon, health: MeasuringObserver) -> dict[str, str]:
    """Returns the problems that only this process can see: stopped partitions are stored as gaps."""
    source = daemon.pipeline.source
    stopped = {str(part) for part in source.stopped()}
    problems = {**source.problems(), **health.problems}
    problems.pop("partitions", None)  # none is assigned yet: a start, or a spare analyzer
    return {name: masked(sentence) for name, sentence in problems.items() if name not in stopped}


def build_import(
    settings: Settings,
    engine: sa.Engine,
    health: Observer,
    source: str,
    files: Sequence[str | Path],
    host: str | None = None,
) -> tuple[Daemon, ImportedFiles]:
    """Returns an analyzer that reads `files` once, as records of the source named `source`, and its source.

    It counts by the plan in force, and adds the source if the plan lacks it. `host` is the machine that
    wrote the files; None: that of the source. Run the daemon until the files are done. Raises SourceDiffers
    when the plan has another mapping of the source; StoreAway, SchemaBehind.
    """
    flushes, store = _store(settings, engine)

    def agree() -> Agreement:
        return agree_on_source(engine, owner_name(settings), settings.plan(), source)

    agreement = agree()
    log_notes(agreement)
    if host is None:
        host = next((configured.host for configured in settings.sources if configured.name == source), None)
    imported = ImportedFiles(files, source, store, host=host or "", wall_ms=wall_ms)
    # No gate waits for the locks of an old log, so flushes are large from the beginning. They are not larger
    # than a backlog's: a log is in order of time, so few lines that are further apart share a row.
    pace = FlushPace(flush_every_s=settings.analyzer.flush_every, behind_after_s=0.0)
    counter_for = OwnSources(settings, engine).counter_for
    daemon = _daemon(settings, engine, store, imported, flushes, health, pace, agreement, agree, counter_for)
    # No upkeep: an old log would be rolled up while it is read, before its minutes could be reported.
    daemon.jobs = JobScheduler([_job_runner(settings, health, LOCKS)])
    return daemon, imported


def build_retry(settings: Settings, engine: sa.Engine) -> RejectRetry:
    """Returns the retry of rejected records, by the plan in force. Raises StoreAway, SchemaBehind."""
    file = settings.plan()
    plan = plan_in_force(engine) or file
    added = {name: mapping for name, mapping in file.sources.items() if name not in plan.sources}
    # Transactions have no place for counts with a weight or an id before its source is in the plan.
    unplaced = {name for name, mapping in added.items() if built_in_meters([mapping])}
    placed = {name: mapping for name, mapping in added.items() if name not in unplaced}
    by = plan.with_sources(without_limits(placed | dict(plan.sources)))
    secrets = counter_secrets(engine, by)
    return RejectRetry(
        SqlRejects(engine),
        plan,
        set(by.sources),
        lambda: new_counter(by, name_digests(settings), secrets),
        differing_sources(plan, file) | unplaced,
        {name for name, mapping in by.sources.items() if mapping.event_ids is not None},
    )


def build_replay(settings: Settings, engine: sa.Engine, source: str) -> LogReplay:
    """Returns the replay of logs of a source, by the plan in force.

    Raises ReplayRefused when the configuration reads the source in another way; StoreAway, SchemaBehind.
    """
    # kafka-python takes a tenth of a second to import, which other commands need not wait for.
    from analyzer.replay.replay_run import LogReplay, ReplayPlan

    in_force = ReplayPlan.read(engine)
    if source not in in_force.plan.sources or source in differing_sources(in_force.plan, settings.plan()):
        raise ReplayRefused(
            f"the configuration reads {source} in another way than the plan in force: put it in force first, "
            "in the file of an analyzer or by `gatelock policies apply`"
        )
    host = next((configured.host for configured in settings.sources if configured.name == source), None)
    return LogReplay(
        engine,
        in_force,
        source,
        lambda plan: new_counter(plan, name_digests(settings), counter_secrets(engine, plan)),
        settings.kafka.client(),
        SqlStore(engine, owner_name(settings)),
        host or "",
        wall_ms,
    )


def build_restore(settings: Settings, engine: sa.Engine) -> Restore:
    """Returns what closes days again after a restore, by the plan in force."""
    # kafka-python takes a tenth of a second to import, which other commands need not wait for.
    from analyzer.restore.restore_run import Restore, RestoreParts, SourceOfLog

    owner, billing = owner_name(settings), make_billing(settings)
    sources = {
        shown_path(source.topic or source.file or ""): SourceOfLog(source.name, source.host or "")
        for source in settings.sources
    }
    return Restore(
        RestoreParts(
            engine,
            DayClosing(engine, billing, ends_of_logs(settings), new_mark, wall_ms),
            billing.groupings,
            SqlStore(engine, owner, refute=lambda _db, _verdicts: set()),
            SqlStore(engine, owner),
            sources,
            settings.kafka.client(),
            settings.plan(),
            lambda plan: new_counter(plan, name_digests(settings), counter_secrets(engine, plan)),
            time.monotonic,
            owner,
        )
    )


def wall_ms() -> int:
    """Returns the time of this machine in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class CounterSecrets(NamedTuple):
    """Keys of the installation that a counter needs, empty where its plan does not use them.

    Attributes:
        ids: Of the hashes of ids.
        references: Of the references of forgotten callers.
    """

    ids: bytes = b""
    references: bytes = b""


NO_SECRETS = CounterSecrets()


def counter_secrets(engine: sa.Engine, plan: Plan) -> CounterSecrets:
    """Returns the keys that the plan is counted with. Raises StoreAway."""
    has_ids = any(mapping.event_ids for mapping in plan.sources.values())
    return CounterSecrets(
        ensure_secret(engine, EVENT_IDS) if has_ids else b"",
        ensure_secret(engine, REFERENCES) if plan.forgotten else b"",
    )


def new_counter(
    plan: Plan, digests: Iterable[NameDigest] = (), secrets: CounterSecrets = NO_SECRETS
) -> Counter:
    """Returns an empty counter for `plan`. Raises CannotCount when a digest of the plan is not there."""
    forgotten = ForgottenCallers(plan.forgotten, NameDigest(secrets.references)) if plan.forgotten else None
    try:
        return PythonCounter(
            plan.sources,
            plan.groupings,
            plan.meters,
            named_values=plan.named_values,
            slots=plan_sums(plan).slot_layouts,
            digests=digests,
            distinct=plan_sums(plan).distinct_layouts,
            id_secret=secrets.ids,
            forgotten=forgotten,
        )
    except SecretMissing as missing:
        raise CannotCount(f"{missing}: give this analyzer the same digest_secret as the others") from missing


def with_own_sources(plan: Plan, own: Mapping[str, SourceMapping]) -> Plan:
    """Returns the plan with exactly the sources `own`.

    What the plan lacks is counted by the configuration until it is added. Raises CannotCount for the first
    source with a weight or an id: flushes have no place for its counts before it is in the plan.
    """
    by = plan.with_sources({name: plan.sources.get(name, mapping) for name, mapping in own.items()})
    if len(by.bucket_meters) > len(plan.bucket_meters):
        raise CannotCount(
            "the plan in force has no weights or ids yet: upgrade analyzers of earlier versions first"
        )
    return by


class OwnSources:
    """The sources that a process follows, by its configuration.

    Args:
        settings: Of the start.
        engine: Has the keys that counters need.
    """

    def __init__(self, settings: Settings, engine: sa.Engine) -> None:
        self.mappings = settings.plan().sources
        self._digests = name_digests(settings)
        self._engine = engine

    def change(self, plan: Plan, digests: Sequence[NameDigest]) -> None:
        """Takes mappings and digests of a configuration that was read again.

        Digests of earlier ones are kept: the plan in force may name them until the new one replaces it.
        """
        self.mappings = plan.sources
        self._digests = [*digests, *(digest for digest in self._digests if digest not in digests)]

    def counter_for(self, plan: Plan) -> Counter:
        """Returns a counter for a plan in force or a proposal. Raises CannotCount, StoreAway."""
        # Sources of other machines may need secrets that are not here.
        by = with_own_sources(plan, self.mappings)
        return new_counter(by, self._digests, counter_secrets(self._engine, by))


def name_digests(settings: Settings) -> list[NameDigest]:
    """Returns the digests that fields may be counted by."""
    digest = settings.analyzer.digest
    return [] if digest is None else [digest]


def _analyzer_file(settings: Settings, *, is_applied: bool) -> AnalyzerFile:
    return AnalyzerFile(
        name=settings.analyzer.name,
        plan=settings.plan(),
        release=version("gatelock"),
        group_id=settings.kafka.group_id,
        topics=[source.topic for source in settings.sources if source.topic is not None],
        is_applied=is_applied,
    )


def _store(settings: Settings, engine: sa.Engine) -> tuple[FlushThread, SqlStore]:
    """Returns the thread of the flushes, and a store whose positions wait for them."""
    flushes = FlushThread()
    return flushes, SqlStore(engine, owner_name(settings), wait_for_flush=flushes.wait)


def _daemon(
    settings: Settings,
    engine: sa.Engine,
    store: SqlStore,
    source: Source,
    flushes: FlushThread,
    health: Observer,
    pace: FlushPace,
    agreement: Agreement,
    agree: Callable[[], Agreement],
    counter_for: Callable[[Plan], Counter],
) -> Daemon:
    pipeline = Pipeline(
        source=source,
        counter=counter_for(agreement.plan),
        store=store,
        agreement=agreement,
        uptime_s=time.monotonic,
        pace=pace,
        executor=flushes,
    )
    gaps = SqlGaps(engine, owner_name(settings))
    return Daemon(pipeline, agree, counter_for, health, Random(), gaps)  # noqa: S311 - jitter


def add_reload(
    daemon: Daemon,
    settings: Settings,
    plans: SqlAgreement,
    own: OwnSources,
    reader: ConfigurationReader,
    health: MeasuringObserver,
) -> None:
    """Has the daemon propose what `reader` accepts, and store what it refuses."""

    def take_configuration() -> bool:
        changed = reader.take()
        if changed is None:
            return False
        plan = plan_while_running(settings, changed, own.mappings)
        own.change(plan, name_digests(changed))
        return plans.propose(plan)

    daemon.take_configuration = take_configuration


def job_scheduler(
    settings: Settings, observer: Observer, watch: Watch | None = None, lanes: Sequence[Lane] | None = None
) -> JobScheduler:
    """Returns the jobs of some lanes, or of all, with separate connections for each, which it closes."""
    return JobScheduler([_job_runner(settings, observer, lane, watch) for lane in lanes or LANES])


def _job_runner(settings: Settings, observer: Observer, lane: Lane, watch: Watch | None = None) -> JobRunner:
    opened_engine = open_engine(
        settings.database.address, statement_ms=lane.statement_ms, busy_ms=lane.busy_ms
    )
    engine = signed(opened_engine, settings.signer())
    context = JobContext(
        engine,
        new_mark,
        owner_name(settings),
        settings.retention.kept,
        wall_ms=wall_ms,
        billing=make_billing(settings),
        ends_of_logs=ends_of_logs(settings),
        flush_every_s=settings.analyzer.flush_every,
        judged=observer.judged,
        watch=watch,
        live_usage=None if settings.billing.live is None else partial(_live_push, settings),
        alerts=partial(_alert_delivery, settings) if _has_destinations(settings) else None,
    )
    return new_runner(context, lane, observer, engine.dispose)


def make_billing(settings: Settings) -> Billing:
    """Returns which days are closed, and when."""
    billing = settings.billing
    again = None if billing.recount == "never" else partial(_count_again, settings)
    return Billing(billing.zones, billing.grace, billing.groupings, billing.key, again)


def _live_push(settings: Settings, engine: sa.Engine) -> Callable[[], int]:
    """Returns the step of the job that pushes to the service of `[billing.live]`."""
    from analyzer.billing.hand_over.billing_services import SERVICES
    from analyzer.billing.hand_over.deliveries import destination_name
    from analyzer.billing.hand_over.live_push import LiveDestination, LivePush
    from analyzer.billing.hand_over.prepared_events import EventNames
    from analyzer.billing.hand_over.usage_events import Customers, InvalidCustomers

    billing, live = settings.billing, settings.billing.live
    if live is None:
        return lambda: 0
    server = parse_server_url(live.to)
    token = "" if live.token_file is None else live.token_file.get_secret_value()
    destination = LiveDestination(
        destination_name(server, SERVICES[live.format].path, live.account, token),
        *(live.format, server, token, live.zone or billing.zones[0], live.by, live.every),
    )

    def names() -> EventNames:
        try:
            file = billing.customers_file
            customers = Customers() if file is None else Customers.read(file)
        except (InvalidCustomers, OSError, UnicodeDecodeError) as error:
            raise DeliveryFailed(f"[billing] customers_file: {error}") from error
        return EventNames(billing.events, settings.units(), customers)

    return LivePush(engine, destination, names, owner_name(settings), new_mark).step


def _has_destinations(settings: Settings) -> bool:
    """Whether this process sends alerts: those of its file, and those of customers' contacts."""
    return bool(settings.alerts) or "alerting" in settings.model_fields_set


def _alert_delivery(settings: Settings, engine: sa.Engine) -> Callable[[], int]:
    """Returns the step of the job that sends alerts."""
    from analyzer.alerts.deliverer import Deliverer
    from analyzer.config.alert_destinations import AlertDestinations

    made = AlertDestinations.of(settings, engine)
    random = Random().random  # noqa: S311 - jitter
    return Deliverer(engine, made.configured(), made.of_contact, made.link, random).step


def _count_again(
    settings: Settings, engine: sa.Engine, day: Day, advanced: Callable[[int], None]
) -> CountedAgain:
    from analyzer.billing.day_recount import count_again

    return count_again(engine, day, advanced, partial(second_count, settings))


def second_count(
    settings: Settings, engine: sa.Engine, day: Day, advanced: Callable[[int], None] = lambda _: None
) -> DayRecount:
    """Counts the log of a day again by the second counter; see `recount` for what it raises."""
    from analyzer.billing.day_recount import recount
    from analyzer.billing.dependent_readers import log_readers

    topics = {source.topic: source.name for source in settings.sources if source.topic is not None}
    secrets = {
        digest.fingerprint: digest.secret
        for digest in name_digests(settings)
        if isinstance(digest.secret, bytes)
    }
    return recount(engine, day, topics, settings.kafka.client(), secrets, log_readers(), advanced)


def ends_of_logs(settings: Settings) -> AskEnds:
    """Returns the function that asks Kafka for the ends of the topics of `settings`."""
    sources = {source.topic: source.name for source in settings.sources if source.topic is not None}

    def ask(followed: Sequence[Partition]) -> Mapping[Partition, int | None]:
        if not sources:
            return {}
        from analyzer.sources.kafka.probes.log_bounds import read_ends

        return read_ends(sources, followed, settings.kafka.client())

    return ask


def _streams(settings: Settings) -> dict[str, str]:
    """Returns the name of the source of each topic and file."""
    return {shown_path(source.topic or source.file or ""): source.name for source in settings.sources}


def _topics(settings: Settings, store: SqlStore) -> list[Source]:
    """Returns one Kafka source per start position, for all topics that have it."""
    # kafka-python takes a tenth of a second to import, which an import of files does not need.
    from analyzer.sources.kafka import KafkaRecords
    from analyzer.sources.kafka.group.dead_members import client_id

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
        FollowedFile(
            Path(source.file),
            source.name,
            store,
            start=source.start,
            open_files=open_files,
            host=source.host or "",
            wall_ms=wall_ms,
        )
        for source in settings.sources
        if source.file is not None
    ]
