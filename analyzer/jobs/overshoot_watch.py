"""The job that watches the overshoot of locks: those that let more through than estimated are an alarm."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from analyzer.jobs.job_runner import Job

log = logging.getLogger(__name__)


def overshoot_job(
    late_locks: Callable[[], Mapping[str, str]], report: Callable[[Sequence[str]], None]
) -> Job:
    """Returns the job, which reports the sentences of all late locks, and logs each lock once.

    `late_locks` returns a sentence for each late lock of the last hour, by a text that names the lock.
    """
    logged: set[str] = set()

    def step() -> int:
        found = late_locks()
        report(list(found.values()))
        for name in sorted(found.keys() - logged):
            log.warning("%s", found[name])
        logged.clear()
        logged.update(found)
        return 0

    return Job("watch-overshoot", step)
