"""KeyedScheduler and AsyncKeyedScheduler: jobs in order per key, many keys at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from gatekeeper.limits.engine import key_states
from gatekeeper.limits.engine.protocol import Key
from gatekeeper.limits.engine.units import whole_number
from gatekeeper.limits.schedulers.lanes import JobResult, LaneJob, Lanes

R = TypeVar("R")


class KeyedScheduler:
    """Runs jobs in at most `workers` threads: one at a time per key, in order.

    Promise: never two at once for one key; high ones before the others, each in the order of
    arrival; the running one is never interrupted, and none runs in the thread that submits it. A
    worker that has run `yield_after` jobs of a key goes on to another key, if one waits, so that no
    key starves. An exception goes into the job's future, and into the log when nobody looks there.
    Threads begin with the first job and end with the last: an idle scheduler has none.
    """

    __slots__ = ("_lanes", "_threads")

    def __init__(self, workers: int, yield_after: int = 10) -> None:
        """Raises ValueError for a number below 1."""
        self._lanes = Lanes(whole_number(workers, "workers"), whole_number(yield_after, "yield_after"))
        self._threads: set[threading.Thread] = set()
        key_states.forked_registry.add(self._lanes)

    def submit(self, key: Key, function: Callable[[], R], high: bool = False) -> Future[R]:
        """The result to come of `function`. Raises RuntimeError once the key is being removed."""
        future: JobResult[R] = JobResult(key)
        if self._lanes.add(key, LaneJob(future, function), high):
            thread = threading.Thread(target=self._work, name="keyed scheduler", daemon=True)
            self._threads.add(thread)
            thread.start()
        return future

    def pending(self, key: Key) -> int:
        """How many jobs of `key` wait; the one that runs is not among them."""
        return self._lanes.pending(key)

    def remove(self, key: Key) -> Future[None]:
        """Take no more for `key`; done when what it has is drained. Then it is a new key."""
        return self._lanes.close(key)

    def abort(self, key: Key) -> int:
        """Cancel the jobs of `key` that wait; how many they were. The one that runs goes on."""
        return self._lanes.cancel(key)

    def close(self, timeout: float | None = None) -> None:
        """Take nothing more and wait until all is drained. Raises TimeoutError after `timeout` s."""
        for drained in self._lanes.close_all():
            drained.result(timeout)
        for thread in list(self._threads):
            if thread is not threading.current_thread():
                thread.join(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        while (key := self._lanes.begin()) is not None:
            done = 0
            while (job := self._lanes.next(key, done)) is not None:
                _run(job)
                done += 1
        self._threads.discard(threading.current_thread())


class AsyncKeyedScheduler:
    """The same for coroutine functions, in tasks of the loop in which they are submitted.

    Futures are asyncio's. Cancelling the future of a job that waits drops it; the running one goes on.
    """

    __slots__ = ("_lanes", "_tasks")

    def __init__(self, workers: int, yield_after: int = 10) -> None:
        """Raises ValueError for a number below 1."""
        self._lanes = Lanes(whole_number(workers, "workers"), whole_number(yield_after, "yield_after"))
        self._tasks: set[asyncio.Task[None]] = set()
        key_states.forked_registry.add(self._lanes)

    def submit(
        self, key: Key, function: Callable[[], Coroutine[Any, Any, R]], high: bool = False
    ) -> asyncio.Future[R]:
        """The result to come of `await function()`. Raises RuntimeError once the key is being removed."""
        future: JobResult[R] = JobResult(key)
        if self._lanes.add(key, LaneJob(future, function), high):
            task = asyncio.get_running_loop().create_task(self._work())
            self._tasks.add(task)  # a loop holds its tasks weakly
            task.add_done_callback(self._tasks.discard)
        return asyncio.wrap_future(future)

    def pending(self, key: Key) -> int:
        """How many jobs of `key` wait; the one that runs is not among them."""
        return self._lanes.pending(key)

    async def remove(self, key: Key) -> None:
        """Take no more for `key`, and return when what it has is drained. Then it is a new key."""
        await asyncio.wrap_future(self._lanes.close(key))

    def abort(self, key: Key) -> int:
        """Cancel the jobs of `key` that wait; how many they were. The one that runs goes on."""
        return self._lanes.cancel(key)

    async def close(self) -> None:
        """Take nothing more, and return when all is drained."""
        for drained in self._lanes.close_all():
            await asyncio.wrap_future(drained)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _work(self) -> None:
        while (key := self._lanes.begin()) is not None:
            done = 0
            while (job := self._lanes.next(key, done)) is not None:
                await _run_async(job)
                done += 1


def _run(job: LaneJob) -> None:
    try:
        job.future.set_result(job.function())
    except BaseException as error:  # noqa: BLE001 - whatever it is belongs to whoever holds the future
        job.future.set_exception(error)


async def _run_async(job: LaneJob) -> None:
    try:
        job.future.set_result(await job.function())
    except asyncio.CancelledError as error:
        job.future.set_exception(error)
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # the loop shuts down; not a job that gave up
            raise
    except Exception as error:  # noqa: BLE001 - it belongs to whoever holds the future
        job.future.set_exception(error)
