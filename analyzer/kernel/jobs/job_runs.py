"""Runs of jobs: leases, the history, and the outcome of each job.

A run and its lease begin in one transaction, and end in one. So a moment is done once among all
analyzers, and a run whose process died is found by the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import ROWS_AT_ONCE, NowMs, reading, slow_reading, writing
from analyzer.kernel.database.named_leases import Lease
from analyzer.kernel.jobs.job_schedules import BegunRun, NotBegun, RunOutcome, Schedule
from analyzer.kernel.tables.job_tables import job_runs, leases

# Extended every ten seconds while a run lasts: another analyzer takes over after it.
LEASE_MS = 30_000
RUNNING = Lease(LEASE_MS)
# Of jobs whose moments are a second apart. Extended each second; gates see how long no process has it.
SHARED_LEASE_MS = 5_000
SHARED = Lease(SHARED_LEASE_MS, is_shared=True)
PRECEDENCE_MS = 5_000  # the process of the last run begins the next one, unless it is later than this
ERROR_CHARS_MAX = 500


def ignore(_db: sa.Connection) -> None:
    """Does nothing about a clock that was ahead."""


class SqlJobRuns:
    """Implements `JobRuns`. All methods raise StoreAway.

    Args:
        engine: Of the jobs.
        owner: The name of this process.
        clock_was_ahead: Called in the transaction that takes or keeps a shared lease from which it follows
            that the database's clock was ahead and is back.
    """

    def __init__(
        self, engine: sa.Engine, owner: str, clock_was_ahead: Callable[[sa.Connection], object] = ignore
    ) -> None:
        self._engine = engine
        self._owner = owner
        self._clock_was_ahead = clock_was_ahead

    def begin(self, job: str, schedule: Schedule, *, is_asked: bool = False) -> BegunRun | NotBegun:
        """Begins the run of the latest moment, unless it is done or another process does it.

        With `is_asked`, or under a shared lease, also if it is done.
        """
        begins_anyway = is_asked or bool(schedule.shared_lease)
        with writing(self._engine) as db:
            # Most calls end here, and write nothing.
            if not begins_anyway and (early := self._early(db, job, schedule)) is not None:
                return early
            was_ahead = self._was_ahead(db, schedule.shared_lease)
            if not self._take(db, job, schedule):
                return self._held(db, job, schedule)
            # Perhaps it was done between the two statements.
            if not begins_anyway and (early := self._early(db, job, schedule)) is not None:
                RUNNING.release(db, schedule.lease(job), self._owner)
                return early
            # The lease was free or is ours: no process does a run of the job that has not ended.
            unfinished = sa.and_(job_runs.c.job == job, job_runs.c.outcome == "running")
            db.execute(sa.update(job_runs).where(unfinished).values(outcome="lost", ended_ms=NowMs()))
            now_ms = clock_ms(db)
            newest = sa.select(sa.func.coalesce(sa.func.max(job_runs.c.number), 0))
            number = db.execute(newest.where(job_runs.c.job == job)).scalar_one() + 1
            run = BegunRun(job, number, schedule.latest_ms(now_ms), schedule.shared_lease)
            row = {"job": job, "number": number, "scheduled_ms": run.scheduled_ms, "began_ms": now_ms}
            began = {"owner": self._owner, "outcome": "running", "rows": 0, "error": ""}
            db.execute(sa.insert(job_runs).values(row | began))
            if was_ahead:
                self._clock_was_ahead(db)  # after the rows of jobs, in the order of all transactions
            return run

    def keep(self, run: BegunRun) -> bool:
        """Extends the lease of a run; False if another process has it."""
        with writing(self._engine) as db:
            was_ahead = self._was_ahead(db, run.shared_lease)
            is_kept = self._keep(db, run)
            if is_kept and was_ahead:
                self._clock_was_ahead(db)
            return is_kept

    def keep_and_store(self, run: BegunRun, rows: int, *, is_done: bool = False) -> bool:
        """Extends the lease of a run that has dealt with `rows` so far; False if another process has it.

        `is_done` says that the last step left nothing to do.
        """
        so_far = {"rows": rows} | ({"done_ms": NowMs()} if is_done else {})
        with writing(self._engine) as db:
            was_ahead = self._was_ahead(db, run.shared_lease)
            if not self._keep(db, run):
                return False
            is_running = db.execute(sa.update(job_runs).where(_is_run(run)).values(so_far)).rowcount == 1
            if was_ahead:
                self._clock_was_ahead(db)
            return is_running

    def end(
        self, run: BegunRun, outcome: RunOutcome, rows: int, error: str = "", *, keeps_lease: bool = False
    ) -> bool:
        """Ends a run; False if another process has taken the job over.

        Releases the lease, unless this process has another run under it: `keeps_lease`. Of runs in a row that
        were done and found nothing, the last one is kept.
        """
        ended = {"ended_ms": NowMs(), "outcome": outcome, "rows": rows, "error": error[:ERROR_CHARS_MAX]}
        if outcome == "done":
            ended["done_ms"] = NowMs()
        kind = SHARED if run.shared_lease else RUNNING
        with writing(self._engine) as db:
            # In the order of `keep`, which the keeper of this run may call meanwhile.
            if not keeps_lease:
                kind.release(db, run.lease, self._owner)
            if db.execute(sa.update(job_runs).where(_is_run(run)).values(ended)).rowcount != 1:
                db.rollback()  # the lease may be of a later run of this process
                return False
            if outcome == "done" and not rows:
                previous = [job_runs.c.job == run.job, job_runs.c.number == run.number - 1]
                idle = [job_runs.c.outcome == "done", job_runs.c.rows == 0]
                db.execute(sa.delete(job_runs).where(*previous, *idle))
            return True

    def _was_ahead(self, db: sa.Connection, shared_lease: str) -> bool:
        """Whether a shared lease was taken while the clock was ahead."""
        return bool(shared_lease) and SHARED.is_ahead(db, shared_lease)

    def _take(self, db: sa.Connection, job: str, schedule: Schedule) -> bool:
        kind = SHARED if schedule.shared_lease else RUNNING
        return kind.take(db, schedule.lease(job), self._owner)

    def _keep(self, db: sa.Connection, run: BegunRun) -> bool:
        if run.shared_lease:  # another job of this process may have released it
            return SHARED.take(db, run.lease, self._owner)
        return RUNNING.keep(db, run.lease, self._owner)

    def _early(self, db: sa.Connection, job: str, schedule: Schedule) -> NotBegun | None:
        """Returns how long the job has to wait for its next moment; None if the latest one is to be done."""
        now_ms = clock_ms(db)
        latest_ms = schedule.latest_ms(now_ms)
        runs = sa.select(job_runs.c.scheduled_ms, job_runs.c.owner, job_runs.c.outcome)
        runs = runs.where(job_runs.c.job == job).order_by(job_runs.c.number.desc()).limit(1)
        last = db.execute(runs).first()
        last_done = db.execute(runs.where(job_runs.c.outcome == "done")).first()
        # A moment in the future is of a clock that was ahead.
        if last_done is not None and latest_ms <= last_done.scheduled_ms <= now_ms:
            is_elsewhere = last_done.owner != self._owner
            return NotBegun((schedule.next_ms(now_ms) - now_ms) / 1000, is_elsewhere=is_elsewhere)
        if last is not None and last.outcome == "done" and last.owner != self._owner:
            precedence_ms = min(PRECEDENCE_MS, schedule.every_s * 500)
            was_before = last.scheduled_ms == latest_ms - schedule.every_s * 1000
            if was_before and now_ms < latest_ms + precedence_ms:
                return NotBegun((latest_ms + precedence_ms - now_ms) / 1000, is_elsewhere=True)
        return None

    def _held(self, db: sa.Connection, job: str, schedule: Schedule) -> NotBegun:
        lease = db.execute(sa.select(leases).where(leases.c.name == schedule.lease(job))).one()
        # A shared lease may be released between two moments.
        left_s = schedule.every_s if schedule.shared_lease else (lease.until_ms - clock_ms(db)) / 1000
        return NotBegun(max(1.0, left_s), lease.holder, is_elsewhere=lease.holder != self._owner)


def _is_run(run: BegunRun) -> sa.ColumnElement[bool]:
    """A run that is neither ended nor lost."""
    of_job = sa.and_(job_runs.c.job == run.job, job_runs.c.number == run.number)
    return sa.and_(of_job, job_runs.c.outcome == "running")


class StoredRun(NamedTuple):
    """A run of a job; times in milliseconds since 1970 by the database's clock."""

    job: str
    number: int
    scheduled_ms: int
    began_ms: int
    ended_ms: int | None  # None: it has not ended
    owner: str
    outcome: RunOutcome
    rows: int  # dealt with so far
    error: str


