"""A throughput shared by all callers, the most important first.

Waiters stand in one queue per priority. The first of all queues waits until the rule (a GCRA bucket) has a
departure; all others sleep until they are woken because they have become first. A waiter that leaves wakes
the next one. Jobs share one thread that waits for them in turn: when a job's turn comes, the thread starts a
successor that waits for the next job, and runs the job itself.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, Self, TypeVar

from gatekeeper.limits.algorithms.gcra import GcraRule
from gatekeeper.limits.engine.key_states import init_in_children, monotonic
from gatekeeper.limits.engine.protocol import NanosecondClock, Period
from gatekeeper.limits.engine.units import require_callable, to_ns, to_seconds, wait_to_ns, whole_number
from gatekeeper.limits.engine.wait_queue import (
    TaskWaker,
    ThreadWaker,
    WaitSteps,
    Waker,
    run_steps,
    run_steps_async,
)

R = TypeVar("R")


class ScheduledWork(NamedTuple):
    """A job, and the future of its result."""

    future: Future[Any]
    function: Callable[[], Any]

    def run(self) -> None:
        """Runs the job, and sets the future."""
        try:
            self.future.set_result(self.function())
        except BaseException as error:  # noqa: BLE001 - every exception belongs to the reader of the future
            self.future.set_exception(error)


class QueuedWaiter:
    """A caller or a job that waits for its turn."""

    __slots__ = ("number", "priority", "since_ns", "waker", "work")

    def __init__(
        self, priority: int, number: int, since_ns: int, waker: Waker, work: ScheduledWork | None
    ) -> None:
        self.priority = priority
        self.number = number  # in order of arrival
        self.since_ns = since_ns
        self.waker = waker
        self.work = work  # None: a caller, which continues by itself


class PriorityScheduler:
    """Admits `limit` callers or jobs per `period`, evenly, the highest priority first.

    Departures are period / limit apart, except for a `burst` saved up by idle time (a GCRA bucket, ITU-T
    I.371). Within one priority callers are served in order of arrival; a caller never overtakes a waiter of
    equal or higher priority. Strict priorities starve the low ones under a flood of important callers,
    unless `age_after` moves waiters up.

    Waiters sleep until their moment, so an idle scheduler has no thread and uses no processor. Threads and
    asyncio tasks may wait for the same one. Each running job has a thread.

    Args:
        limit: Departures per period; a whole number from 1.
        period: Seconds in which `limit` depart, or a timedelta; above 0.
        priorities: How many priorities there are: 0, the highest, up to `priorities` - 1. 1 by default.
        burst: Departures that idle time saves up, to leave at once; a whole number from 0. 0, the default,
            and 1 save none.
        age_after: Seconds of waiting that move a waiter up by one priority; above 0. None, the default, moves
            none.
        clock: Returns the time in whole nanoseconds since any moment; `time.monotonic_ns` by default.

    Raises:
        ValueError: A limit or a number of priorities below 1, a burst below 0, or a period or `age_after`
            below one nanosecond.

    Example:
        >>> from gatekeeper.testing import ManualClock
        >>> clock = ManualClock()
        >>> throttle = PriorityScheduler(limit=10, period=1, priorities=2, clock=clock)
        >>> throttle.acquire(priority=0), throttle.acquire(priority=1), clock.uptime_s()
        (True, True, 0.1)
    """

    __slots__ = (
        "__weakref__",
        "_age_ns",
        "_clock",
        "_closed",
        "_job_waker",
        "_jobs",
        "_mutex",
        "_number",
        "_queues",
        "_rule",
        "_state",
        "_threads",
    )

    def __init__(
        self,
        limit: int,
        period: Period,
        priorities: int = 1,
        burst: int = 0,
        *,
        age_after: float | None = None,
        clock: NanosecondClock = time.monotonic_ns,
    ) -> None:
        whole_number(burst, "burst", least=0)
        self._rule = GcraRule(limit, to_ns(period), max(1, burst))
        self._queues = [deque[QueuedWaiter]() for _ in range(whole_number(priorities, "priorities"))]
        self._age_ns = None if age_after is None else to_ns(age_after, "age_after")
        self._clock = clock if clock is time.monotonic_ns else monotonic(clock)
        self._state: int | None = None  # of the rule
        self._number = 0
        self._closed = False
        self.init_process_state()
        init_in_children(self)

    def __repr__(self) -> str:
        return f"<PriorityScheduler: {self._rule.description}, {len(self._queues)} priorities>"

    def init_process_state(self) -> None:
        """Starts without waiters: on creation, and in a forked child, which has no other thread."""
        self._mutex = threading.RLock()
        self._queues = [deque[QueuedWaiter]() for _ in self._queues]
        self._jobs = 0  # in the queues
        self._job_waker: ThreadWaker | None = None  # of the thread that waits for all jobs
        self._threads: set[threading.Thread] = set()

    def acquire(self, priority: int = 0, timeout: float | None = None) -> bool:
        """Waits for the caller's turn, and returns True; this thread waits.

        Returns False after `timeout` seconds, or when the scheduler is closed; nothing is used up then.
        Raises ValueError for an unknown priority or a negative timeout.
        """
        waker = ThreadWaker(self._clock)
        return run_steps(self._wait_steps(priority, timeout, waker), waker)

    async def acquire_async(self, priority: int = 0, timeout: float | None = None) -> bool:
        """Waits as `acquire` does, as an asyncio task; cancelling it uses nothing up."""
        waker = TaskWaker()
        return await run_steps_async(self._wait_steps(priority, timeout, waker), waker)

    def try_acquire(self, priority: int = 0) -> bool:
        """Whether the caller may go now, without a wait; false while one of equal or higher priority waits.

        Raises ValueError for an unknown priority.
        """
        self._require_priority(priority)
        with self._mutex:
            has_waiters = any(self._queues[: priority + 1])
            return not has_waiters and not self._closed and self._depart(self._clock())

    def submit(self, function: Callable[[], R], priority: int = 0) -> Future[R]:
        """Returns the future result of `function`, which a thread runs when its turn comes.

        A job that runs longer than the next one waits does not delay it. A job whose future is cancelled
        before its turn uses nothing up. Raises ValueError for an unknown priority, TypeError for what is not
        a function, and RuntimeError when the scheduler is closed.
        """
        self._require_priority(priority)
        require_callable(function, "function")
        future: Future[R] = Future()
        with self._mutex:
            if self._closed:
                raise RuntimeError("this scheduler is closed: it takes no more work")
            if self._job_waker is None:
                self._job_waker = ThreadWaker()
                self._start_thread(self._job_waker)
            self._join(priority, self._job_waker, ScheduledWork(future, function))
            self._job_waker.wake()
        return future

    def waiting(self) -> int:
        """Returns how many callers and jobs wait."""
        with self._mutex:
            return sum(map(len, self._queues))

    def configure(
        self, limit: int | None = None, period: Period | None = None, burst: int | None = None
    ) -> None:
        """Applies another throughput from now on; waiters keep their places, and what was used stays used.

        None keeps a number. Raises ValueError, and nothing changes.
        """
        if limit is not None:
            whole_number(limit, "limit")
        period_ns = None if period is None else to_ns(period)
        size = None if burst is None else max(1, whole_number(burst, "burst", least=0))
        with self._mutex:
            old, now_ns = self._rule, self._clock()
            self._rule = old.with_limits(limit, period_ns, size)
            self._state = None if self._state is None else self._rule.convert(old, self._state, now_ns)
            if (first := self._first(now_ns)) is not None:
                first.waker.wake()  # its turn may come at another moment now

    def close(self, timeout: float | None = None) -> None:
        """Admits none from now on: waiting callers get False, waiting jobs are cancelled.

        Returns when running jobs have ended, or after `timeout` seconds for each of them. Calling twice is
        safe.
        """
        with self._mutex:
            self._closed = True
            for queue in self._queues:
                for waiter in list(queue):
                    if waiter.work is not None:
                        queue.remove(waiter)
                        self._jobs -= 1
                        waiter.work.future.cancel()
                    waiter.waker.wake()
            threads = self._threads - {threading.current_thread()}
        for thread in threads:
            thread.join(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait_steps(self, priority: int, timeout: float | None, waker: Waker) -> WaitSteps[bool]:
        """Waits in steps; closing the generator leaves the queue."""
        self._require_priority(priority)
        timeout_ns = wait_to_ns(timeout, "timeout")
        end_ns = None if timeout_ns is None else self._clock() + timeout_ns
        with self._mutex:
            waiter = self._join(priority, waker, None)
        try:
            while not self._closed:
                with self._mutex:
                    now_ns = self._clock()
                    wait_ns = self._wait_ns(waiter, now_ns)
                    if wait_ns == 0:
                        return self._depart(now_ns)
                    left_ns = None if end_ns is None else end_ns - now_ns
                    if left_ns is not None and left_ns <= 0:
                        return False
                bounds_ns = [bound_ns for bound_ns in (wait_ns, left_ns) if bound_ns is not None]
                yield to_seconds(min(bounds_ns)) if bounds_ns else None
            return False
        finally:
            with self._mutex:
                self._leave(waiter)

    def _require_priority(self, priority: int) -> None:
        if priority not in range(len(self._queues)):
            raise ValueError(f"priority: expected 0 to {len(self._queues) - 1}, got {priority!r}")

    def _join(self, priority: int, waker: Waker, work: ScheduledWork | None) -> QueuedWaiter:
        self._number += 1
        waiter = QueuedWaiter(priority, self._number, self._clock(), waker, work)
        self._queues[priority].append(waiter)
        self._jobs += work is not None
        return waiter

    def _leave(self, waiter: QueuedWaiter) -> None:
        """Removes `waiter`, and wakes the one that is first then."""
        queue = self._queues[waiter.priority]
        if waiter in queue:
            queue.remove(waiter)
            self._jobs -= waiter.work is not None
        while (first := self._first(self._clock())) is not None and not first.waker.wake():
            self._queues[first.priority].remove(first)  # its loop was closed while it waited

    def _first(self, now_ns: int) -> QueuedWaiter | None:
        """Returns the waiter whose turn is next, with ageing as of now."""
        heads = [queue[0] for queue in self._queues if queue]
        return min(heads, key=lambda head: (self._rank(head, now_ns), head.number), default=None)

    def _rank(self, waiter: QueuedWaiter, now_ns: int) -> int:
        aged = 0 if self._age_ns is None else (now_ns - waiter.since_ns) // self._age_ns
        return max(0, waiter.priority - aged)

    def _wait_ns(self, waiter: QueuedWaiter, now_ns: int) -> int | None:
        """Returns the time until the turn of `waiter`; None: it sleeps until it is woken."""
        first = self._first(now_ns)
        if first is waiter:
            return self._rule.wait_ns(self._state, now_ns, 1)
        if first is not None:
            first.waker.wake()  # it may have become first by ageing, which wakes no waiter by itself
        return None

    def _depart(self, now_ns: int) -> bool:
        """Whether a departure is free now; if so it is used up."""
        if self._rule.wait_ns(self._state, now_ns, 1) != 0:
            return False
        self._state = self._rule.spend(self._state, now_ns, 1)
        return True

    def _start_thread(self, waker: ThreadWaker) -> None:
        thread = threading.Thread(
            target=self._run_one_job, args=(waker,), name="priority scheduler", daemon=True
        )
        self._threads.add(thread)
        thread.start()

    def _run_one_job(self, waker: ThreadWaker) -> None:
        """Waits for the next job's turn, starts the thread for the one after it, and runs the job."""
        work = self._next_work(waker)
        if work is not None:
            work.run()
        with self._mutex:
            self._threads.discard(threading.current_thread())

    def _next_work(self, waker: ThreadWaker) -> ScheduledWork | None:
        while True:
            with self._mutex:
                if not self._jobs:
                    self._job_waker = None
                    return None
                now_ns = self._clock()
                first = self._first(now_ns)
                wait_ns = None  # until it is woken, unless the first of all is a job
                if first is not None and first.work is not None:
                    wait_ns = self._rule.wait_ns(self._state, now_ns, 1)
                elif first is not None:
                    first.waker.wake()  # as in `_wait_ns`
                if wait_ns == 0 and first is not None and first.work is not None:
                    runs = first.work.future.set_running_or_notify_cancel()
                    if runs:
                        self._depart(now_ns)
                    self._leave(first)
                    if runs:
                        self._start_thread(waker)
                        return first.work
                    continue
            waker.wait(None if wait_ns is None else to_seconds(wait_ns))
