"""Jobs in order per key, many keys at once: as threads, and as asyncio tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from gatekeeper.limits.engine.protocol import Key
from gatekeeper.limits.schedulers.job_queues import (
    JobFuture,
    KeyedJobQueues,
    QueuedJob,
    QueueEvent,
    QueueWorker,
    WaitingJob,
    require_job,
)

R = TypeVar("R")


class BaseKeyedScheduler:
    """Base of both keyed schedulers: the queues, and the methods that need no worker."""

    __slots__ = ("_queues", "_running")

    def __init__(
        self,
        workers: int,
        yield_after: int = 10,
        *,
        trace: Callable[[QueueEvent], object] | None = None,
    ) -> None:
        self._queues = KeyedJobQueues(workers, yield_after, trace)
        self._running: set[Any] = set()  # threads, or tasks, which a loop holds weakly

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._queues!r}>"

    @property
    def yield_after(self) -> int:
        """Jobs of one key that a worker runs in a row while other keys wait; may be set at any time.

        A number below 1 becomes 1, one above 10,000 becomes 10,000. Raises TypeError for another type.
        """
        return self._queues.yield_after

    @yield_after.setter
    def yield_after(self, jobs: int) -> None:
        self._queues.yield_after = jobs

    def pending(self, key: Key) -> int:
        """Returns how many jobs of `key` wait, without the one that runs."""
        return self._queues.pending(key)

    def scheduled(self, key: Key | None = None) -> list[WaitingJob]:
        """Returns the jobs that wait, without those that run: of `key`, or of all keys for None.

        Those of one key are in the order in which they will run.
        """
        return self._queues.scheduled(key)

    def abort(self, key: Key) -> int:
        """Cancels the jobs of `key` that wait; returns how many. The one that runs continues."""
        return self._queues.cancel(key)


class KeyedScheduler(BaseKeyedScheduler):
    """Runs jobs one at a time per key, in order, in at most `workers` threads.

    Two jobs of one key never run at once. High jobs come before the others, each in order of arrival; a
    running job is never interrupted, and none runs in the thread that submits it. An exception goes into the
    job's future, and is logged if the future is dropped unread. Threads start with the first job and end
    with the last: an idle scheduler has none.

    Known elsewhere as serial executors, or as an actor's mailbox per key.

    Args:
        workers: Threads at most; a whole number from 1.
        yield_after: Jobs of one key that a worker runs in a row while other keys wait, so that no key
            starves; a whole number from 1, at most 10,000, 10 by default. It may be set later.
        trace: Called with a `QueueEvent` when a worker yields a key, a key is removed, or jobs are aborted;
            what it raises is logged. None by default.

    Raises:
        ValueError: A number below 1.
        TypeError: A `trace` that cannot be called.

    Example:
        >>> with KeyedScheduler(workers=8) as sessions:
        ...     sessions.submit("session 7", lambda: "sent").result(timeout=5)
        'sent'
    """

    __slots__ = ()

    def submit(self, key: Key, function: Callable[[], R], high: bool = False) -> Future[R]:
        """Returns the future result of `function`; a `high` job runs before all others of its key that wait.

        A future that is cancelled while its job waits drops the job. Raises RuntimeError when the key is
        being removed, the scheduler is closed, or no thread can be started; ValueError for the key "";
        TypeError for another type of key, or a function that cannot be called.
        """
        require_job(key, function)
        future: JobFuture[R] = JobFuture(key)
        worker = self._queues.add(key, QueuedJob(future, function, future), high)
        if worker is not None:
            thread = threading.Thread(target=self._work, args=(worker,), name="keyed scheduler", daemon=True)
            self._running.add(thread)
            try:
                thread.start()
            except RuntimeError:  # no thread is available: the caller may try again
                future.cancel()
                self._running.discard(thread)
                self._queues.lose(worker)
                raise
        return future

    def remove(self, key: Key) -> Future[None]:
        """Takes no more jobs of `key`; the future is done when those that wait have run.

        After that the scheduler takes jobs of `key` again.
        """
        return self._queues.close(key)

    def close(self, timeout: float | None = None) -> None:
        """Takes no more jobs, and returns when all that wait have run.

        Raises TimeoutError when the jobs of one key need more than `timeout` seconds.
        """
        for drained in self._queues.close_all():
            drained.result(timeout)
        for thread in list(self._running):
            if thread is not threading.current_thread():
                thread.join(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self, worker: QueueWorker) -> None:
        while (key := self._queues.assign(worker)) is not None:
            jobs_run = 0
            while (job := self._queues.next(key, jobs_run)) is not None:
                _run(job)
                jobs_run += 1
        self._running.discard(threading.current_thread())


class AsyncKeyedScheduler(BaseKeyedScheduler):
    """Runs coroutine functions one at a time per key, in order, in at most `workers` asyncio tasks.

    Two jobs of one key never run at once; high jobs come before the others, each in order of arrival. Tasks
    belong to the loop in which a job is submitted, and an idle scheduler has none. Futures are asyncio's:
    cancelling that of a job that waits drops the job, a running one continues. asyncio reports an exception
    whose future is dropped unread. The scheduler survives its loop: jobs of a loop that is closed are
    dropped, and their keys are free for the next loop.

    Args:
        workers: Tasks at most; a whole number from 1.
        yield_after: Jobs of one key that a worker runs in a row while other keys wait, so that no key
            starves; a whole number from 1, at most 10,000, 10 by default. It may be set later.
        trace: Called with a `QueueEvent` when a worker yields a key, a key is removed, or jobs are aborted;
            what it raises is logged. None by default.

    Raises:
        ValueError: A number below 1.
        TypeError: A `trace` that cannot be called.

    Example:
        >>> import asyncio
        >>> async def main():
        ...     async with AsyncKeyedScheduler(workers=8) as sessions:
        ...         return await sessions.submit("session 7", lambda: asyncio.sleep(0, "sent"))
        >>> asyncio.run(main())
        'sent'
    """

    __slots__ = ()

    def submit(
        self, key: Key, function: Callable[[], Coroutine[Any, Any, R]], high: bool = False
    ) -> asyncio.Future[R]:
        """Returns the future result of `await function()`.

        A `high` job runs before all others of its key that wait. Raises RuntimeError when the key is being
        removed, or the scheduler is closed; ValueError for the key ""; TypeError for another type of key,
        or for what is not a function, such as a coroutine.
        """
        require_job(key, function)
        loop = self._enter_loop()
        future: JobFuture[R] = JobFuture(key)
        wrapped = asyncio.wrap_future(future)
        worker = self._queues.add(key, QueuedJob(future, function, wrapped, loop), high)
        if worker is not None:
            task = loop.create_task(self._work(worker))
            self._running.add(task)
            task.add_done_callback(lambda ended: self._end(ended, worker))
        return wrapped

    async def remove(self, key: Key) -> None:
        """Takes no jobs of `key` until those that wait have run, and returns then."""
        self._enter_loop()
        await asyncio.wrap_future(self._queues.close(key))

    async def close(self) -> None:
        """Takes no more jobs, and returns when all that wait have run."""
        self._enter_loop()
        for drained in self._queues.close_all():
            await asyncio.wrap_future(drained)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _enter_loop(self) -> asyncio.AbstractEventLoop:
        """Returns the running loop; drops what is left of loops that are closed when it is another one."""
        loop = asyncio.get_running_loop()
        if self._queues.enter_loop(loop):
            self._running = {task for task in self._running if not task.get_loop().is_closed()}
        return loop

    def _end(self, task: asyncio.Task[None], worker: QueueWorker) -> None:
        """Frees the key of a worker that was cancelled with its loop, or ended by an exception."""
        self._running.discard(task)
        self._queues.lose(worker)

    async def _work(self, worker: QueueWorker) -> None:
        while (key := self._queues.assign(worker)) is not None:
            jobs_run = 0
            while (job := self._queues.next(key, jobs_run)) is not None:
                await _run_async(job)
                jobs_run += 1


def _run(job: QueuedJob) -> None:
    try:
        job.future.set_result(job.function())
    except BaseException as error:  # noqa: BLE001 - every exception belongs to the reader of the future
        job.future.set_exception(error)


async def _run_async(job: QueuedJob) -> None:
    try:
        job.future.set_result(await job.function())
    except asyncio.CancelledError as error:
        job.future.set_exception(error)
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # the loop shuts down; the job did not raise it itself
            raise
    except (KeyboardInterrupt, SystemExit) as error:  # these end the loop; the future must not stay open
        job.future.set_exception(error)
        raise
    except BaseException as error:  # noqa: BLE001 - it belongs to the reader of the future
        job.future.set_exception(error)
