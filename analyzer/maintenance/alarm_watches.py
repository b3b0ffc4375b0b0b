"""Jobs that watch what was stored: what is beyond its limit is an alarm, and does not disturb counting."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from analyzer.kernel.jobs.job_schedules import Schedule
from analyzer.maintenance.scheduled_jobs import ScheduledJob

log = logging.getLogger(__name__)


def watch_job(
    name: str,
    schedule: Schedule,
    find: Callable[[], Mapping[str, str]],
    report: Callable[[Sequence[str]], None],
    noted: Callable[[], int] = lambda: 0,
) -> ScheduledJob:
    """Returns a job that reports all sentences that `find` returns, and logs the new ones.

    Nothing is reported here while another analyzer does it.

    `find` returns a sentence for each finding, by a text that names it, such as a day or a cause. `noted`
    returns how many rows a step counts, so that the job's run is kept.
    """
    logged: set[str] = set()

    def step() -> int:
        rows, found = noted(), find()
        report(list(found.values()))
        for key in sorted(found.keys() - logged):
            log.warning("%s", found[key])
        logged.clear()
        logged.update(found)
        return rows

    return ScheduledJob(name, step, schedule, done_elsewhere=lambda: report([]))
