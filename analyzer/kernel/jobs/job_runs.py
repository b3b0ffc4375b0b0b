"""Runs of the scheduled jobs: leases, the history, and what each job last came to.

A run and its lease begin in one transaction, and end in one. So a moment is done once among all
analyzers, and a run whose process died is found by the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import ROWS_AT_ONCE, NowMs, reading, slow_reading, writing
from analyzer.kernel.database.named_leases import Lease
from analyzer.kernel.jobs.job_outcomes import ERROR_CHARS_MAX, store_failure, store_success
from analyzer.kernel.jobs.job_schedules import BegunRun, NotBegun, RunOutcome, Schedule
from analyzer.kernel.tables.job_tables import job_runs, leases

# Extended every ten seconds while a run lasts: another analyzer takes over after it.
LEASE_MS = 30_000
RUNNING = Lease(LEASE_MS)
PRECEDENCE_MS = 5_000  # the process of the last run begins the next one, unless it is later than this


def lease_of(job: str) -> str:
    """Returns the name of the lease of a job."""
    return f"job {job}"


class SqlJobRuns:
    """Implements `JobRuns`; `owner` is the name of this process. All methods raise StoreAway."""

    def __init__(self, engine: sa.Engine, owner: str) -> None:
        self._engine = engine
        self._owner = owner

    def begin(self, job: str, schedule: Schedule, *, is_asked: bool = False) -> BegunRun | NotBegun:
        """Begins the run of the latest moment, unless it is done or another process does it.

        With `is_asked` also if it is done.
        """
        with writing(self._engine) as db:
            # Most calls end here, and write nothing.
            if not is_asked and (early := self._early(db, job, schedule)) is not None:
                return early
            if not RUNNING.take(db, lease_of(job), self._owner):
                return self._held(db, job)
            # Perhaps it was done between the two statements.
            if not is_asked and (early := self._early(db, job, schedule)) is not None:
                RUNNING.release(db, lease_of(job), self._owner)
                return early
            # The lease was free: no process does a run that has not ended.
            unfinished = sa.and_(job_runs.c.job == job, job_runs.c.outcome == "running")
            db.execute(sa.update(job_runs).where(unfinished).values(outcome="lost", ended_ms=NowMs()))
            now_ms = clock_ms(db)
            newest = sa.select(sa.func.coalesce(sa.func.max(job_runs.c.number), 0))
            number = db.execute(newest.where(job_runs.c.job == job)).scalar_one() + 1
            run = BegunRun(job, number, schedule.latest_ms(now_ms))
            began = {"owner": self._owner, "began_ms": now_ms, "outcome": "running", "rows": 0, "error": ""}
            db.execute(sa.insert(job_runs).values(run._asdict() | began))
            return run

    def keep(self, run: BegunRun, rows: int) -> bool:
        """Extends the lease of a run that has dealt with `rows` so far; False if another process has it."""
        with writing(self._engine) as db:
            if not RUNNING.keep(db, lease_of(run.job), self._owner):
                return False
            return bool(db.execute(sa.update(job_runs).where(_is_run(run)).values(rows=rows)).rowcount == 1)

    def end(self, run: BegunRun, outcome: RunOutcome, rows: int, error: str = "") -> bool:
        """Ends a run and releases its lease; False if another process has taken the job over.

        Of runs in a row that were done and found nothing, the last one is kept.
        """
        ended = {"ended_ms": NowMs(), "outcome": outcome, "rows": rows, "error": error[:ERROR_CHARS_MAX]}
        with writing(self._engine) as db:
            # In the order of `keep`, which the keeper of this run may call meanwhile.
            RUNNING.release(db, lease_of(run.job), self._owner)
            if db.execute(sa.update(job_runs).where(_is_run(run)).values(ended)).rowcount != 1:
                db.rollback()  # the lease may be of a later run of this process
                return False
            if outcome == "failed":
                store_failure(db, self._owner, run.job, error)
            elif outcome == "done":
                store_success(db, self._owner, run.job)
                if not rows:
                    before = [job_runs.c.job == run.job, job_runs.c.number == run.number - 1]
                    idle = [job_runs.c.outcome == "done", job_runs.c.rows == 0]
                    db.execute(sa.delete(job_runs).where(*before, *idle))
            return True

    def _early(self, db: sa.Connection, job: str, schedule: Schedule) -> NotBegun | None:
        """Returns how long the job has to wait for its next moment; None if the latest one is to be done."""
        now_ms = clock_ms(db)
        latest_ms = schedule.latest_ms(now_ms)
        runs = sa.select(job_runs.c.scheduled_ms, job_runs.c.owner, job_runs.c.outcome)
        runs = runs.where(job_runs.c.job == job).order_by(job_runs.c.number.desc()).limit(1)
        last = db.execute(runs).first()
        done = db.execute(runs.where(job_runs.c.outcome == "done")).first()
        # A moment in the future is of a clock that was ahead.
        if done is not None and latest_ms <= done.scheduled_ms <= now_ms:
            is_elsewhere = done.owner != self._owner
            return NotBegun((schedule.next_ms(now_ms) - now_ms) / 1000, is_elsewhere=is_elsewhere)
        if last is not None and last.outcome == "done" and last.owner != self._owner:
            precedence_ms = min(PRECEDENCE_MS, schedule.every_s * 500)
            was_before = last.scheduled_ms == latest_ms - schedule.every_s * 1000
            if was_before and now_ms < latest_ms + precedence_ms:
                return NotBegun((latest_ms + precedence_ms - now_ms) / 1000, is_elsewhere=True)
        return None

    def _held(self, db: sa.Connection, job: str) -> NotBegun:
        lease = db.execute(sa.select(leases).where(leases.c.name == lease_of(job))).one()
        wait_s = max(1.0, (lease.until_ms - clock_ms(db)) / 1000)
        return NotBegun(wait_s, lease.holder, is_elsewhere=lease.holder != self._owner)


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


def job_states(engine: sa.Engine) -> tuple[int, dict[str, JobStatus]]:
    """Returns the database's time in milliseconds, and the state of each job that ever ran.

    Raises StoreAway.
    """
    newest = sa.select(job_runs.c.job, sa.func.max(job_runs.c.number).label("number"))
    last = newest.group_by(job_runs.c.job).subquery()
    is_last = sa.and_(job_runs.c.job == last.c.job, job_runs.c.number == last.c.number)
    with reading(engine) as db:
        held = sa.select(leases.c.name, leases.c.holder).where(~RUNNING.is_free)
        holders = {row.name: row.holder for row in db.execute(held)}
        found = db.execute(sa.select(job_runs).join(last, is_last))
        runs = [_stored(row) for row in found]
        return clock_ms(db), {run.job: JobStatus(run, holders.get(lease_of(run.job), "")) for run in runs}


def job_history(engine: sa.Engine, job: str | None, since_ms: int) -> Iterator[StoredRun]:
    """Yields runs that began at or after a moment, the latest first. Raises StoreAway."""
    conditions = [job_runs.c.began_ms >= since_ms]
    if job is not None:
        conditions.append(job_runs.c.job == job)
    order = (job_runs.c.began_ms.desc(), job_runs.c.job, job_runs.c.number.desc())
    wanted = sa.select(job_runs).where(*conditions).order_by(*order)
    options = {"yield_per": ROWS_AT_ONCE}
    with slow_reading(engine) as db, db.execute(wanted, execution_options=options) as rows:
        for row in rows:
            yield _stored(row)


def _stored(row: sa.Row[Any]) -> StoredRun:
    return StoredRun(**{name: getattr(row, name) for name in StoredRun._fields})
