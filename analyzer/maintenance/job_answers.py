"""Jobs: when each runs, how it went, and who runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from analyzer.kernel.database.engine import Engine
from analyzer.kernel.jobs.job_runs import StoredRun, job_states
from analyzer.kernel.jobs.job_schedules import Schedule
from analyzer.kernel.time_texts import format_second


class ListedJob(NamedTuple):
    """A job as a list shows it."""

    job: str
    schedule: str
    last: dict[str, str | int | float | None] | None  # run; None: it never ran
    next: str
    holder: str  # the process that runs it at the moment; "": none

    @property
    def cells(self) -> dict[str, object]:
        """The cells of its last run, for people."""
        return dict(self.last or dict.fromkeys(("began", "outcome", "rows", "error"), ""))


def listed_jobs(engine: Engine, schedules: Mapping[str, Schedule]) -> list[ListedJob]:
    """Returns the state of each job, by the name of its schedule. Raises StoreAway."""
    now_ms, states = job_states(engine, schedules)
    jobs = []
    for name, schedule in schedules.items():
        state = states.get(name)
        last = None if state is None else run_fields(state.last)
        holder = "" if state is None else state.holder
        jobs.append(ListedJob(name, str(schedule), last, _time(schedule.next_ms(now_ms)), holder))
    return jobs


def run_fields(run: StoredRun) -> dict[str, str | int | float | None]:
    return {
        "job": run.job,
        "scheduled": _time(run.scheduled_ms),
        "began": _time(run.began_ms),
        "ended": None if run.ended_ms is None else _time(run.ended_ms),
        "seconds": "" if run.ended_ms is None else round((run.ended_ms - run.began_ms) / 1000, 3),
        "outcome": run.outcome,
        "rows": run.rows,
        "owner": run.owner,
        "error": run.error,
    }


def _time(at_ms: int) -> str:
    return format_second(at_ms // 1000)
