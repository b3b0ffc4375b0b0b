"""Single-flight calls of blocking functions from an event loop: one call at a time, shared by all callers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

TIMEOUT_S = 3.0  # a health probe waits no longer than this, even when the database does

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Calls a blocking function in a thread; callers that come while it runs share its result or error.

    With a call for each caller, a database that hangs would keep the last of them waiting for minutes. A
    result is returned for `kept_s` seconds after its call began; an error is not kept.
    """

    def __init__(self, call: Callable[[], T], kept_s: float = 0.0) -> None:
        self._call = call
        self._kept_s = kept_s
        self._running: asyncio.Future[T] | None = None
        self._began_s = 0.0

    async def get(self) -> T:
        """Returns or raises what the function does. Raises TimeoutError when it takes too long."""
        running = self._running
        if running is None or (running.done() and not self._is_kept(running)):
            running = self._running = run_in_thread(self._call)
            self._began_s = time.monotonic()
        try:
            return await asyncio.wait_for(asyncio.shield(running), TIMEOUT_S)
        except TimeoutError:
            raise TimeoutError(f"the database has not answered for {TIMEOUT_S:g} s") from None

    def _is_kept(self, future: asyncio.Future[T]) -> bool:
        return future.exception() is None and time.monotonic() - self._began_s < self._kept_s


def run_in_thread(call: Callable[[], T]) -> asyncio.Future[T]:
    """Calls `call` in a new daemon thread and returns a future of its result or error.

    Not in the event loop's pool: at exit the process waits for the threads of a pool, and a database that
    hangs would keep it from stopping.
    """
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    future.add_done_callback(consume_exception)
    threading.Thread(target=_run, args=(call, future), daemon=True, name="single-flight").start()
    return future


def _run(call: Callable[[], T], future: asyncio.Future[T]) -> None:
    try:
        result = call()
    except Exception as error:  # noqa: BLE001 - raised again in the callers
        _complete(future, partial(future.set_exception, error))
    else:
        _complete(future, partial(future.set_result, result))


def _complete(future: asyncio.Future[T], complete: Callable[[], None]) -> None:
    def complete_unless_cancelled() -> None:
        if not future.done():
            complete()

    with suppress(RuntimeError):  # the loop is closed: no caller is left
        future.get_loop().call_soon_threadsafe(complete_unless_cancelled)


def consume_exception(future: asyncio.Future[T]) -> None:
    """Marks the exception of `future` as retrieved, or asyncio would log one that comes after the last caller
    has left."""
    if not future.cancelled():
        future.exception()
