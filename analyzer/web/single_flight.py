"""Asking what may block, from a loop that may not: one question at a time, however many want to know."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

TIMEOUT_S = 3.0  # a probe waits no longer than this, however long the database does

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Calls a blocking function in a thread. Who asks while it runs gets the same answer, or the same
    failure: one after the other, a database that hangs would keep the last of them for minutes."""

    def __init__(self, look: Callable[[], T]) -> None:
        self._look = look
        self._running: asyncio.Future[T] | None = None

    async def get(self) -> T:
        """What `look` returns or raises; TimeoutError when that takes too long."""
        if self._running is None or self._running.done():
            self._running = run_in_thread(self._look)
        try:
            return await asyncio.wait_for(asyncio.shield(self._running), TIMEOUT_S)
        except TimeoutError:
            raise TimeoutError(f"the database has not answered for {TIMEOUT_S:g} s") from None


def run_in_thread(call: Callable[[], T]) -> asyncio.Future[T]:
    """What `call` will return or raise, in a thread of its own.

    The thread is a daemon and not one of a pool: a pool's threads are waited for at exit, and a
    database that hangs would keep a process alive that was told to stop.
    """
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    future.add_done_callback(consume_exception)
    threading.Thread(target=_run, args=(call, future), daemon=True, name="asking").start()
    return future


def _run(call: Callable[[], T], future: asyncio.Future[T]) -> None:
    try:
        answer = call()
    except Exception as error:  # noqa: BLE001 - whoever asked gets it
        _tell(future, partial(future.set_exception, error))
    else:
        _tell(future, partial(future.set_result, answer))


def _tell(future: asyncio.Future[T], tell: Callable[[], None]) -> None:
    def tell_who_still_asks() -> None:
        if not future.done():
            tell()

    with suppress(RuntimeError):  # the loop is closed: nobody asks any more
        future.get_loop().call_soon_threadsafe(tell_who_still_asks)


def consume_exception(future: asyncio.Future[T]) -> None:
    """Take note of an error that came too late for everybody, so that nobody logs it as forgotten."""
    if not future.cancelled():
        future.exception()
