"""The wall around APScheduler: it calls scheduled jobs at their moments, each in a thread.

Its jobs stand in memory. What was done and what is due stands in the database: see `scheduled_jobs`.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from analyzer.maintenance.scheduled_jobs import KEEP_EVERY_S, ScheduledJob, ScheduledRuns

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class JobScheduler:
    """Calls jobs at their moments, and at the start: a moment that was missed is caught up with.

    Args:
        jobs: Of this process; without any, the leases of other runs are kept.
        runs: Runs them.
        disconnect: Closes the connections of the jobs.
    """

    def __init__(
        self, jobs: Sequence[ScheduledJob], runs: ScheduledRuns, disconnect: Callable[[], None]
    ) -> None:
        self.jobs = jobs
        self.runs = runs
        self.error: BaseException | None = None  # a bug of the scheduler or of `runs`
        self._disconnect = disconnect
        self._stopping = threading.Event()
        self._scheduler: Any = None
        self._threads: set[threading.Thread] = set()  # of runs in progress

    def start(self, stopping: threading.Event) -> None:
        """Begins to call the jobs, until `stopping` is set. A bug of the scheduler sets it."""
        from apscheduler.events import EVENT_JOB_ERROR
        from apscheduler.jobstores.memory import MemoryJobStore
        from apscheduler.schedulers.background import BackgroundScheduler
        from apscheduler.triggers.interval import IntervalTrigger

        # It says of each run that is still in progress at its next moment that this one is left out.
        logging.getLogger("apscheduler").setLevel(logging.CRITICAL)
        self._stopping = stopping
        self._scheduler = BackgroundScheduler(
            jobstores={"default": MemoryJobStore()},
            executors={"default": _thread_executor(self._threads)},
            # However many moments were missed, one run makes up for them, however late.
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
            timezone=UTC,
        )
        self._scheduler.add_listener(self._failed, EVENT_JOB_ERROR)
        self._scheduler.add_job(
            self.runs.keep_leases, IntervalTrigger(seconds=KEEP_EVERY_S), id="keep leases"
        )
        for job in self.jobs:
            first = EPOCH + timedelta(seconds=job.schedule.at_s)
            moments = IntervalTrigger(seconds=job.schedule.every_s, start_date=first, timezone=UTC)
            self._scheduler.add_job(
                partial(self._run, job), moments, id=job.name, name=job.name, next_run_time=datetime.now(UTC)
            )
        self._scheduler.start()

    def stop(self, wait_s: float) -> None:
        """Ends the calls, and waits for some seconds for runs in progress to end between two steps.

        A step that never returns ends with the process. Raises the error of a bug.
        """
        self._stopping.set()
        if self._scheduler is not None:
            self._scheduler.shutdown(wait=False)
        end_s = self.runs.uptime_s() + wait_s
        for thread in list(self._threads):
            thread.join(max(0.0, end_s - self.runs.uptime_s()))
        if not self._threads:
            self._disconnect()
        if self.error is not None:
            raise self.error

    def _run(self, job: ScheduledJob) -> None:
        end = self.runs.run(job, self._stopping.wait)
        now = datetime.now(UTC)
        # APScheduler would count on from this call, which was not at a moment: at the start, or later because
        # another analyzer did the job, it failed, or the database's clock is behind this machine's.
        if end.wait_s is None:
            again = EPOCH + timedelta(milliseconds=job.schedule.next_ms(int(now.timestamp() * 1000)))
        else:
            again = now + timedelta(seconds=end.wait_s)
        found = None if self._stopping.is_set() else self._scheduler.get_job(job.name)
        if found is not None:
            found.modify(next_run_time=again)

    def _failed(self, event: Any) -> None:
        self.error = event.exception
        self._stopping.set()


def _thread_executor(threads: set[threading.Thread]) -> Any:
    """Returns an executor that runs each job in a daemon thread, which is among `threads` until it ends.

    APScheduler's own pool has threads that a process waits for at its end: a statement that hangs would keep
    it from ending.
    """
    from apscheduler.executors.base import BaseExecutor, run_job

    class ThreadExecutor(BaseExecutor):  # type: ignore[misc]  # apscheduler has no types
        def _do_submit_job(self, job: Any, run_times: Any) -> None:
            thread = threading.Thread(target=self._call, args=(job, run_times), name=f"job {job.id}")
            thread.daemon = True
            threads.add(thread)
            thread.start()

        def _call(self, job: Any, run_times: Any) -> None:
            try:
                events = run_job(job, "default", run_times, self._logger.name)
            except BaseException:  # noqa: BLE001 - as APScheduler's pool does
                self._run_job_error(job.id, *sys.exc_info()[1:])
            else:
                self._run_job_success(job.id, events)
            finally:
                threads.discard(threading.current_thread())

    return ThreadExecutor()
