"""Waiting for permits, first come first served per key, as a thread or as a task.

Only the first in line books; so who is further behind can leave and nothing was spent for it, and
when the first one leaves, its booking goes back.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol

from gatekeeper.limits.engine.key_states import KeyStates
from gatekeeper.limits.engine.protocol import Key
from gatekeeper.limits.engine.reservations import Reservation, wait_to_ns
from gatekeeper.limits.engine.units import to_seconds
from gatekeeper.limits.engine.wait_queue import (
    TaskWaker,
    ThreadWaker,
    WaitSteps,
    Waker,
    run_steps,
    run_steps_async,
)
from gatekeeper.model import Decision


class Bookable(Protocol):
    """A limiter that can be booked, with the line in which its waiters stand."""

    @property
    def _keys(self) -> KeyStates[Any]: ...
    @property
    def _name(self) -> str: ...
    def check(self, key: Key = "", cost: int = 1) -> Decision: ...
    def peek(self, key: Key = "", cost: int = 1) -> Decision: ...
    def reserve(self, key: Key = "", cost: int = 1, max_wait: float | None = None) -> Reservation: ...


def wait(self: Bookable, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision:
    """Allowed once `cost` requests may pass, after those who came before; this thread waits.

    Refused, with nothing spent, as soon as it is clear that `timeout` seconds will not do, or that
    waiting never helps. An exception out of a signal handler spends nothing either.
    """
    waker = ThreadWaker(self._keys.clock)
    return run_steps(_naps(self, key, cost, timeout, waker), waker)


async def wait_async(self: Bookable, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision:
    """The same for a task of asyncio; cancelling it spends nothing."""
    waker = TaskWaker()
    return await run_steps_async(_naps(self, key, cost, timeout, waker), waker)


def _naps(self: Bookable, key: Key, cost: int, timeout: float | None, waker: Waker) -> WaitSteps[Decision]:
    """How a waiter waits, whoever lets the time pass; closing it gives everything back."""
    keys = self._keys
    timeout_ns = wait_to_ns(timeout, "timeout")
    if not keys.waiters.waiting(key):
        at_once = self.check(key, cost)
        if at_once.allowed or at_once.retry_after is None:
            return at_once
    end_ns = None if timeout_ns is None else keys.clock() + timeout_ns
    if not keys.exclusively(lambda: keys.waiters.join(key, waker, keys.max_waiters)):
        return _refused(self, key, cost, f"{keys.max_waiters} are waiting already")
    try:
        while not keys.exclusively(lambda: keys.waiters.is_first(key, waker)):
            if _left(self, end_ns) == 0:
                return _refused(self, key, cost, "others came first")
            yield _left(self, end_ns)
        booking = self.reserve(key, cost, _left(self, end_ns))
        if booking:
            yield from _until(self, booking)
        return booking.decision
    finally:
        keys.exclusively(lambda: keys.waiters.leave(key, waker))


def _until(self: Bookable, booking: Reservation) -> Generator[float, None, None]:
    try:
        while (left_ns := booking.due_ns - self._keys.clock()) > 0:
            yield to_seconds(left_ns)
    except BaseException:  # closed: the waiter was cancelled or interrupted
        booking.cancel()
        raise


def _left(self: Bookable, end_ns: int | None) -> float | None:
    return None if end_ns is None else to_seconds(max(0, end_ns - self._keys.clock()))


def _refused(self: Bookable, key: Key, cost: int, why: str) -> Decision:
    answer = self.peek(key, cost)
    return answer._replace(allowed=False, policy=self._name, reason="limited", detail=why)
