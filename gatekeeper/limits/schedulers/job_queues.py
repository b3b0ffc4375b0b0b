"""Queues of jobs, one per key: which job is next, and which worker may run it. Runs nothing itself."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

from gatekeeper.limits.engine.key_states import init_in_children
from gatekeeper.limits.engine.protocol import Key
from gatekeeper.limits.engine.units import require_callable, require_key, whole_number
from gatekeeper.log_pace import LogPace

R = TypeVar("R")
log: Final = logging.getLogger("gatekeeper.limits")
_unread_pace: Final = LogPace()
# With more jobs in a row, `yield_after` would not protect other keys from a busy one any more.
YIELD_AFTER_MAX: Final = 10_000


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
            if error is not None and (more := _unread_pace.next_line()) is not None:
                log.error("a job of %r failed, and its result was not read%s", self.key, more, exc_info=error)


class QueuedJob(NamedTuple):
    """A function to run, the future of its result, and what `submit` returned for it."""

    future: JobFuture[Any]
    function: Callable[[], Any]
    handle: Any
    loop: asyncio.AbstractEventLoop | None = None  # that the handle belongs to; None for threads

    def is_orphaned(self) -> bool:
        """Whether its loop is closed, so that nothing can wait for the result."""
        return self.loop is not None and self.loop.is_closed()


class WaitingJob(NamedTuple):
    """A job that waits for its turn, as `scheduled` of a keyed scheduler returns it.

    Attributes:
        key: The key that it was submitted for.
        high: Whether it runs before all others of its key.
        future: What `submit` returned for it; cancelling it drops the job.

    Example:
        >>> from gatekeeper.limits import KeyedScheduler
        >>> with KeyedScheduler(workers=1) as sessions:
        ...     [job.key for job in sessions.scheduled()]
        []
    """

    key: Key
    high: bool
    future: Any


class QueueEvent(NamedTuple):
    """A change of a key's queue that a keyed scheduler made, for its `trace`.

    Attributes:
        kind: "yielded" when a worker left the key to others although jobs wait; "removed" when the queue is
            empty after `remove`, and forgotten; "aborted" when waiting jobs were cancelled.
        key: The key of the queue.
        jobs: For "yielded" the jobs that the worker ran in a row, for "aborted" those that were cancelled,
            for "removed" 0.

    Example:
        >>> from gatekeeper.limits import KeyedScheduler
        >>> seen = []
        >>> with KeyedScheduler(workers=1, trace=seen.append) as sessions:
        ...     sessions.abort("session 7")
        0
        >>> seen
        [QueueEvent(kind='aborted', key='session 7', jobs=0)]
    """

    kind: Literal["yielded", "removed", "aborted"]
    key: Key
    jobs: int


class QueueWorker:
    """A thread or task that runs jobs, and the key that it has at present."""

    __slots__ = ("key", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self.key: Key | None = None
        self.loop = loop  # None for a thread


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

    def __init__(self, workers: int, yield_after: int, trace: Callable[[QueueEvent], object] | None) -> None:
        self._workers_max = whole_number(workers, "workers")
        self._yield_after = min(whole_number(yield_after, "yield_after"), YIELD_AFTER_MAX)
        self._trace = None if trace is None else require_callable(trace, "trace")
        self._failure_pace = LogPace()
        self.init_process_state()
        init_in_children(self)

    def init_process_state(self) -> None:
        """Starts empty: on creation, and in a forked child, which has none of the workers."""
        self._mutex = threading.RLock()
        self._queues: dict[Key, JobQueue] = {}
        self._ready: deque[Key] = deque()
        self._workers: set[QueueWorker] = set()
        self._lacks_worker = False  # a worker was lost while keys waited for one
        self._loop: asyncio.AbstractEventLoop | None = None  # that called last
        self.closed = False

    def __repr__(self) -> str:
        return f"{self._workers_max} workers, {len(self._queues)} keys with jobs"

    @property
    def yield_after(self) -> int:
        """Jobs of one key that a worker runs in a row while other keys wait."""
        return self._yield_after

    @yield_after.setter
    def yield_after(self, jobs: int) -> None:
        if type(jobs) is not int:
            raise TypeError(f"yield_after: expected a whole number, got {jobs!r}")
        self._yield_after = max(1, min(jobs, YIELD_AFTER_MAX))

    def add(self, key: Key, job: QueuedJob, high: bool) -> QueueWorker | None:
        """Adds a job; returns the worker that the caller must start, or None.

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
            if not queue.has_worker and not queue.is_ready:
                queue.is_ready = True
                self._ready.append(key)
            elif not self._lacks_worker:
                return None
            if len(self._workers) >= self._workers_max:
                return None
            self._lacks_worker = False
            worker = QueueWorker(job.loop)
            self._workers.add(worker)
            return worker

    def assign(self, worker: QueueWorker) -> Key | None:
        """Returns the key whose jobs `worker` runs next; None if no key waits: the worker must end."""
        with self._mutex:
            if not self._ready:
                self._workers.discard(worker)
                return None
            worker.key = key = self._ready.popleft()
            queue = self._queues[key]
            queue.is_ready, queue.has_worker = False, True
            return key

    def next(self, key: Key, jobs_run: int) -> QueuedJob | None:
        """Returns the next job of `key` for a worker after `jobs_run` in a row; None: it leaves the key."""
        with self._mutex:
            queue = self._queues[key]
            while queue and not (jobs_run >= self._yield_after and self._ready):
                job = (queue.high or queue.low).popleft()
                if job.future.set_running_or_notify_cancel():
                    return job
            yielded = bool(queue)
            drained = self._leave(key, queue)
        if yielded:
            self.report("yielded", key, jobs_run)
        self._set_drained({key: drained})
        return None

    def lose(self, worker: QueueWorker) -> None:
        """Frees the key of a worker that ended before it had left it. Does nothing for one that did."""
        with self._mutex:
            drained = self._free(worker) if worker in self._workers else {}
        self._set_drained(drained)

    def enter_loop(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Drops jobs and workers of loops that are closed, so that their keys are free for `loop`.

        Returns whether `loop` is another one than before; if not, nothing is searched.
        """
        drained: dict[Key, list[Future[None]]] = {}
        with self._mutex:
            if loop is self._loop:
                return False
            self._loop = loop
            for worker in [worker for worker in self._workers if worker.loop and worker.loop.is_closed()]:
                drained |= self._free(worker)
            for key, queue in list(self._queues.items()):
                queue.high = deque(job for job in queue.high if not job.is_orphaned())
                queue.low = deque(job for job in queue.low if not job.is_orphaned())
                if not queue and queue.is_ready:
                    self._ready.remove(key)
                    drained[key] = self._leave(key, queue)
            self._lacks_worker = bool(self._ready)
        self._set_drained(drained)
        return True

    def _free(self, worker: QueueWorker) -> dict[Key, list[Future[None]]]:
        """Forgets a worker; returns its key with the futures that are done now. The caller has the mutex."""
        self._workers.discard(worker)
        key = worker.key
        queue = None if key is None else self._queues.get(key)
        drained = {}
        if key is not None and queue is not None and queue.has_worker:
            drained[key] = self._leave(key, queue)
        self._lacks_worker = bool(self._ready)
        return drained

    def _leave(self, key: Key, queue: JobQueue) -> list[Future[None]]:
        """Ends the work at `queue`; returns the futures that are done now. The caller holds the mutex."""
        queue.has_worker = queue.is_ready = False
        if queue:
            queue.is_ready = True  # behind the others; a worker takes the first of them next
            self._ready.append(key)
            return []
        del self._queues[key]
        return queue.drained

    def _set_drained(self, drained: dict[Key, list[Future[None]]]) -> None:
        """Ends the waits for keys to be removed. Without the mutex, because this calls `trace`."""
        for key, futures in drained.items():
            for future in futures:
                if future.set_running_or_notify_cancel():  # its waiter may have given up
                    future.set_result(None)
            if futures:
                self.report("removed", key, 0)

    def report(self, kind: Literal["yielded", "removed", "aborted"], key: Key, jobs: int) -> None:
        """Calls `trace`; logs what it raises, because a worker must not end by it."""
        if self._trace is None:
            return
        try:
            self._trace(QueueEvent(kind, key, jobs))
        except Exception:
            if (more := self._failure_pace.next_line()) is not None:
                log.exception("the trace of a scheduler failed at %s of %r%s", kind, key, more)

    def pending(self, key: Key) -> int:
        """Returns how many jobs of `key` wait, without the one that runs."""
        return len(self.scheduled(key))

    def scheduled(self, key: Key | None) -> list[WaitingJob]:
        """Returns the waiting jobs of `key`, or of all for None; those of a key in the order they run."""
        with self._mutex:
            queues = self._queues if key is None else {key: self._queues.get(key, JobQueue())}
            return [
                WaitingJob(name, is_high, job.handle)
                for name, queue in queues.items()
                for is_high, jobs in ((True, queue.high), (False, queue.low))
                for job in jobs
                if not job.future.cancelled() and not job.is_orphaned()
            ]

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
        cancelled = sum(not job.future.cancelled() and job.future.cancel() for job in jobs)
        self.report("aborted", key, cancelled)
        return cancelled


def require_job(key: Key, function: Callable[[], Any]) -> None:
    """Raises TypeError for a key or function of another type, ValueError for the empty key."""
    require_callable(function, "function")
    if require_key(key) == "":
        raise ValueError("key: expected the key whose jobs run in order, got ''")
