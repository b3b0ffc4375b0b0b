"""Executors that delay flushes, for simulations: orders that a thread leads to, repeatable in one thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from random import Random
from typing import Any


class LateFlush(Future[Any]):
    """A flush that runs when its outcome is awaited, or earlier by chance."""

    def __init__(self, flush: Callable[[], Any], chance: Callable[[], float]) -> None:
        super().__init__()
        self._flush = flush
        self._chance = chance

    def result(self, timeout: float | None = None) -> Any:
        """Runs the flush, unless `timeout` is 0: then only with the chance of one half."""
        if not self.done():
            if timeout == 0 and self._chance() >= 0.5:
                raise TimeoutError
            self.run()
        return super().result()

    def run(self) -> None:
        """Runs the flush. An error that is no `Exception` passes through, as a kill does."""
        try:
            self.set_result(self._flush())
        except Exception as error:  # noqa: BLE001 - `result` raises it
            self.set_exception(error)


class LateFlushes:
    """A `FlushExecutor`: a flush runs after the next record sets are counted.

    `wait` runs the flush in flight, as waiting for a thread would.
    """

    def __init__(self) -> None:
        self.latest: LateFlush | None = None
        self.chance: Callable[[], float] = lambda: 1.0  # that a flush runs is decided by what waits for it

    def submit(self, flush: Callable[[], Any], /) -> Future[Any]:
        assert self.latest is None or self.latest.done(), "two flushes in flight"
        self.latest = LateFlush(flush, self.chance)
        return self.latest

    def wait(self, _timeout_s: float | None = None) -> None:
        if self.latest is not None and not self.latest.done():
            self.latest.run()

    def wait_quietly(self, timeout_s: float | None = None) -> None:
        """Waits as `wait`, but a kill of the process appears where the outcome is collected."""
        with suppress(BaseException):
            self.wait(timeout_s)

    def close(self) -> None:
        self.wait()


class SeededFlushes(LateFlushes):
    """Decides at random, at each moment at which a thread could have committed, whether it has."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = Random(seed)
        self.chance = self.random.random

    def submit(self, flush: Callable[[], Any], /) -> Future[Any]:
        future = super().submit(flush)
        if self.random.random() < 0.3:
            self.wait()
        return future
