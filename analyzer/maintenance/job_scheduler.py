"""The wall around APScheduler: it calls jobs at their moments, each in a thread.

Its jobs stand in memory. What was done and what is due stands in the database: see `job_runner`.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from analyzer.maintenance.job_runner import KEEP_EVERY_S, Job, JobRunner, RunEnd

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class JobScheduler:
    """Calls jobs at their moments, and at the start: a moment that was missed is caught up with.

    Args:
        runners: Each runs its jobs, with separate connections.
    """

    def __init__(self, runners: Sequence[JobRunner]) -> None:
        self.runners = runners
        self.error: BaseException | None = None  # a bug of the scheduler or of a runner
        self._stopping = threading.Event()
        self._scheduler: Any = None
        self._threads: set[threading.Thread] = set()  # of runs in progress

    @property
    def job_names(self) -> list[str]:
        """The names of all jobs."""
        return [job.name for runner in self.runners for job in runner.jobs]

    def run_now(self, name: str) -> RunEnd:
        """Runs one job in this thread until nothing is left to do, and closes the connections.

        Its lease is kept meanwhile. After Ctrl-C an analyzer does the rest.
        """
        [(runner, job)] = [
            (runner, job) for runner in self.runners for job in runner.jobs if job.name == name
        ]
        self._start(threading.Event(), [])
        try:
            return runner.run(job, self._stopping.wait, is_asked=True)
        finally:
            self.stop(1.0)

    def finish_jobs(self) -> None:
        """Runs each job now in this thread, until nothing is left for it to do; closes the connections."""
        for runner in self.runners:
            runner.finish(self._stopping.wait)
            runner.disconnect()

    def start(self, stopping: threading.Event) -> None:
        """Begins to call the jobs, until `stopping` is set. A bug of the scheduler sets it."""
        self._start(stopping, [(runner, job) for runner in self.runners for job in runner.jobs])

    def _start(self, stopping: threading.Event, jobs: Sequence[tuple[JobRunner, Job]]) -> None:
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
        self._scheduler.add_job(self._keep_leases, IntervalTrigger(seconds=KEEP_EVERY_S), id="keep leases")
        for runner, job in jobs:
            first = EPOCH + timedelta(seconds=job.schedule.at_s)
            moments = IntervalTrigger(seconds=job.schedule.every_s, start_date=first, timezone=UTC)
            self._scheduler.add_job(
                partial(self._run, runner, job),
                moments,
                id=job.name,
                name=job.name,
                next_run_time=datetime.now(UTC),
            )
        self._scheduler.start()

    def stop(self, wait_s: float) -> None:
        """Ends the calls, and waits for some seconds for runs in progress to end between two steps.

        A step that never returns ends with the process. Raises the error of a bug.
        """
        self._stopping.set()
        if self._scheduler is not None:
            self._scheduler.shutdown(wait=False)
        end_s = time.monotonic() + wait_s
        for thread in list(self._threads):
            thread.join(max(0.0, end_s - time.monotonic()))
        if not self._threads:
            for runner in self.runners:
                runner.disconnect()
        if self.error is not None:
            raise self.error

    def _keep_leases(self) -> None:
        for runner in self.runners:
            runner.keep_leases()

    def _run(self, runner: JobRunner, job: Job) -> None:
        if job.schedule.shared_lease:  # its run continues over many moments
            self._change(job, lambda scheduled: scheduled.pause())
        end = runner.run(job, self._stopping.wait)
        now = datetime.now(UTC)
        # APScheduler would count on from this call, which was not at a moment: at the start, or later because
        # another analyzer did the job, it failed, or the database's clock is behind this machine's.
        if end.wait_s is None:
            next_time = EPOCH + timedelta(milliseconds=job.schedule.next_ms(int(now.timestamp() * 1000)))
        else:
            next_time = now + timedelta(seconds=end.wait_s)
        self._change(job, lambda scheduled: scheduled.modify(next_run_time=next_time))

    def _change(self, job: Job, change: Callable[[Any], object]) -> None:
        scheduled = None if self._stopping.is_set() else self._scheduler.get_job(job.name)
        if scheduled is not None:
            change(scheduled)

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