class JobStatus(NamedTuple):
    """The last run of a job, and the process that runs it at the moment."""

    last: StoredRun
    holder: str  # "": none


def job_states(engine: sa.Engine, schedules: Mapping[str, Schedule]) -> tuple[int, dict[str, JobStatus]]:
    """Returns the database's time in milliseconds, and the state of each job of `schedules` that ever ran.

    Raises StoreAway.
    """
    with reading(engine) as db:
        statement = sa.select(leases.c.name, leases.c.holder).where(~RUNNING.is_free)
        holders = {row.name: row.holder for row in db.execute(statement)}
        states = {
            run.job: JobStatus(run, holders.get(schedules[run.job].lease(run.job), ""))
            for row in db.execute(_last_runs())
            if (run := _stored(row)).job in schedules
        }
        return clock_ms(db), states


def _last_runs() -> sa.Select[Any]:
    newest = sa.select(job_runs.c.job, sa.func.max(job_runs.c.number).label("number"))
    last = newest.group_by(job_runs.c.job).subquery()
    is_last = sa.and_(job_runs.c.job == last.c.job, job_runs.c.number == last.c.number)
    return sa.select(job_runs).join(last, is_last)


class JobOutcome(NamedTuple):
    """The outcome of the last runs of a job, with ages by the database's clock."""

    name: str
    done_s: float | None  # since a step last left nothing to do; None: never yet
    failing_s: float | None  # since the first of the failures in a row; None: it does not fail
    failed_s: float | None  # since the last of them
    error: str  # of the last of them
    owner: str  # the process of the last run


