"""PriorityScheduler: one throughput for all, and the important ones go first."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, Self, TypeVar

from gatekeeper.limits.algorithms.gcra import GcraRule
from gatekeeper.limits.engine import key_states
from gatekeeper.limits.engine.protocol import NanosecondClock, Period
from gatekeeper.limits.engine.reservations import wait_to_ns
from gatekeeper.limits.engine.units import to_ns, to_seconds, whole_number
from gatekeeper.limits.engine.wait_queue import (
    TaskWaker,
    ThreadWaker,
    WaitSteps,
    Waker,
    run_steps,
    run_steps_async,
)

R = TypeVar("R")


class QueuedWaiter:
    """One who waits, and how to wake it."""

    __slots__ = ("number", "priority", "since_ns", "waker", "work")

    def __init__(
        self, priority: int, number: int, since_ns: int, waker: Waker, work: ScheduledWork | None
    ) -> None:
        self.priority = priority
        self.number = number  # in the order of arrival
        self.since_ns = since_ns
        self.waker = waker
        self.work = work  # None: it goes by itself


class ScheduledWork(NamedTuple):
    """What a thread of ours runs for a waiter."""

    future: Future[Any]
    function: Callable[[], Any]

    def run(self) -> None:
        """Run it, and tell the future."""
        try:
            self.future.set_result(self.function())
        except BaseException as error:  # noqa: BLE001 - whatever it is belongs to whoever holds the future
            self.future.set_exception(error)


class PriorityScheduler:
    """Lets `limit` go per `period`, evenly, the highest priority first: 0, then 1, then 2 ...

    Promise: departures are period / limit apart, but for `burst` that an idle time saved up; within
    a priority first come, first served; nobody overtakes a waiter of its own or a higher priority.
    `age_after` seconds of waiting move a waiter up by one priority, so that a flood of important
    ones cannot starve the others; None, as it is unless told, moves nobody. Whoever waits sleeps
    until its moment, so an idle scheduler has no thread and uses no processor. Threads and tasks may
    wait for the same one.
    """

    __slots__ = (
        "__weakref__",
        "_age_ns",
        "_clock",
        "_closed",
        "_due",
        "_leader",
        "_mutex",
        "_number",
        "_queues",
        "_rule",
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
        """Raises ValueError for a limit, period or number of priorities below one unit."""
        whole_number(burst, "burst", least=0)
        self._rule = GcraRule(limit, to_ns(period), max(1, burst))
        self._queues = [deque[QueuedWaiter]() for _ in range(whole_number(priorities, "priorities"))]
        self._age_ns = None if age_after is None else to_ns(age_after, "age_after")
        self._clock = clock if clock is time.monotonic_ns else key_states.monotonic(clock)
        self._due: int | None = None  # the state of the rule
        self._number = 0
        self._closed = False
        self.renew()
        key_states.forked_registry.add(self)

    def renew(self) -> None:
        """Start with nobody waiting: at birth, and in a forked child, which has no other thread."""
        self._mutex = threading.RLock()
        self._queues = [deque[QueuedWaiter]() for _ in self._queues]
        self._leader: ThreadWaker | None = None  # wakes the thread that waits for all jobs
        self._threads: set[threading.Thread] = set()

    def acquire(self, priority: int = 0, timeout: float | None = None) -> bool:
        """True once it is the caller's turn; this thread waits.

        False after `timeout` seconds, and when the scheduler is closed; nothing was used up then.
        Raises ValueError for a priority that there is not.
        """
        waker = ThreadWaker(self._clock)
        return run_steps(self._naps(priority, timeout, waker), waker)

    async def acquire_async(self, priority: int = 0, timeout: float | None = None) -> bool:
        """The same for a task; cancelling it uses nothing up."""
        waker = TaskWaker()
        return await run_steps_async(self._naps(priority, timeout, waker), waker)

    def try_acquire(self, priority: int = 0) -> bool:
        """Whether the caller may go now, overtaking nobody of its own or a higher priority."""
        self._known(priority)
        with self._mutex:
            waits = any(self._queues[: priority + 1])
            return not waits and not self._closed and self._go(self._clock())

    def submit(self, function: Callable[[], R], priority: int = 0) -> Future[R]:
        """The result to come of `function`, which is run by a thread when its turn comes.

        One thread waits for the turns of all jobs, and none is left when there are no more. A job
        that runs longer than the next one waits does not hold that up. A job whose future is
        cancelled in time uses nothing up. Raises RuntimeError when the scheduler is closed.
        """
        self._known(priority)
        future: Future[R] = Future()
        with self._mutex:
            if self._closed:
                raise RuntimeError("this scheduler is closed: it takes no more work")
            if self._leader is None:
                self._leader = ThreadWaker()
                self._start_leader(self._leader)
            self._join(priority, self._leader, ScheduledWork(future, function))
            self._leader.wake()
        return future

    def waiting(self) -> int:
        """How many wait, jobs included."""
        with self._mutex:
            return sum(map(len, self._queues))

    def configure(
        self, limit: int | None = None, period: Period | None = None, burst: int | None = None
    ) -> None:
        """Another throughput from now on; who waits keeps its place, and what was used stays used.

        None leaves a number as it is. Raises ValueError.
        """
        if limit is not None:
            whole_number(limit, "limit")
        period_ns = None if period is None else to_ns(period)
        size = None if burst is None else max(1, whole_number(burst, "burst", least=0))
        with self._mutex:
            old, now_ns = self._rule, self._clock()
            self._rule = old.with_limits(limit, period_ns, size)
            self._due = None if self._due is None else self._rule.convert(old, self._due, now_ns)
            if (first := self._first(now_ns)) is not None:
                first.waker.wake()  # its moment may be another one now

    def close(self, timeout: float | None = None) -> None:
        """Let nobody go any more: who waits gets False, jobs are cancelled, running ones are waited
        for, at most `timeout` seconds each. Calling twice is safe."""
        with self._mutex:
            self._closed = True
            for queue in self._queues:
                for waiter in list(queue):
                    if waiter.work is not None:
                        queue.remove(waiter)
                        waiter.work.future.cancel()
                    waiter.waker.wake()
            threads = self._threads - {threading.current_thread()}
        for thread in threads:
            thread.join(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _naps(self, priority: int, timeout: float | None, waker: Waker) -> WaitSteps[bool]:
        """How a waiter waits, whoever lets the time pass; closing it leaves the queue."""
        self._known(priority)
        timeout_ns = wait_to_ns(timeout, "timeout")
        end_ns = None if timeout_ns is None else self._clock() + timeout_ns
        with self._mutex:
            waiter = self._join(priority, waker, None)
        try:
            while not self._closed:
                with self._mutex:
                    now_ns = self._clock()
                    nap_ns = self._nap_ns(waiter, now_ns)
                    if nap_ns == 0:
                        return self._go(now_ns)
                    left_ns = None if end_ns is None else end_ns - now_ns
                    if left_ns is not None and left_ns <= 0:
                        return False
                naps_ns = [nap for nap in (nap_ns, left_ns) if nap is not None]
                yield to_seconds(min(naps_ns)) if naps_ns else None
            return False
        finally:
            with self._mutex:
                self._leave(waiter)

    def _known(self, priority: int) -> None:
        if not 0 <= priority < len(self._queues):
            raise ValueError(f"priority: expected 0 to {len(self._queues) - 1}, got {priority!r}")

    def _join(self, priority: int, waker: Waker, work: ScheduledWork | None) -> QueuedWaiter:
        self._number += 1
        waiter = QueuedWaiter(priority, self._number, self._clock(), waker, work)
        self._queues[priority].append(waiter)
        return waiter

    def _leave(self, waiter: QueuedWaiter) -> None:
        """Take `waiter` out, and wake who is first then."""
        queue = self._queues[waiter.priority]
        if waiter in queue:
            queue.remove(waiter)
        while (first := self._first(self._clock())) is not None and not first.waker.wake():
            self._queues[first.priority].remove(first)  # its loop was closed over its head

    def _first(self, now_ns: int) -> QueuedWaiter | None:
        """Who goes next if it goes now."""
        heads = [queue[0] for queue in self._queues if queue]
        return min(heads, key=lambda head: (self._rank(head, now_ns), head.number), default=None)

    def _rank(self, waiter: QueuedWaiter, now_ns: int) -> int:
        aged = 0 if self._age_ns is None else (now_ns - waiter.since_ns) // self._age_ns
        return max(0, waiter.priority - aged)

    def _nap_ns(self, waiter: QueuedWaiter, now_ns: int) -> int | None:
        """How long until it may be the turn of `waiter`; None: until it is woken."""
        first = self._first(now_ns)
        if first is waiter:
            return self._rule.wait_ns(self._due, now_ns, 1)
        if first is not None:
            first.waker.wake()  # it may have come to the front by age while nobody looked
        return None

    def _go(self, now_ns: int) -> bool:
        """Whether there was a departure to use up."""
        if self._rule.wait_ns(self._due, now_ns, 1) != 0:
            return False
        self._due = self._rule.spend(self._due, now_ns, 1)
        return True

    def _start_leader(self, waker: ThreadWaker) -> None:
        thread = threading.Thread(target=self._lead, args=(waker,), name="priority scheduler", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _lead(self, waker: ThreadWaker) -> None:
        """Wait for the next job's turn, hand the waiting on to a new thread, and run the job."""
        work = self._next_work(waker)
        if work is not None:
            work.run()
        with self._mutex:
            self._threads.discard(threading.current_thread())

    def _next_work(self, waker: ThreadWaker) -> ScheduledWork | None:
        while True:
            with self._mutex:
                jobs = [waiter for queue in self._queues for waiter in queue if waiter.work is not None]
                if not jobs:
                    self._leader = None
                    return None
                now_ns = self._clock()
                first = self._first(now_ns)
                nap_ns = self._nap_ns(first if first in jobs and first is not None else jobs[0], now_ns)
                if nap_ns == 0 and first is not None and first.work is not None:
                    runs = first.work.future.set_running_or_notify_cancel()
                    if runs:
                        self._go(now_ns)
                    self._leave(first)
                    if runs:
                        self._start_leader(waker)
                        return first.work
                    continue
            waker.wait(None if nap_ns is None else to_seconds(nap_ns))
