"""Analyzers of a simulation: the product's loop, jobs and store, with flushes as separate events."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from msgspec.structs import replace as replace_struct

from analyzer.build import new_counter
from analyzer.counting.gaps import SqlGaps
from analyzer.daemon import Daemon
from analyzer.flush.analyzers import AnalyzerFile, SqlAgreement
from analyzer.flush.pipeline import FLUSH_POLL_S, Pipeline
from analyzer.flush.sql_store import SqlStore
from analyzer.judging.plan_sums import plan_sums
from analyzer.kernel.errors import AnalyzerError
from analyzer.kernel.jobs.job_runs import SqlJobRuns
from analyzer.kernel.jobs.job_schedules import Schedule
from analyzer.kernel.kept_ages import Retention
from analyzer.maintenance.failing_jobs import FailingJobs
from analyzer.maintenance.job_runner import Job, JobRunner, RunEnd, RunInProgress
from analyzer.maintenance.job_table import LOCKS, judge_again, new_jobs
from analyzer.plan.mapping import (
    AddressField,
    Condition,
    NumberField,
    ResourceField,
    SourceMapping,
    TextField,
    TimeField,
)
from analyzer.plan.meters import DAY_S
from analyzer.plan.plan import Plan
from tests.simulation.database import SimulatedDatabase
from tests.simulation.kafka_log import SOURCE, SimulatedSource, Topic
from tests.simulation.policies.plans import RESOURCES
from tests.simulation.scheduler import Event, Process, Scheduler
from tests.support.flush_orders import LateFlush, LateFlushes
from tests.support.job_runners import SeenJobs
from tests.support.loop_observers import SilentObserver
from tests.support.step_faults import Killed
from tests.support.upkeep import PRUNING, Upkeep, upkeep_jobs

MAPPING = SourceMapping(
    time=TimeField(("ts",), "ms"),
    caller=("api_key",),
    fields={
        "api_key": TextField(("key",)),
        "status": TextField(("status",)),
        "policy": TextField(("policy",)),
        "resource": ResourceField(("path",), RESOURCES),
        "bytes": NumberField(("bytes",)),
        "address": AddressField(("address",)),
        "weight": NumberField(("weight",)),
    },
    weight="weight",
    deny_if=(Condition("status", ("429",)),),
)
CORRECTED = replace_struct(MAPPING, time=TimeField(("when",), "ms"))  # reads records of a wrong application
# Minutes are kept for longer than the longest window of the simulated policies,
# and for longer than the database's clock is ahead.
RETENTION = Retention(minutes_s=6 * DAY_S, quarters_s=9 * DAY_S, fold_requests=2)
LONG_RETENTION = Retention(minutes_s=6 * DAY_S, quarters_s=60 * DAY_S, fold_requests=2)  # of usual loads
FETCH_S = 0.02  # from a record's arrival to the poll that returns it
RESTART_S = 1.0  # until a supervisor starts a process again


class ScheduledFlush(LateFlush):
    """A flush that is an event. A caller that needs its outcome makes it happen at once."""

    def __init__(self, flush: Callable[[], Any], done: Callable[[], None]) -> None:
        super().__init__(flush, lambda: 1.0)
        self._done = done

    def result(self, timeout: float | None = None) -> Any:
        if timeout is not None and not self.done():
            raise TimeoutError
        return super().result()

    def run(self) -> None:
        if not self.done():
            super().run()
            self._done()


class ScheduledFlushes(LateFlushes):
    """A `FlushExecutor` whose flushes begin after a while."""

    def __init__(self, analyzer: SimulatedAnalyzer) -> None:
        super().__init__()
        self._analyzer = analyzer

    def submit(self, flush: Callable[[], Any], /) -> Future[Any]:
        assert self.latest is None or self.latest.done(), "two flushes in flight"
        self._analyzer.flushes += 1
        self.latest = ScheduledFlush(flush, lambda: self._analyzer.wake(0.0))
        self._analyzer.later(self._analyzer.commit_s(), "flush", self.latest.run)
        return self.latest

    def wait(self, _timeout_s: float | None = None) -> None:
        """Waits for the flush in flight, unless the analyzer's patience has ended."""
        if not self._analyzer.is_impatient:
            super().wait()

    def close(self) -> None:
        super().wait()


class Observer(SilentObserver, SeenJobs):
    """Records which jobs failed."""