def job_outcomes(engine: sa.Engine) -> list[JobOutcome]:
    """Returns the outcome of every job that was ever done or fails, by name. Raises StoreAway.

    A job fails from the first of the runs that failed since the last one that achieved something.
    """
    columns = job_runs.c
    has_achieved = sa.and_(
        columns.outcome != "failed", sa.or_(columns.rows > 0, columns.done_ms.is_not(None))
    )
    achieved = sa.select(
        columns.job,
        sa.func.max(sa.case((has_achieved, columns.number), else_=0)).label("number"),
        sa.func.max(columns.done_ms).label("done_ms"),
    )
    achieved_runs = achieved.group_by(columns.job).subquery()
    has_failed = sa.and_(
        columns.job == achieved_runs.c.job,
        columns.number > achieved_runs.c.number,
        columns.outcome == "failed",
    )
    failing = sa.select(
        columns.job,
        sa.func.min(columns.ended_ms).label("since_ms"),
        sa.func.max(columns.number).label("number"),
    )
    failing_jobs = failing.join(achieved_runs, has_failed).group_by(columns.job).subquery()
    is_last = sa.and_(columns.job == failing_jobs.c.job, columns.number == failing_jobs.c.number)
    failed = sa.select(columns.job, columns.ended_ms, columns.error, failing_jobs.c.since_ms)
    with reading(engine) as db:
        now_ms = clock_ms(db)

        def age_s(time_ms: int | None) -> float | None:
            return None if time_ms is None else max(0.0, (now_ms - time_ms) / 1000)

        done_ms = {row.job: row.done_ms for row in db.execute(sa.select(achieved_runs))}
        failures = {row.job: row for row in db.execute(failed.join(failing_jobs, is_last))}
        outcomes = []
        for last in db.execute(_last_runs().order_by(columns.job)):
            outcome = JobOutcome(last.job, age_s(done_ms[last.job]), None, None, "", last.owner)
            if (failure := failures.get(last.job)) is not None:
                outcome = outcome._replace(
                    failing_s=age_s(failure.since_ms), failed_s=age_s(failure.ended_ms), error=failure.error
                )
            if outcome.done_s is not None or outcome.failing_s is not None:
                outcomes.append(outcome)
        return outcomes


def job_history(engine: sa.Engine, job: str | None, since_ms: int) -> Iterator[StoredRun]:
    """Yields runs that began at or after a moment, the latest first. Raises StoreAway."""
    conditions = [job_runs.c.began_ms >= since_ms]
    if job is not None:
        conditions.append(job_runs.c.job == job)
    order = (job_runs.c.began_ms.desc(), job_runs.c.job, job_runs.c.number.desc())
    statement = sa.select(job_runs).where(*conditions).order_by(*order)
    options = {"yield_per": ROWS_AT_ONCE}
    with slow_reading(engine) as db, db.execute(statement, execution_options=options) as rows:
        for row in rows:
            yield _stored(row)


def _stored(row: sa.Row[Any]) -> StoredRun:
    return StoredRun(**{name: getattr(row, name) for name in StoredRun._fields})
