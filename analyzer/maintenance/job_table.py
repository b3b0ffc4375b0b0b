"""The table of jobs: what one analyzer does for all, when, and under which lease.

A job is one entry of `JOBS`, and the module that does its work. Everything else reads the table: the runner
and the scheduler, `gatelock upkeep jobs`, the pages, the API, `gatelock doctor` and the metrics.

Gates end a lock by their own clock. The jobs of the warden only make the table of locks and the feed agree
with that, so a late or missing warden refuses no caller.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.billing.audit.audit_outcomes import DayAudits, DeliveryAudits
from analyzer.billing.days.closing import Billing, DayClosing
from analyzer.billing.days.deleted_days import DayDeletion, DeletedBy
from analyzer.billing.days.targets import AskEnds
from analyzer.callers import applied_facts, caller_changes, changed_limits
from analyzer.counting.ranking_upkeep import RankingUpkeep
from analyzer.delays import standstills
from analyzer.judging.judge import Judged, JudgedRows
from analyzer.judging.judgement_log import log_judged
from analyzer.judging.sql import braked_policies, plans, slots, waiting_judgements
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import writing
from analyzer.kernel.database.timeouts import STATEMENT_MS
from analyzer.kernel.jobs.job_runs import SqlJobRuns
from analyzer.kernel.jobs.job_schedules import DAY_S, Schedule
from analyzer.kernel.jobs.step_sizes import SizedSteps
from analyzer.kernel.kept_ages import Retention
from analyzer.maintenance import pruning, roll_up, total_repair
from analyzer.maintenance.audit import prove_next_day
from analyzer.maintenance.failing_jobs import FailingJobs, JobObserver
from analyzer.maintenance.job_runner import Job, JobRunner

log = logging.getLogger(__name__)

ACTIVATION_ROWS = 5_000  # read in one step, while flushes wait
MINUTE_S, HOUR_S = 60, 3_600

JobStep = Callable[[], int]  # see `Job.step`


class Work(NamedTuple):
    """The work of a job: see `Job`."""

    step: JobStep
    done_elsewhere: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class JobContext:
    """Values of which the work of jobs is made.

    Attributes:
        engine: Of the jobs of one lane.
        new_mark: Returns a new random mark.
        owner: The name of this process.
        kept: Ages of rows.
        uptime_s: Measures how long steps take: the number of their rows is adapted to it.
        wall_ms: This machine's clock.
        billing: Which days are closed, and when.
        ends_of_logs: Asks for the ends of partitions.
        flush_every_s: Of this analyzer.
        judged: Receives what a job has judged, with the job's name.
        live_usage: Makes what pushes the usage of the open day to a billing service; None: there is none.
        watch: Makes what looks for signals and stores those that stand; None: nothing looks.
        alerts: Makes what sends alerts; None: this process has no destinations.
        judge: Judges by the plan in force; of all jobs of the lane, whose steps take turns.
    """

    engine: sa.Engine
    new_mark: Callable[[], str]
    owner: str = ""
    kept: Retention = field(default_factory=Retention)
    uptime_s: Callable[[], float] = time.monotonic
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    billing: Billing = field(default_factory=Billing)
    ends_of_logs: AskEnds = lambda _followed: {}
    flush_every_s: float = 0.0
    judged: Callable[[Judged, str], object] = lambda _judged, _job: None
    live_usage: Callable[[sa.Engine], JobStep] | None = None
    watch: Callable[[sa.Engine], Work] | None = None
    alerts: Callable[[sa.Engine], JobStep] | None = None
    judge: waiting_judgements.JudgeOfWarden = field(default_factory=waiting_judgements.JudgeOfWarden)

    def sized(self) -> SizedSteps:
        """Returns steps in transactions, with as many rows as keep them short."""
        return SizedSteps(self.engine, self.uptime_s)


class Lane(NamedTuple):
    """Jobs with separate connections and time-outs, which wait for no job of another lane.

    Attributes:
        name: For people.
        statement_ms: How long a statement may take.
        busy_ms: How long SQLite waits for another writer.
        shared_lease: The lease that its jobs share; "": each has one.
    """

    name: str
    statement_ms: int = STATEMENT_MS  # as in a flush
    busy_ms: int = STATEMENT_MS
    shared_lease: str = ""


# Of all analyzers one holds the lease and is the warden. Delays of its jobs are seen at gates.
LOCKS = Lane("locks", shared_lease="warden")
# A step may take longer than a flush, whose time-out bounds how long counting pauses. A job can wait for a
# flush, or for a command.
UPKEEP = Lane("upkeep", statement_ms=60_000, busy_ms=10_000)
# Long work of upkeep must not delay that a problem is seen.
SIGNALS = Lane("signals", statement_ms=10_000, busy_ms=10_000)
# Its steps wait for receivers.
ALERTS = Lane("alerts")
LANES = (LOCKS, UPKEEP, SIGNALS, ALERTS)


class JobEntry(NamedTuple):
    """A job.

    Attributes:
        name: For operators: in lists, logs, metrics and health.
        every_s: Between two moments; a day: at the time of daily work.
        work: Returns its work in a process.
        lane: Which connections it uses.
        takes_turns: See `Job`.
        is_wanted: Whether a process runs it at all.
    """

    name: str
    every_s: int
    work: Callable[[JobContext], Work]
    lane: Lane = UPKEEP
    takes_turns: bool = True
    is_wanted: Callable[[JobContext], bool] = lambda _: True

    def schedule(self, kept: Retention) -> Schedule:
        """Returns when it runs, and under which lease."""
        return Schedule(self.every_s, kept.at_s if self.every_s == DAY_S else 0, self.lane.shared_lease)

    def job(self, context: JobContext) -> Job:
        """Returns the job of a process."""
        step, done_elsewhere = self.work(context)
        return Job(self.name, step, self.schedule(context.kept), self.takes_turns, done_elsewhere)


def schedules(kept: Retention) -> Mapping[str, Schedule]:
    """Returns when each job runs, by its name, in the order of the table."""
    return {entry.name: entry.schedule(kept) for entry in JOBS}


def new_jobs(context: JobContext, lane: Lane) -> list[Job]:
    """Returns the jobs of a lane, in the order of the table."""
    return [entry.job(context) for entry in JOBS if entry.lane == lane and entry.is_wanted(context)]


def new_runner(
    context: JobContext, lane: Lane, observer: JobObserver, disconnect: Callable[[], None]
) -> JobRunner:
    """Returns the runner of the jobs of a lane; `disconnect` closes the connections of `context`."""
    return JobRunner(
        new_jobs(context, lane),
        SqlJobRuns(context.engine, context.owner, judge_again),
        FailingJobs(observer, Random()),  # noqa: S311 - jitter
        context.uptime_s,
        disconnect,
    )


def judge_again(db: sa.Connection) -> None:
    """Has all totals judged again after a time in which the clock was ahead.

    Locks have ended by that clock, and totals were judged by it.
    """
    log.warning("the database's clock was ahead and is back: all totals are judged again")
    plans.judge_again(db, clock_was_ahead=True)


# Jobs of the warden: each step judges in a transaction, up to a bound of rows


def _locks(name: str, judge: Callable[[JobContext], JudgedRows]) -> JobEntry:
    """Returns the entry of a job whose judgements are reported and logged."""

    def work(context: JobContext) -> Work:
        def step() -> int:
            result = judge(context)
            context.judged(result.judged, name)
            log_judged(result.judged, result.cause)
            return result.rows

        return Work(step)

    return JobEntry(name, 1, work, LOCKS)


def end_locks(context: JobContext) -> JudgedRows:
    """Clears the locks whose time is over, extends those that last; counts those that ended."""
    with writing(context.engine) as db:
        return waiting_judgements.end_locks(db, context.judge, context.new_mark())


def judge_waiting(context: JobContext) -> JudgedRows:
    """Judges totals that had to wait."""
    with writing(context.engine) as db:
        return waiting_judgements.judge_waiting(db, context.judge, context.new_mark())


def change_overrides(context: JobContext) -> JudgedRows:
    """Begins and ends overrides, and judges their series."""
    return caller_changes.change_due(context.engine, context.new_mark)


def apply_facts(context: JobContext) -> JudgedRows:
    """Applies facts that records state, and judges their callers."""
    return applied_facts.apply_waiting(context.engine, context.new_mark)


def refill_totals(context: JobContext) -> JudgedRows:
    """Completes and judges totals of callers whose windows have changed."""
    return changed_limits.refill(context.engine, context.new_mark)


def apply_brakes(context: JobContext) -> JudgedRows:
    """Turns locks of braked policies to shadow; notes the traffic of each minute."""
    return braked_policies.turn_to_shadow(context.engine, context.new_mark)


def continue_activation(context: JobContext) -> JudgedRows:
    """Brings totals and locks nearer to agreement with the plan in force; counts the rows read."""
    with writing(context.engine) as db:
        return plans.continue_activation(db, context.new_mark, ACTIVATION_ROWS)


# Upkeep


def _empty_slots(context: JobContext) -> Work:
    def step() -> int:
        with writing(context.engine) as db:
            return int(slots.empty_next(db, clock_ms(db) // 1000))

    return Work(step)


def _repair_totals(context: JobContext) -> Work:
    return Work(partial(total_repair.repair, context.engine, total_repair.Pace()))


def _roll_up(context: JobContext) -> Work:
    kept, minutes, quarters = context.kept, context.sized(), context.sized()

    def step() -> int:
        return minutes.run(partial(roll_up.widen_minutes, kept.minutes_s)) or quarters.run(
            partial(roll_up.widen_quarters, kept.quarters_s)
        )

    return Work(step)


def _fold(context: JobContext) -> Work:
    kept = context.kept
    return Work(roll_up.Folding(context.engine, context.sized(), kept.fold_requests, kept.minutes_s).step)


def _rank(context: JobContext) -> Work:
    return Work(RankingUpkeep(context.engine, context.kept.days_s).step)


def _prove_day(context: JobContext) -> Work:
    return Work(partial(prove_next_day, context.engine, {}))


def _prune(delete: Callable[[pruning.PruneStep], int]) -> Callable[[JobContext], Work]:
    def work(context: JobContext) -> Work:
        def transaction(db: sa.Connection, most: int) -> int:
            return delete(pruning.PruneStep(db, clock_ms(db), context.kept, most))

        return Work(partial(context.sized().run, transaction))

    return work


# Days


def _close_days(context: JobContext) -> Work:
    ends, wall_ms = context.ends_of_logs, context.wall_ms
    return Work(DayClosing(context.engine, context.billing, ends, context.new_mark, wall_ms).step)


def _audit_days(context: JobContext) -> Work:
    return Work(DayAudits(context.engine, [context.billing.key], context.owner).step)


def _audit_deliveries(context: JobContext) -> Work:
    return Work(DeliveryAudits(context.engine, [context.billing.key], context.owner).step)


def _push_live_usage(context: JobContext) -> Work:
    return Work((lambda: 0) if context.live_usage is None else context.live_usage(context.engine))


def _deliver_alerts(context: JobContext) -> Work:
    return Work((lambda: 0) if context.alerts is None else context.alerts(context.engine))


def _prune_days(context: JobContext) -> Work:
    by = DeletedBy(context.owner, context.kept.closed_days_s)
    return Work(DayDeletion(context.engine, context.billing.key, by, context.sized()).step)


# Signals


def _watch_standstills(context: JobContext) -> Work:
    return Work(standstills.watch(context.engine))


def _watch_signals(context: JobContext) -> Work:
    return Work(lambda: 0) if context.watch is None else context.watch(context.engine)


JOBS: Sequence[JobEntry] = (
    _locks("end-locks", end_locks),
    _locks("judge-waiting", judge_waiting),
    _locks("change-overrides", change_overrides),
    _locks("apply-facts", apply_facts),
    _locks("refill-totals", refill_totals),
    _locks("apply-brakes", apply_brakes),
    _locks("activation", continue_activation),
    JobEntry("close-days", 10, _close_days, takes_turns=False),
    JobEntry("audit-days", 10, _audit_days, takes_turns=False),
    # An analyzer without destinations would drop events, so it leaves the job to those that have some.
    JobEntry(
        "deliver-alerts",
        5,
        _deliver_alerts,
        ALERTS,
        takes_turns=False,
        is_wanted=lambda context: context.alerts is not None,
    ),
    JobEntry("push-live-usage", MINUTE_S, _push_live_usage, takes_turns=False),
    JobEntry("empty-slots", MINUTE_S, _empty_slots),
    JobEntry("rank", MINUTE_S, _rank, takes_turns=False),
    JobEntry("repair-totals", MINUTE_S, _repair_totals),
    JobEntry(standstills.WATCH, MINUTE_S, _watch_standstills),
    JobEntry("watch-signals", 5, _watch_signals, SIGNALS),
    JobEntry("prune-rejected", MINUTE_S, _prune(pruning.delete_rejected)),
    JobEntry("prune-feed", 5 * MINUTE_S, _prune(pruning.delete_feed)),
    JobEntry("prune-totals", 5 * MINUTE_S, _prune(pruning.delete_totals)),
    JobEntry("prune-gates", 5 * MINUTE_S, _prune(pruning.delete_gates)),
    JobEntry("roll-up", HOUR_S, _roll_up),
    JobEntry("fold", HOUR_S, _fold),
    JobEntry("prove-day", HOUR_S, _prove_day),
    JobEntry("audit-deliveries", HOUR_S, _audit_deliveries, takes_turns=False),
    JobEntry("prune-buckets", DAY_S, _prune(pruning.delete_buckets)),
    JobEntry("prune-locks", DAY_S, _prune(pruning.delete_locks)),
    JobEntry("prune-alerts", HOUR_S, _prune(pruning.delete_alerts)),
    JobEntry("prune-plans", DAY_S, _prune(pruning.delete_plans)),
    JobEntry("prune-days", DAY_S, _prune_days),
    JobEntry("prune-log", DAY_S, _prune(pruning.delete_log)),
)
