"""Queues of jobs, one per key: which job is next, and which worker may run it. Runs nothing itself."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, Generic, NamedTuple, TypeVar

from gatekeeper.limits.engine.key_states import init_in_children
from gatekeeper.limits.engine.protocol import Key

R = TypeVar("R")
log: Final = logging.getLogger("gatekeeper.limits")


class JobFuture(Future[R], Generic[R]):
    """A future that logs its job's exception if it is dropped before the result was read."""

    def __init__(self, key: Key) -> None:
        super().__init__()
        self.key = key
        self.was_read = False

    def result(self, timeout: float | None = None) -> R:
        """Returns the job's result. Raises what the job raised."""
        self.was_read = True
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Returns what the job raised; None when it returned."""
        self.was_read = True
        return super().exception(timeout)

    def __del__(self) -> None:
        if not self.was_read and self.done() and not self.cancelled():
            error = super().exception()
            if error is not None:
                log.error("a job of %r failed, and its result was not read", self.key, exc_info=error)


class QueuedJob(NamedTuple):
    """A function to run, and the future of its result."""

    future: JobFuture[Any]
    function: Callable[[], Any]


class JobQueue:
    """The jobs of one key."""

    __slots__ = ("drained", "has_worker", "high", "is_ready", "low")

    def __init__(self) -> None:
        self.high: deque[QueuedJob] = deque()
        self.low: deque[QueuedJob] = deque()
        self.has_worker = False
        self.is_ready = False  # whether the key is in the list of those that wait for a worker
        self.drained: list[Future[None]] = []  # done when the queue is empty; until then it takes no jobs

    def __len__(self) -> int:
        return len(self.high) + len(self.low)


class KeyedJobQueues:
    """All queues: at most one worker per key, high jobs before low ones, each in order of arrival.

    Queues that wait for a worker get one in turn. One mutex guards everything, so no job is lost between
    two calls.
    """

    def __init__(self, workers: int, yield_after: int) -> None:
        self._workers_max = workers
        self._yield_after = yield_after
        self.init_process_state()
        init_in_children(self)

    def init_process_state(self) -> None:
        """Starts empty: on creation, and in a forked child, which has none of the workers."""
        self._mutex = threading.RLock()
        self._queues: dict[Key, JobQueue] = {}
        self._ready: deque[Key] = deque()
        self._workers = 0
        self.closed = False

    def add(self, key: Key, job: QueuedJob, high: bool) -> bool:
        """Adds a job; returns whether the caller must start a worker.

        Raises RuntimeError when the key is being removed, or the scheduler is closed.
        """
        with self._mutex:
            queue = self._queues.get(key)
            if self.closed or (queue is not None and queue.drained):
                reason = "the scheduler is closed" if self.closed else "the key is being removed"
                raise RuntimeError(f"{key!r} takes no more jobs: {reason}")
            if queue is None:
                queue = self._queues[key] = JobQueue()
            (queue.high if high else queue.low).append(job)
            if queue.has_worker or queue.is_ready:
                return False
            queue.is_ready = True
            self._ready.append(key)
            starts_worker = self._workers < self._workers_max
            self._workers += starts_worker
            return starts_worker

    def assign(self) -> Key | None:
        """Returns the key whose jobs a free worker runs next; None if no key waits: the worker must end."""
        with self._mutex:
            if not self._ready:
                self._workers -= 1
                return None
            key = self._ready.popleft()
            queue = self._queues[key]
            queue.is_ready, queue.has_worker = False, True
            return key

    def next(self, key: Key, done: int) -> QueuedJob | None:
        """Returns the next job of `key` for a worker that ran `done` in a row; None: it leaves the key."""
        with self._mutex:
            queue = self._queues[key]
            while queue and not (done >= self._yield_after and self._ready):
                job = (queue.high or queue.low).popleft()
                if job.future.set_running_or_notify_cancel():
                    return job
            queue.has_worker = False
            if queue:
                queue.is_ready = True  # behind the others; this worker takes the first of them next
                self._ready.append(key)
            else:
                del self._queues[key]
            drained = [] if queue else queue.drained
        for future in drained:
            future.set_result(None)
        return None

    def pending(self, key: Key) -> int:
        """Returns how many jobs of `key` wait, without the one that runs."""
        with self._mutex:
            return len(self._queues.get(key, ()))

    def close(self, key: Key) -> Future[None]:
        """Takes no more jobs of `key` until its queue is empty; the future is done then."""
        drained: Future[None] = Future()
        with self._mutex:
            queue = self._queues.get(key)
            if queue is not None:
                queue.drained.append(drained)
                return drained
        drained.set_result(None)
        return drained

    def close_all(self) -> list[Future[None]]:
        """Takes no more jobs of any key; returns the future of each queue that is not empty yet."""
        with self._mutex:
            self.closed = True
            return [self.close(key) for key in list(self._queues)]

    def cancel(self, key: Key) -> int:
        """Cancels the jobs of `key` that wait; returns how many. The one that runs continues."""
        with self._mutex:
            queue = self._queues.get(key)
            jobs = [] if queue is None else [*queue.high, *queue.low]
            if queue is not None:
                queue.high.clear()
                queue.low.clear()
        return sum(not job.future.cancelled() and job.future.cancel() for job in jobs)
