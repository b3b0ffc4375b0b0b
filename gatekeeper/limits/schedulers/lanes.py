"""Jobs in lanes, one lane a key: which comes next, and who may work on it. Runs nothing itself."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, Generic, NamedTuple, TypeVar

from gatekeeper.limits.engine.protocol import Key

R = TypeVar("R")
LOG: Final = logging.getLogger("gatekeeper.limits")


class JobResult(Future[R], Generic[R]):
    """A future that reports an exception when it is dropped and nobody has looked."""

    def __init__(self, key: Key) -> None:
        super().__init__()
        self.key = key
        self.looked = False

    def result(self, timeout: float | None = None) -> R:
        """What the job returned. Raises what it raised."""
        self.looked = True
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the job raised."""
        self.looked = True
        return super().exception(timeout)

    def __del__(self) -> None:
        if not self.looked and self.done() and not self.cancelled():
            error = super().exception()
            if error is not None:
                LOG.error("a job of %r failed, and nobody looked", self.key, exc_info=error)


class LaneJob(NamedTuple):
    """What is to be done, and where its outcome goes."""

    future: JobResult[Any]
    function: Callable[[], Any]


class Lane:
    """The jobs of one key."""

    __slots__ = ("closing", "high", "low", "waits", "worked")

    def __init__(self) -> None:
        self.high: deque[LaneJob] = deque()
        self.low: deque[LaneJob] = deque()
        self.worked = False  # somebody is at it
        self.waits = False  # it is in the row of those that want a worker
        self.closing: list[Future[None]] = []  # told when it is empty; it takes nothing new

    def __len__(self) -> int:
        return len(self.high) + len(self.low)


class Lanes:
    """Promise: one worker a lane, high before low, in the order of arrival within each; lanes that
    want a worker get one in turn. All under one mutex, so nothing is lost between two looks."""

    def __init__(self, workers: int, yield_after: int) -> None:
        self._workers_max = workers
        self._yield_after = yield_after
        self.renew()

    def renew(self) -> None:
        """Start empty: at birth, and in a forked child, which has none of the workers."""
        self._mutex = threading.RLock()
        self._lanes: dict[Key, Lane] = {}
        self._row: deque[Key] = deque()
        self._workers = 0
        self.closed = False

    def add(self, key: Key, job: LaneJob, high: bool) -> bool:
        """Whether a worker must be started for it. Raises RuntimeError when the lane or all is closed."""
        with self._mutex:
            lane = self._lanes.get(key)
            if self.closed or (lane is not None and lane.closing):
                raise RuntimeError(f"{key!r} takes no more jobs: it is being removed")
            if lane is None:
                lane = self._lanes[key] = Lane()
            (lane.high if high else lane.low).append(job)
            if lane.worked or lane.waits:
                return False
            lane.waits = True
            self._row.append(key)
            more = self._workers < self._workers_max
            self._workers += more
            return more

    def begin(self) -> Key | None:
        """The lane that a worker without one takes; None: there is none, and the worker ends."""
        with self._mutex:
            if not self._row:
                self._workers -= 1
                return None
            key = self._row.popleft()
            lane = self._lanes[key]
            lane.waits, lane.worked = False, True
            return key

    def next(self, key: Key, done: int) -> LaneJob | None:
        """The next job of the lane after `done` in a row; None: the worker leaves the lane."""
        with self._mutex:
            lane = self._lanes[key]
            while lane and not (done >= self._yield_after and self._row):
                job = (lane.high or lane.low).popleft()
                if job.future.set_running_or_notify_cancel():
                    return job
            lane.worked = False
            if lane:
                lane.waits = True  # behind the others; this worker looks into the row next
                self._row.append(key)
            else:
                del self._lanes[key]
            told = [] if lane else lane.closing
        for each in told:
            each.set_result(None)
        return None

    def pending(self, key: Key) -> int:
        """How many wait in the lane; the one that runs is not among them."""
        with self._mutex:
            return len(self._lanes.get(key, ()))

    def close(self, key: Key) -> Future[None]:
        """Take nothing new; done when what is there has run. Then the key is a new one."""
        drained: Future[None] = Future()
        with self._mutex:
            lane = self._lanes.get(key)
            if lane is not None:
                lane.closing.append(drained)
                return drained
        drained.set_result(None)
        return drained

    def close_all(self) -> list[Future[None]]:
        """Take nothing new at all; each lane's drained future."""
        with self._mutex:
            self.closed = True
            return [self.close(key) for key in list(self._lanes)]

    def cancel(self, key: Key) -> int:
        """Cancel all that wait in the lane; how many that were. The one that runs goes on."""
        with self._mutex:
            lane = self._lanes.get(key)
            jobs = [] if lane is None else [*lane.high, *lane.low]
            if lane is not None:
                lane.high.clear()
                lane.low.clear()
        return sum(not job.future.cancelled() and job.future.cancel() for job in jobs)
