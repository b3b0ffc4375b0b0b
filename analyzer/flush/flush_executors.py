"""Executors of flushes: in a thread next to the loop, or in the loop itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from analyzer.kernel.thread_clocks import WorkClock, own_cpu_clock

T = TypeVar("T")


class InlineFlushes:
    """Runs each flush at once, in the calling thread: for simulations under one clock, and for tests."""

    def submit(self, flush: Callable[[], T], /) -> Future[T]:
        """Returns a future that is done. An error that is no `Exception` passes through."""
        future: Future[T] = Future()
        try:
            future.set_result(flush())
        except Exception as error:  # noqa: BLE001 - the future raises it in `result`
            future.set_exception(error)
        return future

    def cpu_s(self) -> float:
        """Returns 0: there is no thread besides the loop's."""
        return 0.0

    def close(self) -> None:
        """Does nothing."""


class FlushThread:
    """Runs one flush after the other in a thread, which starts with the first one.

    `wait` is for those who must not act between a flush and its commit, such as a source that gives up a
    partition or reads a position. `cpu_s` is the CPU time of the thread, in seconds.
    """

    def __init__(self) -> None:
        self.cpu_s = WorkClock()
        self._executor = ThreadPoolExecutor(
            max_workers=1,
            thread_name_prefix="flush",
            initializer=lambda: self.cpu_s.add(own_cpu_clock()),
        )
        self._is_idle = threading.Event()
        self._is_idle.set()

    def submit(self, flush: Callable[[], T], /) -> Future[T]:
        """Runs `flush` in the thread. The flush before it must have ended."""
        self._is_idle.clear()
        return self._executor.submit(self._run, flush)

    def wait(self, timeout_s: float | None = None) -> None:
        """Returns when no flush is in flight, at the latest after `timeout_s` seconds. Any thread."""
        self._is_idle.wait(timeout_s)

    def _run(self, flush: Callable[[], T]) -> T:
        try:
            return flush()
        finally:
            self._is_idle.set()  # before the future is done: a flush that is submitted then clears it

    def close(self) -> None:
        """Ends the thread, after the flush in flight."""
        self._executor.shutdown()
