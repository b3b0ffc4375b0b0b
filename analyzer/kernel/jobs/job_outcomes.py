"""Outcomes of the jobs that one analyzer does for all: when each was done, and whether it fails.

Stored in the database, so that `gatelock doctor` sees them wherever it runs, and after the analyzer has
ended.
"""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import NowMs, insert, reading, writing
from analyzer.kernel.tables.job_tables import jobs

ERROR_CHARS_MAX = 500
CONFIGURATION = "configuration of "  # and the name of an analyzer: the job of reading its file again


class SqlJobOutcomes:
    """Implements `JobOutcomes`; `owner` is the name of this process. All methods raise StoreAway."""

    def __init__(self, engine: sa.Engine, owner: str) -> None:
        self._engine = engine
        self._owner = owner

    def record_success(self, job: str, *, is_done: bool) -> None:
        """Stores that a step succeeded; with `is_done`, that it left nothing to do."""
        with writing(self._engine) as db:
            store_success(db, self._owner, job, is_done=is_done)

    def record_failure(self, job: str, error: str) -> None:
        """Stores that a step failed, and why."""
        with writing(self._engine) as db:
            store_failure(db, self._owner, job, error)

    def forget(self, job: str) -> None:
        """Deletes the outcome of a job, if there is one."""
        with writing(self._engine) as db:
            db.execute(sa.delete(jobs).where(jobs.c.name == job))


def store_success(db: sa.Connection, owner: str, job: str, *, is_done: bool = True) -> None:
    """Stores that a job succeeded; with `is_done`, that it left nothing to do."""
    done = {"done_ms": NowMs()} if is_done else {}
    _store(db, owner, job, {"failing_since_ms": None, **done})


def store_failure(db: sa.Connection, owner: str, job: str, error: str) -> None:
    """Stores that a job failed, and why."""
    since = sa.func.coalesce(jobs.c.failing_since_ms, NowMs())
    _store(
        db, owner, job, {"failing_since_ms": since, "failed_ms": NowMs(), "error": error[:ERROR_CHARS_MAX]}
    )


def _store(db: sa.Connection, owner: str, job: str, changed: dict[str, object]) -> None:
    changed["owner"] = owner
    first = changed | ({"failing_since_ms": NowMs()} if changed["failing_since_ms"] is not None else {})
    added = insert(db, jobs).values(name=job, **first)
    db.execute(added.on_conflict_do_update(index_elements=jobs.primary_key, set_=changed))


class ConfigurationOutcome:
    """Stores whether the configuration of an analyzer is refused, as the outcome of a job of its name.

    Args:
        outcomes: Of this process.
        analyzer: The configured name.
    """

    def __init__(self, outcomes: SqlJobOutcomes, analyzer: str) -> None:
        self._outcomes = outcomes
        self._job = CONFIGURATION + analyzer
        self._stored: str | None = None  # None: what an earlier process has stored

    def store(self, refusal: str) -> None:
        """Stores why it is refused; "" deletes that. Writes changes alone. Raises StoreAway."""
        if refusal == self._stored:
            return
        if refusal:
            self._outcomes.record_failure(self._job, refusal)
        else:
            self._outcomes.forget(self._job)
        self._stored = refusal


class JobOutcome(NamedTuple):
    """Outcome of one job, with ages by the database's clock."""

    name: str
    done_s: float | None  # since a step last left nothing to do; None: never yet
    failing_s: float | None  # since the first of the failures in a row; None: it does not fail
    failed_s: float | None  # since the last failure
    error: str  # of the last failure
    owner: str  # the process that reported last


def job_outcomes(engine: sa.Engine) -> list[JobOutcome]:
    """Returns the outcome of every job, by name. Raises StoreAway."""
    with reading(engine) as db:
        now_ms = clock_ms(db)

        def age_s(time_ms: int | None) -> float | None:
            return None if time_ms is None else max(0.0, (now_ms - time_ms) / 1000)

        return [
            JobOutcome(
                row.name,
                age_s(row.done_ms),
                age_s(row.failing_since_ms),
                age_s(row.failed_ms),
                row.error,
                row.owner,
            )
            for row in db.execute(sa.select(jobs).order_by(jobs.c.name))
        ]