class SimulatedAnalyzer:
    """One analyzer, again and again from its start to its end."""

    def __init__(
        self,
        name: str,
        plan: Plan,
        scheduler: Scheduler,
        database: SimulatedDatabase,
        topic: Topic,
        wall_s: Callable[[], float],
        new_mark: Callable[[], str],
        random: Random,
    ) -> None:
        self.name = name
        self.plan = plan  # of its configuration file
        self.observer = Observer()
        self.flushes = 0  # that began
        self.is_impatient = False  # its waits for a flush in flight time out
        self.slow_flush_s = 0.0  # added to the next flush
        self._is_edited = False  # its file, since it was last read
        self.restart_s = RESTART_S
        self._scheduler = scheduler
        self._database = database
        self._topic = topic
        self._wall_s = wall_s
        self._new_mark = new_mark
        self._random = random
        self._wake: Event | None = None
        self.daemon: Daemon | None = None
        self.source: SimulatedSource | None = None
        self.process = Process(name)
        self.supervisor = Process(f"supervisor of {name}")
        self.start()

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts a process that has nothing but its configuration and what is stored."""
        self.process = Process(self.name, on_death=self._died)
        self._scheduler.after(0.0, self.process, "start", self._started)

    def _started(self) -> None:
        try:
            self.daemon = self._build()
        except AnalyzerError:
            raise Killed from None  # a process that cannot start ends, and is started again
        for job in self._runner.jobs:
            self.later(self._random.random(), f"job {job.name}", partial(self._begin_job, job))
        self.wake(0.0)

    def _died(self) -> None:
        self._database.faults.pop(self.name, None)
        self.daemon, self.source, self._wake = None, None, None
        self._scheduler.after(self.restart_s, self.supervisor, "restart", self.start)
        self.restart_s = RESTART_S

    def stop(self) -> None:
        """Ends the process in good order."""
        if self.daemon is not None:
            self.daemon.close()
        raise Killed

    def _build(self) -> Daemon:
        engine, scheduler = self._database.engine, self._scheduler
        flushes = ScheduledFlushes(self)
        store = SqlStore(engine, self.name, self._new_mark, flushes.wait)
        self.source = SimulatedSource(self._topic, store, self.name, self._wall_s, lambda: scheduler.uptime_s)

        self._is_edited = False
        file = AnalyzerFile(self.name, self.file)
        plans = SqlAgreement(engine, self.name, file, self._new_mark)
        agreement = plans.agree()
        pipeline = Pipeline(
            self.source,
            new_counter(agreement.plan),
            store,
            agreement,
            lambda: scheduler.uptime_s,
            executor=flushes,
        )
        self._runner = JobRunner(
            self._new_jobs(agreement.plan),
            SqlJobRuns(engine, self.name, judge_again),
            FailingJobs(self.observer, self._random),
            lambda: scheduler.uptime_s,
        )
        return Daemon(
            pipeline,
            plans.agree,
            new_counter,
            self.observer,
            self._random,
            SqlGaps(engine, self.name),
            beat=plans.beat,
            take_configuration=lambda: self._is_file_read() and plans.propose(self.file),
        )

    @property
    def file(self) -> Plan:
        """The plan of its configuration file."""
        ids = [mapping.id for mapping in self.plan.sources.values()]
        fields = MAPPING.fields | {"id": TextField(("id",))}
        mapping = replace_struct(MAPPING, fields=fields, id=ids[0]) if ids else MAPPING
        return self.plan.with_sources({SOURCE: mapping})

    def edit(self, plan: Plan) -> None:
        """Changes its configuration file, which the running process reads again."""
        self.plan, self._is_edited = plan, True
        self.wake(0.0)

    def _is_file_read(self) -> bool:
        is_edited, self._is_edited = self._is_edited, False
        return is_edited

    def _new_jobs(self, plan: Plan) -> list[Job]:
        # One job for all that is deleted: each costs as much time as some records.
        retention = LONG_RETENTION if plan_sums(plan).with_usual else RETENTION
        upkeep = Upkeep(self._database.engine, self._new_mark, lambda: self._scheduler.uptime_s)
        context = replace(upkeep.context, owner=self.name, kept=retention, judged=self.observer.judged)
        kept = [job for job in upkeep_jobs(context) if job.name not in PRUNING]
        prune = Job("prune", partial(upkeep.prune, retention), Schedule(60))
        return [*new_jobs(context, LOCKS), *kept, prune]

    # -- events ----------------------------------------------------------------------------------

    def later(self, delay_s: float, name: str, action: Callable[[], object]) -> Event:
        return self._scheduler.after(delay_s, self.process, name, action)

    def wake(self, delay_s: float) -> None:
        """Has the loop run after `delay_s`, unless it runs earlier anyway."""
        if self.daemon is None:
            return
        if self._wake is not None and not self._wake.is_cancelled:
            if self._wake.at_s <= self._scheduler.now_s + delay_s:
                return
            self._wake.is_cancelled = True
        self._wake = self.later(delay_s, "loop", self._loop)

    def records_arrived(self) -> None:
        self.wake(FETCH_S)

    def commit_s(self) -> float:
        """Returns how long the next flush takes until its transaction."""
        slow_s, self.slow_flush_s = self.slow_flush_s, 0.0
        return slow_s + self._random.uniform(0.001, 0.05)

    def _loop(self) -> None:
        assert self.daemon is not None
        assert self.source is not None
        self._wake = None
        pause_s = self.daemon.run_once()
        pipeline = self.daemon.pipeline
        if pause_s:
            self.wake(pause_s)
        elif self.source.has_records():
            self.wake(FETCH_S)
        elif pipeline.in_flight is not None and pipeline.in_flight.done():
            self.wake(FLUSH_POLL_S)
        elif pipeline.undrained and pipeline.in_flight is None:
            self.wake(max(FLUSH_POLL_S, pipeline.wait_s()))
        else:
            self.wake(pipeline.pace.heartbeat_every_s)

    def _begin_job(self, job: Job) -> None:
        run = self._runner.begin(job)
        if isinstance(run, RunEnd):
            self._end_job(job, run)
        else:
            self._step_job(run)

    def _step_job(self, run: RunInProgress) -> None:
        done = self._runner.step(run)
        if isinstance(done, RunEnd):
            self._end_job(run.job, done)
        else:
            self.later(done, f"job {run.job.name}", partial(self._step_job, run))

    def _end_job(self, job: Job, end: RunEnd) -> None:
        wait_s = job.schedule.every_s if end.wait_s is None else end.wait_s
        self.later(max(0.01, wait_s), f"job {job.name}", partial(self._begin_job, job))
