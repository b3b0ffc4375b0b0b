"""Jobs in order per key, many keys at once: as threads, and as asyncio tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from gatekeeper.limits.engine.protocol import Key
from gatekeeper.limits.engine.units import whole_number
from gatekeeper.limits.schedulers.job_queues import JobFuture, KeyedJobQueues, QueuedJob

R = TypeVar("R")


class KeyedScheduler:
    """Runs jobs one at a time per key, in order, in at most `workers` threads.

    Two jobs of one key never run at once. High jobs come before the others, each in order of arrival; a
    running job is never interrupted, and none runs in the thread that submits it. An exception goes into the
    job's future, and is logged if the future is dropped unread. Threads start with the first job and end
    with the last: an idle scheduler has none.

    Known elsewhere as serial executors, or as an actor's mailbox per key.

    Args:
        workers: Threads at most; a whole number from 1.
        yield_after: Jobs of one key that a worker runs in a row while other keys wait, so that no key
            starves; a whole number from 1, 10 by default.

    Raises:
        ValueError: A number below 1.

    Example:
        >>> with KeyedScheduler(workers=8) as sessions:
        ...     sessions.submit("session 7", lambda: "sent").result(timeout=5)
        'sent'
    """

    __slots__ = ("_queues", "_threads")

    def __init__(self, workers: int, yield_after: int = 10) -> None:
        self._queues = KeyedJobQueues(
            whole_number(workers, "workers"), whole_number(yield_after, "yield_after")
        )
        self._threads: set[threading.Thread] = set()

    def submit(self, key: Key, function: Callable[[], R], high: bool = False) -> Future[R]:
        """Returns the future result of `function`; a `high` job runs before all others of its key that wait.

        A future that is cancelled while its job waits drops the job. Raises RuntimeError when the key is
        being removed, or the scheduler is closed.
        """
        future: JobFuture[R] = JobFuture(key)
        if self._queues.add(key, QueuedJob(future, function), high):
            thread = threading.Thread(target=self._work, name="keyed scheduler", daemon=True)
            self._threads.add(thread)
            thread.start()
        return future

    def pending(self, key: Key) -> int:
        """Returns how many jobs of `key` wait, without the one that runs."""
        return self._queues.pending(key)

    def remove(self, key: Key) -> Future[None]:
        """Takes no more jobs of `key`; the future is done when those that wait have run.

        After that the scheduler takes jobs of `key` again.
        """
        return self._queues.close(key)

    def abort(self, key: Key) -> int:
        """Cancels the jobs of `key` that wait; returns how many. The one that runs continues."""
        return self._queues.cancel(key)

    def close(self, timeout: float | None = None) -> None:
        """Takes no more jobs, and returns when all that wait have run.

        Raises TimeoutError when the jobs of one key need more than `timeout` seconds.
        """
        for drained in self._queues.close_all():
            drained.result(timeout)
        for thread in list(self._threads):
            if thread is not threading.current_thread():
                thread.join(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        while (key := self._queues.assign()) is not None:
            done = 0
            while (job := self._queues.next(key, done)) is not None:
                _run(job)
                done += 1
        self._threads.discard(threading.current_thread())


class AsyncKeyedScheduler:
    """Runs coroutine functions one at a time per key, in order, in at most `workers` asyncio tasks.

    Two jobs of one key never run at once; high jobs come before the others, each in order of arrival. Tasks
    belong to the loop in which a job is submitted, and an idle scheduler has none. Futures are asyncio's:
    cancelling that of a job that waits drops the job, a running one continues. asyncio reports an exception
    whose future is dropped unread.

    Args:
        workers: Tasks at most; a whole number from 1.
        yield_after: Jobs of one key that a worker runs in a row while other keys wait, so that no key
            starves; a whole number from 1, 10 by default.

    Raises:
        ValueError: A number below 1.

    Example:
        >>> import asyncio
        >>> async def main():
        ...     async with AsyncKeyedScheduler(workers=8) as sessions:
        ...         return await sessions.submit("session 7", lambda: asyncio.sleep(0, "sent"))
        >>> asyncio.run(main())
        'sent'
    """

    __slots__ = ("_queues", "_tasks")

    def __init__(self, workers: int, yield_after: int = 10) -> None:
        self._queues = KeyedJobQueues(
            whole_number(workers, "workers"), whole_number(yield_after, "yield_after")
        )
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(
        self, key: Key, function: Callable[[], Coroutine[Any, Any, R]], high: bool = False
    ) -> asyncio.Future[R]:
        """Returns the future result of `await function()`.

        A `high` job runs before all others of its key that wait. Raises RuntimeError when the key is being
        removed, or the scheduler is closed.
        """
        future: JobFuture[R] = JobFuture(key)
        if self._queues.add(key, QueuedJob(future, function), high):
            task = asyncio.get_running_loop().create_task(self._work())
            self._tasks.add(task)  # a loop holds its tasks weakly
            task.add_done_callback(self._tasks.discard)
        return asyncio.wrap_future(future)

    def pending(self, key: Key) -> int:
        """Returns how many jobs of `key` wait, without the one that runs."""
        return self._queues.pending(key)

    async def remove(self, key: Key) -> None:
        """Takes no jobs of `key` until those that wait have run, and returns then."""
        await asyncio.wrap_future(self._queues.close(key))

    def abort(self, key: Key) -> int:
        """Cancels the jobs of `key` that wait; returns how many. The one that runs continues."""
        return self._queues.cancel(key)

    async def close(self) -> None:
        """Takes no more jobs, and returns when all that wait have run."""
        for drained in self._queues.close_all():
            await asyncio.wrap_future(drained)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _work(self) -> None:
        while (key := self._queues.assign()) is not None:
            done = 0
            while (job := self._queues.next(key, done)) is not None:
                await _run_async(job)
                done += 1


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
    except Exception as error:  # noqa: BLE001 - it belongs to the reader of the future
        job.future.set_exception(error)
