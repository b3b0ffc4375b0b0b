"""Waiting in order of arrival: queues of waiters per key, and ways to wake a thread or a task.

A wait is written once, as a generator that yields how long to sleep at most (`WaitSteps`). `run_steps`
sleeps in a thread, `run_steps_async` in an asyncio task; an exception or a cancellation closes the generator,
whose `finally` then gives back what the waiter had.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Protocol, TypeVar

from gatekeeper.limits.engine.protocol import Key

R = TypeVar("R")


class Waker(Protocol):
    """Wakes one waiter, from any thread."""

    def wake(self) -> bool:
        """Wakes the waiter; false when it no longer exists."""


class ThreadWaker:
    """Wakes a waiting thread.

    A clock with a `wait` method, such as `ManualClock`, is asked to let the time pass instead.
    """

    __slots__ = ("_event", "_wait")

    def __init__(self, clock: object = None) -> None:
        self._event = threading.Event()
        self._wait: Callable[[threading.Event, float | None], bool] = getattr(
            clock, "wait", threading.Event.wait
        )

    def wake(self) -> bool:
        self._event.set()
        return True

    def wait(self, timeout: float | None) -> None:
        """Returns when woken, or after `timeout` seconds."""
        if self._wait(self._event, timeout):
            self._event.clear()


class TaskWaker:
    """Wakes a waiting asyncio task."""

    __slots__ = ("_event", "_loop")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def wake(self) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:  # the loop was closed while the task waited
            return False
        return True

    async def wait(self, timeout: float | None) -> None:
        """Returns when woken, or after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return
        self._event.clear()


WaitSteps = Generator[float | None, None, R]  # yields the longest sleep in seconds; None: until woken


def run_steps(steps: WaitSteps[R], waker: ThreadWaker) -> R:
    """Returns the result of `steps`; this thread sleeps. An exception closes `steps`."""
    try:
        while True:
            waker.wait(next(steps))
    except StopIteration as done:
        result: R = done.value
        return result
    finally:
        steps.close()


async def run_steps_async(steps: WaitSteps[R], waker: TaskWaker) -> R:
    """Returns the result of `steps`; this task sleeps. An exception or a cancellation closes `steps`."""
    try:
        while True:
            await waker.wait(next(steps))
    except StopIteration as done:
        result: R = done.value
        return result
    finally:
        steps.close()


class WaitQueues:
    """A queue of waiters for each key that has any. The caller holds the mutex."""

    __slots__ = ("queues",)

    def __init__(self) -> None:
        self.queues: dict[Key, deque[Waker]] = {}

    def join(self, key: Key, waker: Waker, max_waiters: int | None) -> bool:
        """Adds a waiter; false, and nothing is added, when `max_waiters` wait already."""
        queue = self.queues.setdefault(key, deque())
        if max_waiters is not None and len(queue) >= max_waiters:
            return False
        queue.append(waker)
        return True

    def is_first(self, key: Key, waker: Waker) -> bool:
        """Whether `waker` is at the head of its queue, or no waiter is."""
        queue = self.queues.get(key)
        return queue is None or queue[0] is waker

    def leave(self, key: Key, waker: Waker) -> None:
        """Removes `waker` from its queue, and wakes the waiter that is first then."""
        queue = self.queues.get(key)
        if queue is None:
            return
        if waker in queue:
            queue.remove(waker)
        self.wake(key)

    def wake(self, key: Key) -> None:
        """Wakes the first waiter of `key`, and removes waiters that no longer exist."""
        queue = self.queues.get(key)
        while queue and not queue[0].wake():
            queue.popleft()
        if queue is not None and not queue:
            del self.queues[key]

    def waiting(self, key: Key) -> int:
        """Returns how many wait for `key`."""
        return len(self.queues.get(key, ()))
