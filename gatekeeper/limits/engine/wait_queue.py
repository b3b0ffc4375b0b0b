"""Who waits for a key, in the order in which they came."""

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
        """Wake it; false when it is no longer there to be woken."""


class ThreadWaker:
    """Wakes a waiting thread. A clock that can wait, as one moved by hand, lets the time pass itself."""

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
        """Return when it rings, or after `timeout` seconds."""
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
        except RuntimeError:  # its loop was closed over its head
            return False
        return True

    async def wait(self, timeout: float | None) -> None:
        """Return when it rings, or after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return
        self._event.clear()


WaitSteps = Generator[float | None, None, R]  # yields how long to wait for the waker at most; None: for ever


def run_steps(naps: WaitSteps[R], waker: ThreadWaker) -> R:
    """What a waiter hears in the end; this thread waits. Leaving early, by an exception, closes `naps`."""
    try:
        while True:
            waker.wait(next(naps))
    except StopIteration as done:
        heard: R = done.value
        return heard
    finally:
        naps.close()


async def run_steps_async(naps: WaitSteps[R], waker: TaskWaker) -> R:
    """The same for a task, which may be cancelled."""
    try:
        while True:
            await waker.wait(next(naps))
    except StopIteration as done:
        heard: R = done.value
        return heard
    finally:
        naps.close()


class WaitQueues:
    """One line of waiters for each key that has any. The caller holds the mutex."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: dict[Key, deque[Waker]] = {}

    def join(self, key: Key, waker: Waker, places: int | None) -> bool:
        """Whether there was a place behind the others; at most `places` may be in line."""
        line = self._lines.setdefault(key, deque())
        if places is not None and len(line) >= places:
            return False
        line.append(waker)
        return True

    def is_first(self, key: Key, waker: Waker) -> bool:
        """Whether `waker` is at the head of its line, or in none."""
        line = self._lines.get(key)
        return line is None or line[0] is waker

    def leave(self, key: Key, waker: Waker) -> None:
        """Take `waker` out of its line; who is first then is woken."""
        line = self._lines.get(key)
        if line is None:
            return
        if waker in line:
            line.remove(waker)
        self.wake(key)

    def wake(self, key: Key) -> None:
        """Ring for the first in line, and pass over those who are no longer there."""
        line = self._lines.get(key)
        while line and not line[0].wake():
            line.popleft()
        if line is not None and not line:
            del self._lines[key]

    def waiting(self, key: Key) -> int:
        """How many are in line."""
        return len(self._lines.get(key, ()))
